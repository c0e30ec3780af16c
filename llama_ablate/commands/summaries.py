"""What an architecture weighs and costs, part by part: exact, and without building its weights."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llama_ablate.config import experiment
from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import ModelSpec
from llama_ablate.design import grid
from llama_ablate.errors import ConfigError, dotted
from llama_ablate.model.counts import OUTSIDE, parts
from llama_ablate.model.decoder import REGISTRIES, build

DTYPES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


def of_preset(name: str, sets: Sequence[str] = ()) -> tuple[ModelSpec, experiment.About]:
    """Return a preset's resolved recipe and what is said about it.

    Raises ConfigError for an unknown preset, or a `--set` that does not fit.
    """
    preset = experiment.preset(name, tuple(sets))
    try:
        spec = grid.resolve(preset.model, REGISTRIES)
        parts(spec)
    except ConfigError as error:
        key = (
            dotted(error.where)
            if error.where[:1] == ("model",)
            else dotted(error.under("model").where)
        )
        raise ConfigError(f"{key}: {error.message}") from None
    return spec, preset.about


@dataclass(frozen=True)
class Rates:
    """How fast each pair of a rotation turns, in radians per position, and the model's context."""

    context: int
    rates: dict[str, list[float]]


def rates_of(name: str, sets: Sequence[str] = ()) -> Rates:
    """Return the frequencies of a preset's rotation; of a scaled one, those unscaled as well.

    Raises ConfigError for a preset whose position scheme does not rotate.
    """
    spec, _ = of_preset(name, sets)
    if spec.position.name != "rope":
        raise ConfigError(
            f"'{name}' has position '{spec.position.name}', which turns nothing; "
            "try --set model.position=rope"
        )

    def rates(choice: Choice) -> list[float]:
        model = build(replace(spec, position=choice, layers=1), "meta")
        rope: Any = REGISTRIES["position"].build(choice, head_dim=model.blocks[0].attn.rotated)
        return [float(rate) for rate in rope.frequencies()]

    found = {name: rates(spec.position)}
    if spec.position["scaling"] != "none":
        found["unscaled"] = rates(spec.position.with_options(scaling="none", factor=1.0))
    return Rates(spec.context, found)


def summarize(
    name: str,
    spec: ModelSpec,
    *,
    context: int | None = None,
    batch: int = 1,
    dtype: str = "float16",
) -> dict[str, Any]:
    """Return parameters, FLOPs per token and cache of each part, and of the whole, as plain values.

    FLOPs count matrix products, scores dense over `context` (the model's own unless given). The
    cache is that of `batch` sequences of `context` tokens in `dtype`.
    """
    length, size = context or spec.context, DTYPES[dtype]
    found = parts(spec, length)
    rows: list[dict[str, Any]] = [
        {
            "part": part.name,
            "what": part.component,
            "parameters": part.parameters,
            "flops_per_token": part.flops_per_token,
            "train_flops_per_token": 3 * part.flops_per_token,
            "kv_bytes_per_token": size * part.cached_per_token,
        }
        for part in found
    ]
    columns = [key for key, value in rows[0].items() if isinstance(value, int)]
    total = {key: sum(row[key] for row in rows) for key in columns}
    kept = min(length, dict(spec.attention.options).get("window") or length)
    shared = 0 if spec.tie else spec.vocab * spec.dim
    return {
        "name": name,
        "model": spec.to_dict(),
        "context": length,
        "batch": batch,
        "dtype": dtype,
        "parts": rows,
        "total": total,
        "non_embedding": sum(p.parameters for p in found if p.name not in OUTSIDE),
        "parameters_untied": total["parameters"] + (spec.vocab * spec.dim - shared),
        "parameters_tied": total["parameters"] - shared,
        "kv_cache_bytes": total["kv_bytes_per_token"] * kept * batch,
    }


def text(values: dict[str, Any], about: experiment.About) -> str:
    """Return a summary for a terminal."""
    import pandas as pd

    from llama_ablate.report import planned, tables

    rows = [*values["parts"], {"part": "total", "what": "", **values["total"]}]
    heads = {
        "parameters": "parameters",
        "flops_per_token": "FLOPs/token",
        "train_flops_per_token": "to train",
        "kv_bytes_per_token": "KV bytes/token",
    }
    cells = pd.DataFrame({"part": [r["part"] for r in rows], "what": [r["what"] for r in rows]})
    for key, head in heads.items():
        cells[head] = [f"{row[key]:,}" for row in rows]
    model, size = values["model"], values["kv_cache_bytes"]
    lines = [
        f"{values['name']}: {model['layers']} layers, dim {model['dim']:,}, {model['heads']} heads "
        f"of {model['head_dim']}, block {_name(model['block'])}, context {model['context']:,}",
        "",
        tables.text(cells),
        "",
        f"untied {values['parameters_untied']:,}, tied {values['parameters_tied']:,} parameters; "
        f"{values['non_embedding']:,} without embedding, positions and head",
        f"FLOPs at context {values['context']:,}: matrix products, scores dense",
        f"cache of {values['batch']} x {values['context']:,} tokens in {values['dtype']}: "
        f"{size:,} bytes = {planned.size(size, 5)}",
    ]
    lines += [f"source: {about.source}"] if about.source else []
    lines += [f"note: {note}" for note in about.notes]
    return "\n".join(lines)


def _name(entry: Any) -> str:
    return entry if isinstance(entry, str) else str(entry["name"])
