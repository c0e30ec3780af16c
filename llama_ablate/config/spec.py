"""ModelSpec: an architecture with every default filled in."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from llama_ablate.config.patterns import Slot
from llama_ablate.config.registry import Choice

#: A component each, or a pattern of components over depth.
SLOTS = ("norm", "position", "attention", "feedforward", "block")
#: One for the whole model, each with a default, which is no part of the id.
RULES = ("init", "parametrization")


DEPTH_SCALED = Choice("depth-scaled")
STANDARD = Choice("standard")


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
    """Sizes, and what each slot holds. Hashable.

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
        """How many layers there are before they repeat: 1 where all are alike."""
        lengths = (len(getattr(self, slot).choices) for slot in SLOTS)
        return min(self.layers, math.lcm(*lengths))

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes, by name, for the positional parameters of components."""
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
        """Return what is hashed: sizes, rules and options that differ from their defaults."""
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
