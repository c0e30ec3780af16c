"""Model architectures: `ModelSpec`, with every default filled in, and patterns over depth.

In a pattern, components repeat from layer to layer. Single layers may be set by index, counted from
0, or from the last layer as -1:

    attention: {pattern: [{name: mha, window: 64}, mha], layers: {-1: mqa}}
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeGuard

from llama_ablate.config.registry import Choice, Entry, Registry
from llama_ablate.config.validation import quote
from llama_ablate.errors import ConfigError, Where, nearest, need

_PATTERN_KEYS = ("pattern", "layers")
#: Slots of a layer; each has a component, or a pattern of components over depth.
SLOTS = ("norm", "position", "attention", "feedforward", "block")
#: Rules that apply to the whole model; a rule is part of the id only if it is not the default.
RULES = ("init", "parametrization")


DEPTH_SCALED = Choice("depth-scaled")
STANDARD = Choice("standard")


@dataclass(frozen=True)
class Pattern:
    """Components of one slot over depth: `choices` repeat from layer to layer. Hashable.

    `choices` is the shortest list that gives the same layers, so that patterns with equal layers
    are equal, however they were written.
    """

    choices: tuple[Choice, ...]

    def __str__(self) -> str:
        return " / ".join(map(str, self.choices))

    @property
    def name(self) -> str:
        """The names of the components, `mha/gqa`."""
        return "/".join(dict.fromkeys(choice.name for choice in self.choices))

    def at(self, layer: int) -> Choice:
        """Return the component of a layer, counted from 0."""
        return self.choices[layer % len(self.choices)]

    def with_options(self, **changes: Any) -> "Choice | Pattern":
        """Return a copy with these options changed in every component that has them."""
        return over_depth([choice.with_options(**changes) for choice in self.choices])

    def entry(self) -> Entry:
        """Return the YAML entry that resolves to this pattern."""
        return {"pattern": [choice.entry() for choice in self.choices]}

    def identity(self) -> dict[str, Any]:
        """Return each component's name and non-default options, for hashing.

        RoPE with no rotation in every n-th layer is hashed as RoPE with the option `nope_every`, as
        it was before there were patterns, so that finished runs keep their ids. (If n was larger
        than the depth, the option had no effect; the slot is now `rope` alone, with another id.)
        """
        *others, last = self.choices
        if last.name == "none" and others[0].name == "rope" and len(set(others)) == 1:
            return others[0].identity() | {"nope_every": len(self.choices)}
        return {"pattern": [choice.identity() for choice in self.choices]}


#: Value of a slot in a model.
Slot = Choice | Pattern


@dataclass(frozen=True)
class DropoutRates:
    """Dropout rates of embeddings, attention weights and sublayer outputs. Hashable."""

    #: Rate for the token embeddings with their positions.
    embedding: float = 0.0
    #: Rate for the attention weights.
    attention: float = 0.0
    #: Rate for the outputs of attention and feed-forward, before they are added to the residual
    #: stream.
    sublayer: float = 0.0

    @classmethod
    def of(cls, entry: float | Mapping[str, float]) -> "DropoutRates":
        """Parse a YAML entry: one rate, or a mapping from place to rate."""
        return cls(**entry) if isinstance(entry, Mapping) else cls(entry, entry, entry)

    def entry(self) -> float | dict[str, float]:
        """Return the YAML entry that parses to these rates."""
        rates = asdict(self)
        return self.embedding if len(set(rates.values())) == 1 else rates


@dataclass(frozen=True)
class LayerSpec:
    """The components of one layer. Hashable."""

    norm: Choice
    position: Choice
    attention: Choice
    feedforward: Choice
    block: Choice


@dataclass(frozen=True)
class ModelSpec:
    """Model architecture: sizes, and the component or pattern of each slot. Hashable.

    A field with a default is part of the id only if its value differs from the default.
    """

    vocab: int
    dim: int
    layers: int
    heads: int
    head_dim: int
    context: int
    norm: Slot
    position: Slot
    attention: Slot
    feedforward: Slot
    block: Slot
    bias: bool = False
    tie: bool = False
    init_std: float = 0.02
    logit_softcap: float | None = None
    #: Token id with which each document begins, for a per-document attention mask; None if there is
    #: no mask, and text is read as one document.
    separator: int | None = None
    init: Choice = DEPTH_SCALED
    dropout: DropoutRates = DropoutRates()
    parametrization: Choice = STANDARD

    def layer(self, index: int) -> LayerSpec:
        """Return the components of a layer, counted from 0."""
        return LayerSpec(**{slot: getattr(self, slot).at(index) for slot in SLOTS})

    @property
    def period(self) -> int:
        """Number of layers after which the components repeat; 1 if all layers are equal."""
        lengths = (len(getattr(self, slot).choices) for slot in SLOTS)
        return min(self.layers, math.lcm(*lengths))

    @property
    def sizes(self) -> dict[str, Any]:
        """Model sizes by name, passed as arguments to component constructors."""
        return {name: getattr(self, name) for name in SIZES}

    def to_dict(self) -> dict[str, Any]:
        """Return the architecture as plain JSON values, with components as YAML entries."""
        components = {key: getattr(self, key).entry() for key in (*SLOTS, *RULES)}
        return {**self.sizes, **components, "dropout": self.dropout.entry()}

    def with_width(self, width: int) -> "ModelSpec":
        """Return the same architecture with another feed-forward width, in all layers."""
        return replace(self, feedforward=self.feedforward.with_options(width=width))

    def with_components(self, components: Mapping[str, Slot]) -> "ModelSpec":
        """Return the same architecture with other components in some slots."""
        changes: dict[str, Any] = dict(components)
        return replace(self, **changes)

    @cached_property
    def id(self) -> str:
        """Hash of all values that differ from the defaults, in eight hexadecimal digits."""
        return digest(self.identity())

    def identity(self) -> dict[str, Any]:
        """Return the components, and the non-default sizes and rules, for hashing."""
        defaults = {f.name: f.default for f in fields(self)}
        sizes = {k: v for k, v in self.sizes.items() if v != defaults[k]}
        if self.dropout != defaults["dropout"]:
            sizes["dropout"] = self.dropout.entry()
        rules = {k: getattr(self, k) for k in RULES if getattr(self, k) != defaults[k]}
        slots = {slot: getattr(self, slot) for slot in SLOTS}
        return sizes | {key: choice.identity() for key, choice in (rules | slots).items()}


#: Sizes that positional parameters of components may name, in addition to `layer`, a layer's index.
SIZES = tuple(f.name for f in fields(ModelSpec) if f.name not in (*SLOTS, *RULES, "dropout"))


def digest(value: Any, length: int = 8) -> str:
    """Hash a plain value to hexadecimal digits, equal on every machine and Python."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def over_depth(layers: Sequence[Choice]) -> Slot:
    """Return the shortest pattern of these layers, or the component if all are equal."""
    period = next(
        n
        for n in range(1, len(layers) + 1)
        if all(choice == layers[i % n] for i, choice in enumerate(layers))
    )
    return layers[0] if period == 1 else Pattern(tuple(layers[:period]))


