"""Exact parameters, FLOPs and cache of an architecture, part by part; weights are not built."""

from collections.abc import Sequence
from typing import Any

import torch

from llama_ablate.config import experiment
from llama_ablate.config.spec import ModelSpec
from llama_ablate.design import variants
from llama_ablate.errors import ConfigError, dotted
from llama_ablate.model.counts import OUTSIDE, parts, skeleton


def resolve_preset(name: str, sets: Sequence[str] = ()) -> tuple[ModelSpec, experiment.About]:
    """Return a preset's spec, with the notes about it.

    Raises ConfigError for an unknown preset, or a `--set` that does not fit.
    """
    preset = experiment.preset(name, tuple(sets))
    try:
        spec = variants.resolve(preset.model)
        parts(spec)
    except ConfigError as error:
        own = error if error.where[:1] == ("model",) else error.under("model")
        raise ConfigError(f"{dotted(own.where)}: {error.message}") from None
    return spec, preset.about


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
    length = context or spec.context
    counted = parts(spec, length, getattr(torch, dtype))
    rows: list[dict[str, Any]] = [
        {
            "part": part.name,
            "what": part.component,
            "parameters": part.parameters,
            "active_parameters": part.parameters - part.idle_parameters,
            "flops_per_token": part.flops_per_token,
            "train_flops_per_token": 3 * part.flops_per_token,
            "kv_bytes_per_token": part.kv_bytes_per_token,
            "state_bytes": batch * part.state_bytes,
        }
        for part in counted
    ]
    columns = [key for key, value in rows[0].items() if isinstance(value, int)]
    total = {key: sum(row[key] for row in rows) for key in columns}
    shared = 0 if spec.tie else spec.vocab * spec.dim
    return {
        "name": name,
        "model": spec.to_dict(),
        "context": length,
        "batch": batch,
        "dtype": dtype,
        "parts": rows,
        "total": total,
        "kv_heads": _kv_heads(spec),
        "non_embedding": sum(p.parameters for p in counted if p.name not in OUTSIDE),
        "parameters_untied": total["parameters"] + (spec.vocab * spec.dim - shared),
        "parameters_tied": total["parameters"] - shared,
        "kv_cache_bytes": total["state_bytes"],
    }


def _kv_heads(spec: ModelSpec) -> list[int]:
    """Return the numbers of key/value heads that layers have; other mixers have none."""
    model, _ = skeleton(spec)
    return sorted({b.attn.kv_heads for b in model.blocks if hasattr(b.attn, "kv_heads")})
