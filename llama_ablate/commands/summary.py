"""The command `summary`: parameters, FLOPs and cache of an architecture, part by part."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_ablate.commands import options as shared
from llama_ablate.commands.answer import Answer
from llama_ablate.commands.options import count
from llama_ablate.errors import ConfigError

HELP = "count parameters, FLOPs and KV bytes of an architecture, part by part"
EXAMPLE = "summary llama2-7b --batch 16 --context 1024 --set model.tie=true"
_COLUMNS = {
    "parameters": "parameters",
    "active_parameters": "active",
    "flops_per_token": "FLOPs/token",
    "train_flops_per_token": "to train",
    "kv_bytes_per_token": "KV bytes/token",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the architecture, and the size of its cache."""
    parser.add_argument(
        "what",
        nargs="?",
        metavar="PRESET|CHECKPOINT",
        help="a preset's name, or a checkpoint; without one, the presets are listed",
    )
    shared.add_sets(parser, "model.attention=mqa")
    parser.add_argument(
        "--context", type=count, metavar="N", help="tokens in cache and scores (default: its own)"
    )
    parser.add_argument(
        "--batch", type=count, default=1, metavar="N", help="sequences in the cache (default: 1)"
    )
    parser.add_argument(
        "--dtype",
        choices=["float32", "float16", "bfloat16", "int8"],
        default="float16",
        help="of the cache (default: float16)",
    )


def run(options: Namespace) -> Answer:
    """Count an architecture, without building its weights; or list the presets."""
    from llama_ablate.config import experiment
    from llama_ablate.design.summary import resolve_preset, summarize

    if options.what is None:
        if options.sets:
            raise ConfigError("--set needs a preset to change")
        names = {name: experiment.preset(name).about.source for name in experiment.presets()}
        return Answer("\n".join(f"{name:18s} {source}" for name, source in names.items()), names)
    if options.what in experiment.presets() or not Path(options.what).exists():
        spec, about = resolve_preset(options.what, options.sets)
    else:
        from llama_ablate.interop.loader import open_spec

        if options.sets:
            raise ConfigError("--set changes a preset; a checkpoint is what it is")
        spec, about = open_spec(Path(options.what)), experiment.About()
    values = summarize(
        options.what, spec, context=options.context, batch=options.batch, dtype=options.dtype
    )
    values |= {"source": about.source, "notes": about.notes}
    return Answer(text(values), values)


def text(values: Mapping[str, Any]) -> str:
    """Return a summary for a terminal."""
    import pandas as pd

    from llama_ablate.config.registry import entry_text
    from llama_ablate.report import tables

    rows = [*values["parts"], {"part": "total", "what": "", **values["total"]}]
    cells = pd.DataFrame({"part": [r["part"] for r in rows], "what": [r["what"] for r in rows]})
    dense = values["total"]["active_parameters"] == values["total"]["parameters"]
    for key, head in _COLUMNS.items():
        if key == "active_parameters" and dense:
            continue
        cells[head] = [f"{row[key]:,}" for row in rows]
    model, size = values["model"], values["kv_cache_bytes"]
    block = entry_text(model["block"], options=False)
    lines = [
        f"{values['name']}: {model['layers']} layers, dim {model['dim']:,}, {model['heads']} heads "
        f"of {model['head_dim']}, block {block}, context {model['context']:,}",
        "",
        tables.text(cells),
        "",
        f"untied {values['parameters_untied']:,}, tied {values['parameters_tied']:,} parameters; "
        f"{values['non_embedding']:,} without embedding, positions and head",
        f"FLOPs at context {values['context']:,}: matrix products, scores dense",
        f"cache of {values['batch']} x {values['context']:,} tokens in {values['dtype']}: "
        f"{size:,} bytes = {tables.size(size, 5)}",
    ]
    lines += [f"source: {values['source']}"] if values["source"] else []
    lines += [f"note: {note}" for note in values["notes"]]
    return "\n".join(lines)