def resolve_slot(registry: Registry, entry: Entry, layers: int, where: Where = ()) -> Slot:
    """Resolve a component, or a pattern of components over `layers` layers.

    Raises ConfigError for an unknown component or option, a pattern longer than the model is deep,
    and a layer out of range.
    """
    if not _is_pattern(entry):
        return over_depth(_without_nope(registry, registry.resolve(entry, where), layers, where))
    for key in entry:
        hint = "" if key in _PATTERN_KEYS else nearest(key, _PATTERN_KEYS)
        need(not hint, f"a pattern has no key '{key}'{hint}", *where, key)
    period = entry.get("pattern")
    at: Where = (*where, "pattern")
    if not isinstance(period, Sequence) or isinstance(period, str) or not period:
        raise ConfigError(f"a pattern is a list of components, not {quote(period)}", at)
    said = f"a pattern of {len(period)} components is longer than {layers} layer{'s'[: layers - 1]}"
    need(len(period) <= layers, said, *at)
    chosen = [registry.resolve(part, (*at, i)) for i, part in enumerate(period)]
    by_layer = [chosen[layer % len(chosen)] for layer in range(layers)]
    for layer, choice in _single(registry, entry.get("layers", {}), layers, (*where, "layers")):
        by_layer[layer] = choice
    return over_depth(by_layer)


def shorten_entry(registry: Registry, entry: Any, where: Where = ()) -> Any:
    """Return an entry (component, pattern or list) without options at their defaults."""
    if isinstance(entry, list):
        return [shorten_entry(registry, part, (*where, i)) for i, part in enumerate(entry)]
    if not _is_pattern(entry):
        return registry.resolve(entry, where).shortest()
    layers = entry.get("layers", {})
    short = {
        key: shorten_entry(registry, layer_entry, (*where, "layers"))
        for key, layer_entry in layers.items()
    }
    pattern = shorten_entry(registry, entry["pattern"], (*where, "pattern"))
    return {"pattern": pattern, "layers": short}


def _is_pattern(entry: Entry) -> TypeGuard[dict[str, Any]]:
    return isinstance(entry, dict) and "name" not in entry and bool({*_PATTERN_KEYS} & {*entry})


def _single(
    registry: Registry, entries: Any, layers: int, where: Where
) -> list[tuple[int, Choice]]:
    """Parse the `layers` key of a pattern; return pairs of layer index and component."""
    if not isinstance(entries, Mapping):
        raise ConfigError(f"'layers' maps layers to components, not {quote(entries)}", where)
    chosen: dict[int, Choice] = {}
    for key, entry in entries.items():
        at: Where = (*where, key)
        try:
            layer = int(str(key))
        except ValueError:
            layer = layers
        said = f"layer {quote(key)}: must be a whole number from {-layers} to {layers - 1}"
        need(-layers <= layer < layers, said, *at)
        said = f"layer {layer} is set twice, from the first and from the last"
        need(layer % layers not in chosen, said, *at)
        chosen[layer % layers] = registry.resolve(entry, at)
    return list(chosen.items())


def _without_nope(
    registry: Registry, choice: Choice, layers: int, where: Where
) -> Sequence[Choice]:
    """Expand RoPE's option `nope_every: n`: replace the component of every n-th layer by `none`.

    Any other component is returned as a list of one.
    """
    every = dict(choice.options).get("nope_every")
    if every is None:
        return [choice]
    need(every >= 1, f"nope_every {every} must be 1 or more", *where, "nope_every")
    rope, none = choice.with_options(nope_every=None), registry.resolve("none")
    return [none if (layer + 1) % every == 0 else rope for layer in range(layers)]
