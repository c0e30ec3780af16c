"""Canonical model specs, equal for specs that describe the same function."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import (
    DEPTH_SCALED,
    SLOTS,
    DropoutRates,
    LayerSpec,
    ModelSpec,
    over_depth,
)
from llama_ablate.model.decoder import build
from llama_ablate.model.positions import POSITIONS

#: Options of each scaling of RoPE, and their keys in Hugging Face's `rope_scaling`.
ROPE_OPTIONS = {
    "llama3": {
        "low_freq": "low_freq_factor",
        "high_freq": "high_freq_factor",
        "original_context": "original_max_position_embeddings",
    },
    "yarn": {
        "original_context": "original_max_position_embeddings",
        "beta_slow": "beta_slow",
        "beta_fast": "beta_fast",
        "truncate": "truncate",
    },
}
_SCALING_OPTIONS = {option for options in ROPE_OPTIONS.values() for option in options}


def shared_heads(heads: int, kv_heads: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attention (mha, gqa or mqa) with these numbers of query and key/value heads."""
    if kv_heads == heads:
        return {"name": "mha", **options}
    if kv_heads == 1:
        return {"name": "mqa", **options}
    return {"name": "gqa", "kv_heads": kv_heads, **options}


def kv_heads_of(heads: int, attention: Choice) -> int:
    """Return the number of key/value heads of an attention with `heads` query heads."""
    alone = 1 if attention.name == "mqa" else heads
    return int(dict(attention.options).get("kv_heads") or alone)


def canonical(spec: ModelSpec) -> ModelSpec:
    """Return the canonical spec: options without effect on a trained model get their defaults."""
    layers = [_canonical(spec, spec.layer(i)) for i in range(spec.layers)]
    slots: dict[str, Any] = {
        slot: over_depth([getattr(layer, slot) for layer in layers]) for slot in SLOTS
    }
    # Dropout acts in training only; a separator does not act on a text of one document, and other
    # projects read every text as one document.
    return replace(spec, **slots, init=DEPTH_SCALED, dropout=DropoutRates(), separator=None)


@lru_cache
def _canonical(spec: ModelSpec, layer: LayerSpec) -> LayerSpec:
    components: dict[str, Any] = {slot: getattr(layer, slot) for slot in SLOTS}
    block = build(replace(spec, layers=1, **components), "meta").blocks[0]
    attention = layer.attention
    if attention.name in ("mha", "gqa", "mqa"):
        options = {k: v for k, v in attention.options if k != "kv_heads"}
        named = shared_heads(spec.heads, kv_heads_of(spec.heads, attention), options)
        attention = Choice(named.pop("name"), tuple(named.items()))
    if dict(attention.options).get("qkv_bias") == spec.bias:
        attention = attention.with_options(qkv_bias=None)
    sizes = {"width": block.ffn.width, "multiple_of": 8, "multiplier": 1.0}
    feedforward = layer.feedforward.with_options(**sizes)
    position = layer.position
    if not block.attn.rotated and position.name in ("rope", "alibi"):
        position = POSITIONS.resolve("none")  # it does not act on this layer
    if position.name == "rope":
        used = ROPE_OPTIONS.get(position["scaling"], {})
        unused = {k: v for k, v in position.defaults if k in _SCALING_OPTIONS and k not in used}
        position = position.with_options(**unused)
    return replace(layer, attention=attention, feedforward=feedforward, position=position)
