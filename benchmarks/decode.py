"""Time text generation against `transformers` on equal weights, and by number of KV heads.

    python benchmarks/decode.py
    python benchmarks/decode.py --quick
    python benchmarks/decode.py --compiled --cpu --threads 1 --shape 128x4

The first table times the greedy continuation of a prompt of 32 tokens by `transformers.generate`
(with default cache, with static cache, and with `--compiled` also through `torch.compile`) and by
`llama_ablate.interop.generation` (plain and compiled), with float32 and bfloat16 weights, two
threads, and interleaved rounds in one process. Implementations that generate other tokens are
marked: in bfloat16 the compiled steps round less. The second table times one token after a context
of 4,096 tokens for 64 sequences at once, by the number of KV heads.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from llama_ablate.config.experiment import Model
from llama_ablate.design.variants import resolve
from llama_ablate.interop import huggingface
from llama_ablate.interop.generation import Compile, Generation, Sampling
from llama_ablate.model.decoder import Decoder, new_model
from llama_ablate.training.compute import configure_process
from llama_ablate.training.timing import interleave, seconds_of

SHAPES = {
    "128x4": {"dim": 128, "layers": 4, "heads": 4},
    "256x6": {"dim": 256, "layers": 6, "heads": 8},
    "512x8": {"dim": 512, "layers": 8, "heads": 8},
}
VOCAB, PROMPT = 4096, 32
#: Model of the second table, in which the KV cache of a layer for 64 sequences has 64 MiB per head.
MANY = {"dim": 512, "layers": 2, "heads": 8, "context": 4096}
BATCH = 64


def model_of(sizes: dict[str, int], dtype: torch.dtype, **changes: Any) -> Decoder:
    """Build a Llama model with random weights."""
    recipe = {"vocab": VOCAB, "context": 1024, "feedforward": "swiglu", **sizes, **changes}
    spec = resolve(Model.check(recipe))
    return new_model(spec, 0).to(dtype).eval()


def hugging_face(model: Decoder) -> Any:
    """Convert a model to transformers' implementation with the same weights."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        huggingface.write(model, Path(folder))
        dtype = model.embedding.weight.dtype
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def generations(
    sizes: dict[str, int], dtype: torch.dtype, new: int, compiled: bool
) -> dict[str, Callable[[], Any]]:
    """Return the implementations to compare, by name.

    Each is a function that continues the same prompt by `new` tokens, and returns them.
    """
    model = model_of(sizes, dtype)
    theirs = hugging_face(model)
    prompt = torch.randint(0, VOCAB, (PROMPT,), generator=torch.Generator().manual_seed(0))
    options = {
        "max_new_tokens": new,
        "min_new_tokens": new,
        "do_sample": False,
        "attention_mask": torch.ones(1, PROMPT, dtype=torch.long),
        "pad_token_id": 0,
    }

    def ours(compile: Compile) -> list[int | None]:  # noqa: A002
        generation = Generation(
            model,
            [prompt.tolist()],
            max_tokens=new,
            sampling=Sampling(temperature=0),
            compile=compile,
        )
        return [row[0] for row in generation]

    def generate(**more: Any) -> list[int]:
        with torch.inference_mode():
            whole = theirs.generate(prompt[None], **options, **more)
        return whole[0, PROMPT:].tolist()

    contestants = {
        "llama_ablate": partial(ours, "never"),
        "llama_ablate (compiled)": partial(ours, "always"),
        "transformers": generate,
        "transformers (static cache)": partial(
            generate, cache_implementation="static", disable_compile=True
        ),
    }
    if compiled:
        from transformers import CompileConfig

        config = CompileConfig(mode=None, options={"cpp_wrapper": True})
        config._compile_all_devices = True  # noqa: SLF001  by default it compiles on GPUs only
        contestants["transformers (static cache, compiled)"] = partial(
            generate, cache_implementation="static", compile_config=config
        )
    return contestants


