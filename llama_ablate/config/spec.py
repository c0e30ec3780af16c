"""Architectures: components of a slot over depth, and ModelSpec, with every default filled in.

Components may repeat down the layers, and single layers may be set, from 0 or, below 0, the last:

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
from llama_ablate.errors import ConfigError, Where, nearest

_PATTERN_KEYS = ("pattern", "layers")
#: A component each, or a pattern of components over depth.
SLOTS = ("norm", "position", "attention", "feedforward", "block")
#: One for the whole model, each with a default, which is no part of the id.
RULES = ("init", "parametrization")


DEPTH_SCALED = Choice("depth-scaled")
STANDARD = Choice("standard")


@dataclass(frozen=True)
class Pattern:
    """Components of one slot over depth: `choices` repeat down the layers. Hashable.

    `choices` is the shortest list that gives the same layers, so two ways to write them are equal.
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
        """Return a copy in which the components that have these options have other values."""
        return over_depth([choice.with_options(**changes) for choice in self.choices])

    def entry(self) -> Entry:
        """Return what one would write in YAML to get this pattern again."""
        return {"pattern": [choice.entry() for choice in self.choices]}

    def identity(self) -> dict[str, Any]:
        """Return each component's name and non-default options, for hashing.

        RoPE without rotation in every n-th layer is hashed as its own option, as it was before
        there were patterns: finished runs keep their ids. (Where n was beyond the depth it changed
        nothing, and is `rope` alone now, another id.)
        """
        *others, last = self.choices
        if last.name == "none" and others[0].name == "rope" and len(set(others)) == 1:
            return others[0].identity() | {"nope_every": len(self.choices)}
        return {"pattern": [choice.identity() for choice in self.choices]}


#: What a slot of a model holds.
Slot = Choice | Pattern


@dataclass(frozen=True)
class DropoutRates:
    """The share of numbers that are dropped while training, at each kind of place. Hashable."""

    #: Of the token embeddings with their positions.
    embedding: float = 0.0
    #: Of the attention weights.
    attention: float = 0.0
    #: Of what attention and feed-forward add to the stream.
    sublayer: float = 0.0

    @classmethod
    def of(cls, entry: float | Mapping[str, float]) -> "DropoutRates":
        """Make the rates of an entry: one number for all places, or one by name for some."""
        return cls(**entry) if isinstance(entry, Mapping) else cls(entry, entry, entry)

    def entry(self) -> float | dict[str, float]:
        """Return what one would write in YAML to get these rates again."""
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
    """Architecture: sizes, and the components of each slot. Hashable.

    What has a default here is part of the id only where it differs from it.
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
    #: The token that each document begins with, where no token is to see those of a document
    #: before its own; None where a text is read as one.
    separator: int | None = None
    init: Choice = DEPTH_SCALED
    dropout: DropoutRates = DropoutRates()
    parametrization: Choice = STANDARD

    def layer(self, index: int) -> LayerSpec:
        """Return the components of a layer, counted from 0."""
        return LayerSpec(**{slot: getattr(self, slot).at(index) for slot in SLOTS})

    @property
    def period(self) -> int:
        """Number of layers before they repeat; 1 if all are equal."""
        lengths = (len(getattr(self, slot).choices) for slot in SLOTS)
        return min(self.layers, math.lcm(*lengths))

    @property
    def sizes(self) -> dict[str, Any]:
        """Model sizes by name, passed as arguments to component constructors."""
        return {name: getattr(self, name) for name in SIZES}

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, components as YAML would give them."""
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
        """Eight hexadecimal digits: the hash of what differs from the defaults."""
        return digest(self.identity())

    def identity(self) -> dict[str, Any]:
        """Return the non-default sizes, rules and options, for hashing."""
        defaults = {f.name: f.default for f in fields(self)}
        sizes = {k: v for k, v in self.sizes.items() if v != defaults[k]}
        if self.dropout != defaults["dropout"]:
            sizes["dropout"] = self.dropout.entry()
        rules = {k: getattr(self, k) for k in RULES if getattr(self, k) != defaults[k]}
        slots = {slot: getattr(self, slot) for slot in SLOTS}
        return sizes | {key: choice.identity() for key, choice in (rules | slots).items()}


#: Sizes that the positional parameters of components may name, beside `layer`, a layer's index.
SIZES = tuple(f.name for f in fields(ModelSpec) if f.name not in (*SLOTS, *RULES, "dropout"))


def digest(value: Any, length: int = 8) -> str:
    """Hash a plain value: equal values give equal digits, on every machine and Python."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def over_depth(layers: Sequence[Choice]) -> Slot:
    """Return the shortest pattern of these layers; the component itself where all are alike."""
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
        if key not in _PATTERN_KEYS:
            raise ConfigError(
                f"a pattern has no key '{key}'{nearest(key, _PATTERN_KEYS)}", (*where, key)
            )
    period = entry.get("pattern")
    at: Where = (*where, "pattern")
    if not isinstance(period, Sequence) or isinstance(period, str) or not period:
        raise ConfigError(f"a pattern is a list of components, not {quote(period)}", at)
    if len(period) > layers:
        deep = f"{layers} layer{'s' if layers > 1 else ''}"
        raise ConfigError(f"a pattern of {len(period)} components is longer than {deep}", at)
    chosen = [registry.resolve(part, (*at, i)) for i, part in enumerate(period)]
    by_layer = [chosen[layer % len(chosen)] for layer in range(layers)]
    for layer, choice in _single(registry, entry.get("layers", {}), layers, (*where, "layers")):
        by_layer[layer] = choice
    return over_depth(by_layer)


def shorten_entry(registry: Registry, entry: Any, where: Where = ()) -> Any:
    """Return an entry without options at their defaults: a component's, a pattern's or a list's."""
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
    """Return the layers that are set one by one, and their components."""
    if not isinstance(entries, Mapping):
        raise ConfigError(f"'layers' maps layers to components, not {quote(entries)}", where)
    chosen: dict[int, Choice] = {}
    for key, entry in entries.items():
        at: Where = (*where, key)
        try:
            layer = int(str(key))
        except ValueError:
            layer = layers
        if not -layers <= layer < layers:
            raise ConfigError(
                f"layer {quote(key)}: must be a whole number from {-layers} to {layers - 1}",
                at,
            )
        if layer % layers in chosen:
            raise ConfigError(f"layer {layer} is set twice, from the first and from the last", at)
        chosen[layer % layers] = registry.resolve(entry, at)
    return list(chosen.items())


def _without_nope(
    registry: Registry, choice: Choice, layers: int, where: Where
) -> Sequence[Choice]:
    """Return the layers of a component: RoPE's `nope_every: n` is a pattern with `none`."""
    every = dict(choice.options).get("nope_every")
    if every is None:
        return [choice]
    if every < 1:
        raise ConfigError(f"nope_every {every} must be 1 or more", (*where, "nope_every"))
    rope, none = choice.with_options(nope_every=None), registry.resolve("none")
    return [none if (layer + 1) % every == 0 else rope for layer in range(layers)]
