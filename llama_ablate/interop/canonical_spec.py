"""Canonical specs: two architectures that compute the same function have equal ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import DEPTH_SCALED, SLOTS, DropoutRates, ModelSpec
from llama_ablate.errors import ConfigError


def shared_heads(heads: int, kv_heads: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attention (mha, gqa or mqa) in which `heads` query heads share `kv_heads`."""
    if kv_heads == heads:
        return {"name": "mha", **options}
    return (
        {"name": "mqa", **options}
        if kv_heads == 1
        else {"name": "gqa", "kv_heads": kv_heads, **options}
    )


def kv_heads_of(spec: ModelSpec) -> int:
    """Return how many key/value heads the attention has; 0 where it has no such number."""
    names = {"mha": spec.heads, "mqa": 1}
    attention = spec.attention.at(0)
    return int(dict(attention.options).get("kv_heads") or names.get(attention.name, 0))


def canonical(spec: ModelSpec, width: int) -> ModelSpec:
    """Return the canonical spec: what changes nothing in a trained model has its default.

    Raises ConfigError for layers that differ: no family of checkpoints can express them.
    """
    if patterned := [slot for slot in SLOTS if len(getattr(spec, slot).choices) > 1]:
        name = f"{patterned[0]} '{getattr(spec, patterned[0]).name}'"
        raise ConfigError(f"no family can express layers that differ, as in {name}")
    layer = spec.layer(0)
    attention = layer.attention
    if attention.name in ("mha", "gqa", "mqa"):
        # Whether heads are copied changes what a pass costs, and nothing that it computes.
        options = {k: v for k, v in attention.options if k not in ("kv_heads", "repeat")}
        named = shared_heads(spec.heads, kv_heads_of(spec), options)
        if named.get("qkv_bias") == spec.bias:
            named["qkv_bias"] = None
        attention = Choice(named.pop("name"), tuple(named.items()))
    feedforward = layer.feedforward.with_options(width=width, multiple_of=8, multiplier=1.0)
    position = layer.position
    if position.name == "rope":
        unread = {"low_freq": 1.0, "high_freq": 4.0, "beta_slow": 1.0, "beta_fast": 32.0}
        read = {"llama3": ("low_freq", "high_freq"), "yarn": ("beta_slow", "beta_fast")}
        if (scaling := position["scaling"]) not in read:
            unread["original_context"] = 8192
        kept = read.get(scaling, ())
        position = position.with_options(**{k: v for k, v in unread.items() if k not in kept})
    return replace(
        spec,
        attention=attention,
        feedforward=feedforward,
        position=position,
        init=DEPTH_SCALED,
        dropout=DropoutRates(),
        separator=None,  # of one document, which is what others read, it changes nothing
    )