def race(shape: str, dtype: torch.dtype, options: argparse.Namespace) -> dict[str, Any]:
    """Time generation by each implementation in interleaved rounds; print and return times."""
    new = options.new
    contestants = generations(SHAPES[shape], dtype, new, options.compiled)
    first, first_s = {}, {}
    for name, generate in contestants.items():
        start = time.perf_counter()
        first[name] = generate()
        first_s[name] = time.perf_counter() - start
    same = {name: tokens == first["llama_ablate"] for name, tokens in first.items()}
    clock = cpu_seconds_of if options.cpu else partial(seconds_of, synchronize=lambda: None)
    timed = {name: partial(clock, generate) for name, generate in contestants.items()}
    times, errors = interleave(timed, options.rounds, warm_up=1)
    if errors:
        raise next(iter(errors.values()))
    precision = str(dtype).removeprefix("torch.")
    print(f"{shape}, {precision}: {new} tokens after {PROMPT}, one sequence")
    for name, taken in times.items():
        note = "" if same[name] else "   other tokens than ours"
        print(
            f"  {name:38s} {statistics.median(taken) / new * 1e3:7.2f} ms a token, "
            f"the first time {first_s[name]:5.1f} s{note}"
        )
    theirs = [taken for name, taken in times.items() if not is_ours(name)]
    ratios = {}
    for name in filter(is_ours, times):
        turns = sorted(
            min(others) / own
            for own, others in zip(times[name], zip(*theirs, strict=True), strict=True)
        )
        ratios[name] = statistics.median(turns)
        print(
            f"  best of transformers / {name}: {ratios[name]:.2f} "
            f"({turns[0]:.2f} to {turns[-1]:.2f})"
        )
    return {
        "shape": shape,
        "precision": precision,
        "seconds": times,
        "first": first_s,
        "ratios": ratios,
        "same": same,
    }


def is_ours(name: str) -> bool:
    """Return whether an implementation belongs to this package."""
    return name.startswith("llama_ablate")


def cpu_seconds_of(work: Callable[[], Any]) -> float:
    """Return the CPU seconds that a call takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def by_heads(dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Time decoding of many sequences after a long context, by number of KV heads."""
    works, sizes = {}, {}
    tokens = torch.zeros(BATCH, 1, dtype=torch.long)
    for heads in (8, 4, 2, 1):
        attention = {"name": "gqa", "kv_heads": heads} if heads < MANY["heads"] else "mha"
        model = model_of(MANY, dtype, attention=attention)
        state = model.new_state(BATCH, MANY["context"])
        sizes[heads] = state.nbytes

        def work(model: Decoder = model, state: Any = state) -> None:
            # The contents of the KV cache do not affect the time, so that it is left as allocated.
            for layer in state.layers:
                layer.length = MANY["context"] - 1
            state.length = MANY["context"] - 1
            with torch.inference_mode():
                model(tokens, state)

        works[heads] = partial(seconds_of, work, lambda: None)
    times, errors = interleave(works, rounds, warm_up=1)
    if errors:
        raise next(iter(errors.values()))
    print(f"one token of {BATCH} sequences after {MANY['context'] - 1:,} tokens each, {dtype}")
    for heads, taken in times.items():
        share = statistics.median(a / b for a, b in zip(times[8], taken, strict=True))
        print(
            f"  {heads} kv heads  {statistics.median(taken) * 1e3:8.1f} ms a token   "
            f"{share:5.2f} x   state {sizes[heads] / 2**20:6,.0f} MiB"
        )
    return {"precision": str(dtype), "seconds": times, "bytes": sizes}


def main() -> None:
    """Measure and print both tables, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cpu", action="store_true", help="time the processor: for a busy machine")
    parser.add_argument("--compiled", action="store_true", help="transformers compiled, too")
    parser.add_argument("--quick", action="store_true", help="the two smaller shapes, 3 rounds")
    options = parser.parse_args()
    if options.quick:
        options.shape, options.rounds, options.new = ["128x4", "256x6"], 3, 64
    configure_process(options.threads)
    races = [
        race(shape, dtype, options)
        for shape in options.shape or SHAPES
        for dtype in (torch.float32, torch.bfloat16)
    ]
    heads = by_heads(torch.bfloat16, options.rounds)
    print(json.dumps({"torch": torch.__version__, "races": races, "heads": heads}))


if __name__ == "__main__":
    main()
