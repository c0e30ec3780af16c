"""The command `summary`: count an architecture's parameters, FLOPs and KV-cache bytes.

One architecture is shown part by part, several architectures in one table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import Options, argument, count, option, overrides
from llama_ablate.errors import ConfigError

HELP = "count parameters, FLOPs and KV bytes of an architecture, or compare several"
EXAMPLE = "summary llama1-65b llama2-70b llama3-70b --batch 16"
_COLUMNS = {
    "parameters": "parameters",
    "active_parameters": "active",
    "flops_per_token": "FLOPs/token",
    "train_flops_per_token": "to train",
    "kv_bytes_per_token": "KV bytes/token",
}


@dataclass(frozen=True, kw_only=True)
class SummaryOptions(Options):
    """Options of `summary`: the architectures, and the size of the KV cache."""

    what: tuple[str, ...] = argument(
        "PRESET|CHECKPOINT",
        "a preset's name, or a checkpoint: one is shown part by part, several in one table; "
        "without one, the presets are listed",
        (),
        "*",
    )
    sets: tuple[str, ...] = overrides("model.attention=mqa")
    context: int | None = option(None, "tokens in cache and scores (default: its own)", "N", count)
    batch: int = option(1, "sequences in the cache (default: 1)", "N", count)
    dtype: Literal["float32", "float16", "bfloat16", "int8"] = option(
        "float16", "of the cache (default: float16)"
    )


def run(options: SummaryOptions) -> Answer:
    """Summarize architectures without allocating weights; without arguments, list the presets."""
    from llama_ablate.config import experiment

    if not options.what:
        if options != SummaryOptions(json=options.json, plugins=options.plugins):
            raise ConfigError("without a preset or checkpoint the presets are listed: no options")
        names = {name: experiment.preset(name).about.source for name in experiment.presets()}
        return Answer("\n".join(f"{name:18s} {source}" for name, source in names.items()), names)
    rows = [_values(name, options) for name in options.what]
    return Answer(text(rows[0]), rows[0]) if len(rows) == 1 else Answer(table(rows), rows)


def _values(name: str, options: SummaryOptions) -> dict[str, Any]:
    from llama_ablate.config import experiment
    from llama_ablate.design.variants import resolve_preset
    from llama_ablate.model.counts import summarize

    if name in experiment.presets() or not Path(name).exists():
        spec, about = resolve_preset(name, options.sets)
    else:
        from llama_ablate.interop.loader import open_spec

        if options.sets:
            raise ConfigError("--set changes a preset; a checkpoint is what it is")
        spec, about = open_spec(Path(name)), experiment.About()
    counted = summarize(
        name, spec, context=options.context, batch=options.batch, dtype=options.dtype
    )
    return counted | about.model_dump()


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Tabulate the components and sizes of several architectures, one per row."""
    import pandas as pd

    from llama_ablate.config.labels import entry_text
    from llama_ablate.evidence import written
    from llama_ablate.report import tables

    def cells(row: Mapping[str, Any]) -> dict[str, str]:
        model = row["model"]
        slots = ("norm", "position", "feedforward", "attention")
        names = [entry_text(model[slot], options=False) for slot in slots]
        size = written.size(row["kv_cache_bytes"])
        return {
            "model": row["name"],
            "parameters": f"{row['total']['parameters']:,}",
            **dict(zip(("norm", "position", "activation"), names, strict=False)),
            "heads": str(model["heads"]),
            "key/value heads": ", ".join(map(str, row["kv_heads"])) or names[-1],
            "context": f"{model['context']:,}",
            "vocabulary": f"{model['vocab']:,}",
            "training tokens": _tokens(row),
            "KV bytes/token": written.number(row["total"]["kv_bytes_per_token"], ","),
            "cache": f"{row['batch']:,} x {row['context']:,}: {size}",
        }

    return tables.text(pd.DataFrame(list(map(cells, rows))))


def _tokens(values: Mapping[str, Any]) -> str:
    tokens = values["training_tokens"]
    return f"{tokens / 1e12:g}T" if tokens else "-"


def text(values: Mapping[str, Any]) -> str:
    """Format the summary of one architecture for a terminal."""
    import pandas as pd

    from llama_ablate.config.labels import entry_text
    from llama_ablate.evidence import written
    from llama_ablate.report import tables

    total, model, size = values["total"], values["model"], values["kv_cache_bytes"]
    rows = [*values["parts"], {"part": "total", "what": "", **total}]
    counts = pd.DataFrame(rows)[["part", "what", *_COLUMNS]]
    if total["active_parameters"] == total["parameters"]:
        del counts["active_parameters"]
    for column in counts.columns[2:]:
        counts[column] = [written.number(row[column], ",") for row in rows]
    cache = f"cache of {values['batch']} x {values['context']:,} tokens in {values['dtype']}: "
    lines = [
        f"{values['name']}: {model['layers']} layers, dim {model['dim']:,}, {model['heads']} heads "
        f"of {model['head_dim']}, block {entry_text(model['block'], options=False)}, context "
        f"{model['context']:,}",
        "",
        tables.text(counts.rename(columns=_COLUMNS)),
        "",
        f"untied {values['parameters_untied']:,}, tied {values['parameters_tied']:,} parameters; "
        f"{values['non_embedding']:,} without embedding, positions and head",
        f"at context {values['context']:,}: FLOPs of matrix products, scores dense; KV bytes that "
        "one further token adds",
        *([f"{cache}{size:,} bytes = {written.size(size, 5)}"] if size >= 0 else []),  # not NaN
        f"source: {values['source'] or '-'}; trained on {_tokens(values)} tokens",
        *(f"note: {note}" for note in values["notes"]),
    ]
    return "\n".join(lines)
