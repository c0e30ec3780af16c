"""Commands about one model: a preset, a finished run, or a checkpoint."""

import math
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_ablate.commands.answer import Answer
from llama_ablate.errors import ConfigError

if TYPE_CHECKING:
    from llama_ablate.interop.opening import Opened


def summary(options: Namespace) -> Answer:
    """Count an architecture part by part."""
    from llama_ablate.config import experiment

    if options.what is None:
        if options.sets:
            raise ConfigError("--set needs a preset to change")
        names = {name: experiment.preset(name).about.source for name in experiment.presets()}
        return Answer("\n".join(f"{name:18s} {source}" for name, source in names.items()), names)
    from llama_ablate.commands import summaries

    if options.what in experiment.presets() or not Path(options.what).exists():
        spec, about = summaries.of_preset(options.what, options.sets)
    else:
        from llama_ablate.interop.opening import open_spec

        if options.sets:
            raise ConfigError("--set changes a preset; a checkpoint is what it is")
        spec, about = open_spec(Path(options.what)), experiment.About()
    values = summaries.summarize(
        options.what, spec, context=options.context, batch=options.batch, dtype=options.dtype
    )
    return Answer(summaries.text(values, about), {**values, "notes": about.notes})


def generate(options: Namespace) -> Answer:
    """Continue a prompt, writing the text as it comes."""
    from llama_ablate.interop import chat
    from llama_ablate.interop.generation import Generation, Sampling, Streamed

    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.seed)
    opened = _open(options)
    tokenizer = opened.tokenizer
    text = _prompt(options)
    if options.system and not options.chat:
        raise ConfigError("--system is for --chat")
    if options.chat:
        said = [chat.Message("system", options.system)] if options.system else []
        prompt = chat.encode([*said, chat.Message("user", text)], tokenizer)
    else:
        prompt = tokenizer.prompt(text, special=options.parse_special)
    generation = Generation(
        opened.model,
        [prompt],
        max_tokens=options.max_tokens,
        sampling=sampling,
        stops=tokenizer.stops,
        past=options.past_context,
        use_cache=not options.no_cache,
        vocab=tokenizer.vocab,
    )
    streamed = Streamed(tokenizer, prompt)
    out = (lambda _: None) if options.json else _write
    out("" if options.chat else text)
    began = time.perf_counter()
    for (token,) in generation:
        if token is not None:
            out(streamed.push(token))
    out(streamed.flush())
    seconds = time.perf_counter() - began
    if generation.ended == "context":
        sys.stderr.write(
            f"note: stopped at the context of {opened.model.spec.context:,} tokens; "
            "--past-context slide goes on\n"
        )
    values = {
        "prompt": text,
        "prompt_tokens": prompt,
        "text": streamed.text,
        "tokens": streamed.tokens,
        "ended": generation.ended,
        "seconds": seconds,
        "tokens_per_s": len(streamed.tokens) / seconds if seconds else None,
    }
    return Answer("", values)


def attention(options: Namespace) -> Answer:
    """Draw what each head attends to while a prompt is read."""
    from llama_ablate.interop.looking import look
    from llama_ablate.report.figures import save

    opened = _open(options)
    prompt = opened.tokenizer.prompt(_prompt(options), special=options.parse_special)
    maps = look(opened, prompt)
    layers = range(len(maps.weights)) if options.layer is None else [options.layer]
    if options.head is None:
        drawn = {f"layer-{layer}": maps.layer(layer) for layer in layers}
    else:
        drawn = {f"layer-{i}-head-{options.head}": maps.head(i, options.head) for i in layers}
    written = [maps.save(options.out / "attention.npz")]
    for name, figure in drawn.items():
        written += save(figure, options.out / name)
    files = [str(path) for path in written]
    return Answer("\n".join(files), {"tokens": prompt, "labels": maps.labels, "files": files})


def rope(options: Namespace) -> Answer:
    """Draw and list the frequencies of a preset's rotation."""
    from llama_ablate.commands.summaries import rates_of
    from llama_ablate.report.figures import save
    from llama_ablate.report.rotation import rotation

    found = rates_of(options.what, options.sets)
    written = save(rotation(found.rates, found.context), options.out)
    columns: Any = list(found.rates.values())
    lines = ["pair  " + "  ".join(f"{name:>14s}" for name in found.rates) + "   turns once in"]
    for pair, row in enumerate(zip(*columns, strict=True)):
        cells = "  ".join(f"{value:14.4e}" for value in row)
        lines.append(f"{pair:4d}  {cells}  {2 * math.pi / row[0]:14,.1f}")
    lines += [str(path) for path in written]
    values = {
        "name": options.what,
        "context": found.context,
        "radians_per_position": found.rates,
        "files": [str(path) for path in written],
    }
    return Answer("\n".join(lines), values)


def export(options: Namespace) -> Answer:
    """Write a run or a checkpoint as a Hugging Face checkpoint."""
    from llama_ablate.interop import huggingface

    opened = _open(options)
    written = huggingface.write(opened.model, options.folder, options.to, opened.found)
    for note in written.notes:
        sys.stderr.write(f"note: {note}\n")
    files = sorted(path.name for path in options.folder.iterdir())
    values = {
        "family": written.family,
        "folder": str(options.folder),
        "files": files,
        "notes": written.notes,
    }
    return Answer(f"{options.folder}: {written.family}, {', '.join(files)}", values)


def bench(options: Namespace) -> Answer:
    """Time a component alone and inside a training step."""
    from dataclasses import asdict

    from llama_ablate.bench import run
    from llama_ablate.bench.timing import Setup
    from llama_ablate.launch.environment import environment
    from llama_ablate.report import benches
    from llama_ablate.training.compute import pick_device

    setup = Setup(
        device=pick_device(options.device),
        dtype=options.dtype,
        threads=options.threads,
        dim=options.dim,
        rows=options.rows,
        rounds=options.rounds,
        compiled=not options.no_compile,
    )
    tables, ratios = run(options.what, setup)
    values = {
        "bench": options.what,
        "setup": asdict(setup),
        "environment": environment(),
        "tables": [table.to_dict() for table in tables],
        "ratios": [asdict(ratio) for ratio in ratios],
    }
    return Answer(benches.text(values), values)


def _open(options: Namespace) -> "Opened":
    import torch

    from llama_ablate.interop.opening import open_model
    from llama_ablate.training.compute import pick_device

    device = pick_device(options.device)
    dtype = getattr(torch, options.dtype) if options.dtype else None
    opened = open_model(options.model, tokenizer=options.tokenizer, dtype=dtype)
    opened.model.to(device)
    return opened


def _prompt(options: Namespace) -> str:
    if options.prompt != "-":
        text = str(options.prompt)
    elif sys.stdin is None:
        raise ConfigError("--prompt -: there is no standard input")
    else:
        text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError("--prompt is not UTF-8 text") from None
    return text


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone, with what it wanted
        sys.exit(0)
