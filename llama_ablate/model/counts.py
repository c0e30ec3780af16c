"""Exact counts of parameters, FLOPs and state bytes, without allocating weights.

One layer of each distinct kind is built on torch's meta device.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import SLOTS, ModelSpec
from llama_ablate.errors import ConfigError, NotProvidedError
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.decoder import Decoder
from llama_ablate.model.linear import numel
from llama_ablate.model.state import Stateful


@dataclass(frozen=True)
class Part:
    """Parameters, FLOPs and state bytes of one part of a model, over all layers."""

    name: str
    component: str
    parameters: int
    #: Forward FLOPs per token of its matrix products; NaN if a component does not count them.
    flops_per_token: float = 0
    #: Bytes that one further token adds to the state of a sequence as long as the context: 0 for a
    #: full window and for a recurrence; NaN if not counted.
    kv_bytes_per_token: float = 0
    #: Bytes of the state of one sequence as long as the context; NaN if not counted.
    state_bytes: float = 0
    #: Parameters of the experts that a token is not routed to.
    idle_parameters: int = 0


#: Fields of a part that are summed over layers.
_COUNTED = [field.name for field in fields(Part) if field.name not in ("name", "component")]


@dataclass(frozen=True)
class Counts:
    """Parameters, FLOPs and state bytes of a whole model; NaN if not counted."""

    parameters: int
    #: Parameters without token embedding, output head and learned position table.
    non_embedding: int
    #: Forward FLOPs per token at the training context, with dense scores; training costs three
    #: times as many.
    flops_per_token: float
    #: Bytes that one further token adds to the state of a sequence as long as the training context,
    #: in a 16-bit format: 0 for a full window and for a recurrence.
    kv_bytes_per_token: float
    #: Bytes of the state of one sequence as long as the training context, in a 16-bit format.
    state_bytes: float
    #: Parameters that a token passes: all but those of experts that it is not routed to.
    active_parameters: int

    @property
    def active_non_embedding(self) -> int:
        """Number of active parameters, without embedding, position table and head."""
        return self.non_embedding - (self.parameters - self.active_parameters)

    @property
    def train_flops_per_token(self) -> float:
        """Training FLOPs per token: a backward pass takes twice the FLOPs of a forward pass."""
        return 3 * self.flops_per_token

    @property
    def work(self) -> float:
        """Training FLOPs per token, used only to predict time.

        If a component does not count FLOPs, the estimate is 6 per active parameter.
        """
        counted = not math.isnan(self.flops_per_token)
        return self.train_flops_per_token if counted else 6 * self.active_parameters


OUTSIDE = ("embedding", "position", "head")  # parts outside of the blocks


def parts(
    spec: ModelSpec, context: int | None = None, dtype: torch.dtype = torch.float16
) -> tuple[Part, ...]:
    """Count parameters, FLOPs and state bytes of each part of a model, with states in `dtype`.

    Each distinct layer is built once and multiplied by the number of its occurrences; a test
    compares the sums with a whole model. Raises ConfigError if the components do not fit the sizes.
    """
    model, times = build_meta_model(spec)
    length = context or spec.context
    by_slot = zip(*(_count_block(block, length, dtype) for block in model.blocks), strict=True)
    slots = "attention", "feedforward", "norm"
    last = spec.norm.at(spec.layers - 1).name if model.blocks[-1].final_norm else "none"
    head = "the embedding, shared" if spec.tie else f"{spec.dim:,} x {spec.vocab:,}"
    head_parameters = 0 if spec.tie else numel(model.head)
    return (
        Part("embedding", f"{spec.vocab:,} x {spec.dim:,}", numel(model.embedding)),
        Part("position", spec.position.name, sum(map(numel, model.positions.values()))),
        *(
            _sum_over_layers(spec, slot, times, alike)
            for slot, alike in zip(slots, by_slot, strict=True)
        ),
        Part("last norm", last, numel(model.norm)),
        Part("head", head, head_parameters, 2 * model.head.weight.numel()),
    )


def _sum_over_layers(
    spec: ModelSpec, slot: str, times: dict[int, int], alike: Sequence[Part]
) -> Part:
    """Sum the counts of one part over all layers.

    `alike` has the part's counts in each distinct layer; `times` has the number of occurrences of
    each distinct layer, by the layer's index.
    """
    components: Counter[str] = Counter()
    sums: dict[str, Any] = dict.fromkeys(_COUNTED, 0)
    for (layer, n), part in zip(times.items(), alike, strict=True):
        components[part.component.format(getattr(spec, slot).at(layer).name)] += n
        sums |= {name: sums[name] + n * getattr(part, name) for name in _COUNTED}
    listed = " + ".join(f"{n} x {component}" for component, n in components.items())
    return replace(alike[0], component=listed, **sums)


@lru_cache(maxsize=100_000)
def count(spec: ModelSpec) -> Counts:
    """Count a whole model. Raises ConfigError if the components do not fit the spec's sizes."""
    by_part = parts(spec)
    parameters = sum(part.parameters for part in by_part)
    return Counts(
        parameters=parameters,
        non_embedding=sum(part.parameters for part in by_part if part.name not in OUTSIDE),
        flops_per_token=sum(part.flops_per_token for part in by_part),
        kv_bytes_per_token=sum(part.kv_bytes_per_token for part in by_part),
        state_bytes=sum(part.state_bytes for part in by_part),
        active_parameters=parameters - sum(part.idle_parameters for part in by_part),
    )


