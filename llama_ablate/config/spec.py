"""ModelSpec: an architecture with every default filled in."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from llama_ablate.config.patterns import Slot
from llama_ablate.config.registry import Choice

#: Sizes that the positional parameters of components may name, beside `layer`, a layer's index.
SIZES = (
    "vocab",
    "dim",
    "layers",
    "heads",
    "head_dim",
    "context",
    "bias",
    "tie",
    "init_std",
    "logit_softcap",
)
#: A component each, or a pattern of components over depth.
SLOTS = ("norm", "position", "attention", "feedforward", "block")
#: One for the whole model, each with a default, which is no part of the id.
RULES = ("init",)


DEPTH_SCALED = Choice("depth-scaled")


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
    init: Choice = DEPTH_SCALED

    def layer(self, index: int) -> LayerSpec:
        """Return the components of a layer, counted from 0."""
        return LayerSpec(**{slot: getattr(self, slot).at(index) for slot in SLOTS})

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes, by name, for the positional parameters of components."""
        return {name: getattr(self, name) for name in SIZES}

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, components as YAML would give them."""
        components = {key: getattr(self, key).entry() for key in (*SLOTS, *RULES)}
        return {**self.sizes, **components}

    def with_width(self, width: int) -> "ModelSpec":
        """Return the same architecture with another feed-forward width, in all layers."""
        return replace(self, feedforward=self.feedforward.with_options(width=width))

    def with_components(self, components: Mapping[str, Slot]) -> "ModelSpec":
        """Return the same architecture with other components in some slots."""
        changes: dict[str, Any] = dict(components)
        return replace(self, **changes)

    @property
    def id(self) -> str:
        """Eight hexadecimal digits: the hash of what differs from the defaults."""
        return digest(self.identity())

    def identity(self) -> dict[str, Any]:
        """Return what is hashed: sizes, rules and options that differ from their defaults."""
        defaults = {f.name: f.default for f in fields(self)}
        sizes = {k: v for k, v in self.sizes.items() if v != defaults[k]}
        rules = {k: getattr(self, k) for k in RULES if getattr(self, k) != defaults[k]}
        slots = {slot: getattr(self, slot) for slot in SLOTS}
        return sizes | {key: choice.identity() for key, choice in (rules | slots).items()}


def digest(value: Any, length: int = 8) -> str:
    """Hash a plain value: equal values give equal digits, on every machine and Python."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