def summarize(
    name: str,
    spec: ModelSpec,
    *,
    context: int | None = None,
    batch: int = 1,
    dtype: str = "float16",
) -> dict[str, Any]:
    """Return parameters, FLOPs per token and cache bytes by part and in total, as plain values.

    FLOPs are those of matrix products, with dense scores over `context` tokens (by default the
    model's context). The cache is for `batch` sequences of `context` tokens in `dtype`.
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
    """Return the distinct numbers of key/value heads over the layers."""
    model, _ = build_meta_model(spec)
    return sorted({b.attn.kv_heads for b in model.blocks if hasattr(b.attn, "kv_heads")})


def exact(spec: ModelSpec, name: str) -> int:
    """Return a model's count by field name of `Counts`. Raises ConfigError if the count is NaN."""
    if math.isnan(value := getattr(count(spec), name)):
        raise ConfigError(
            f"{name} is not provided by '{spec.attention}', so neither 'match' nor 'budget' can be "
            "of it; allowed: parameters, active_parameters or none; tokens, bytes or seconds",
            ("attention",),
        )
    return int(value)


def states(spec: ModelSpec, contexts: tuple[int, ...]) -> tuple[float, ...]:
    """Return the state bytes of one sequence over all layers, for each of several contexts.

    Bytes are those of a 16-bit format, or NaN if a mixer does not count them. Raises ConfigError if
    the components do not fit the sizes.
    """
    model, times = build_meta_model(spec)
    layers = [
        (n, _list_stateful(block)) for n, block in zip(times.values(), model.blocks, strict=True)
    ]
    return tuple(
        sum(n * _state(layer_parts, at, torch.float16) for n, layer_parts in layers)
        for at in contexts
    )


@lru_cache(maxsize=8192)
def build_meta_model(spec: ModelSpec) -> tuple[Decoder, dict[int, int]]:
    """Build a model of one layer per distinct kind on the meta device; count each kind.

    Returns a model of only these layers, and a dict from the index of each kind's first layer to
    the number of layers of the kind. The returned models share modules, so callers must not change
    a model. Sharing saves seconds for a model of a thousand layers, or for a thousand variants.
    Raises ConfigError if the components do not fit the sizes.
    """
    times = distinct(spec)
    with torch.device("meta"):
        return _MetaModel(spec, layers=list(times)), times


_PARTS: dict[Any, nn.Module] = {}


class _MetaModel(Decoder):
    """Decoder that shares its parts with other decoders, since a large grid has few distinct parts.

    No part occurs twice in one model.
    """

    def _build_part(self, slot: str, choice: Choice, name: str, **sizes: Any) -> nn.Module:
        """Return the cached part with these sizes, or build and cache one."""
        norm = self.spec.norm.at(sizes["layer"]) if "norm" in sizes else None
        part_sizes = [size for size_name, size in sizes.items() if size_name != "norm"]
        key = slot, choice, name, norm, *self.spec.sizes.values(), *part_sizes
        if key not in _PARTS:
            _PARTS[key] = super()._build_part(slot, choice, name, **sizes)
        return _PARTS[key]


def forget() -> None:
    """Clear all cached counts, after components have changed."""
    _PARTS.clear()
    for cached in (build_meta_model, count, _count_block, _count_state):
        cached.cache_clear()


def distinct(spec: ModelSpec) -> dict[int, int]:
    """Return the number of layers of each kind, by the index of the kind's first layer.

    A layer with a component that uses the layer's index is a kind by itself. The kind of the last
    layer comes last.
    """
    kinds: dict[Any, list[int]] = {}
    for index in range(spec.layers):
        layer = spec.layer(index)
        asks = any("layer" in REGISTRIES[s].sizes(getattr(layer, s).name) for s in SLOTS)
        kinds.setdefault((layer, index if asks else None), []).append(index)
    by_last = sorted(kinds.values(), key=lambda layers: layers[-1])
    return {layers[0]: len(layers) for layers in by_last}


@lru_cache(maxsize=10_000)  # the skeletons of a large grid share their blocks
def _count_block(block: Any, length: int, dtype: torch.dtype) -> tuple[Part, Part, Part]:
    """Count the attention, feed-forward network and norms of a block.

    The field `component` of each part has `{}` where the caller inserts the component's name.
    """
    stateful = _list_stateful(block)
    attention_parts, feedforward_parts = (
        [part for part in stateful if part in {*slot.modules()}] for slot in (block.attn, block.ffn)
    )
    rest = [part for part in stateful if part not in (*attention_parts, *feedforward_parts)]
    attention = Part(
        "attention",
        "{}",
        numel(block.attn),
        _call_count(block.attn, "flops", length),
        _state(stateful, length + 1, dtype) - _state(stateful, length, dtype),
        _state(attention_parts, length, dtype),
    )
    feedforward = Part(
        "feedforward",
        f"{{}}, width {block.ffn.width:,}",
        numel(block.ffn),
        _call_count(block.ffn, "flops"),
        state_bytes=_state(feedforward_parts, length, dtype),
        idle_parameters=_count_idle(block.ffn),
    )
    norms = Part(
        "norms",
        f"{len(block.norms)} x {{}}",
        numel(block) - attention.parameters - feedforward.parameters,
        _call_count(block, "flops", length) if hasattr(block, "flops") else 0,
        state_bytes=_state(rest, length, dtype),
    )
    return attention, feedforward, norms


def _list_stateful(block: Any) -> list[Any]:
    """List a layer's modules with a state between tokens: its mixer and Stateful modules."""
    return [block.attn, *(part for part in block.modules() if isinstance(part, Stateful))]


def _state(parts: Iterable[Any], context: int, dtype: torch.dtype) -> float:
    """Sum the state bytes of parts for a sequence of `context` tokens."""
    return sum(_count_state(part, context, dtype) for part in parts)


@lru_cache(maxsize=100_000)  # a part has the same state in all models that share the part
def _count_state(part: Any, context: int, dtype: torch.dtype) -> float:
    """Count the bytes of a part's state for one sequence; NaN if the part provides no state."""
    try:
        return int(part.new_state(1, context, dtype=dtype, device="meta").nbytes)
    except NotProvidedError:
        return math.nan


def _count_idle(ffn: Any) -> int:
    """Count a feed-forward network's inactive parameters."""
    has = hasattr(ffn, "active_parameters")
    return numel(ffn) - int(_call_count(ffn, "active_parameters")) if has else 0


def _call_count(module: Any, name: str, *sizes: int) -> float:
    """Call a counting method of a component; return NaN if the component lacks the method.

    Raises ConfigError if the result is no number.
    """
    try:
        value = getattr(module, name)(*sizes)
    except NotProvidedError:
        return math.nan
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        what = f"{name}() of {type(module).__name__} returns {value!r}"
        raise ConfigError(f"{what}: it is to count, and return a whole number") from None
