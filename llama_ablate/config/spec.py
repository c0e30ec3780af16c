"""ModelSpec: an architecture with every default filled in."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from llama_ablate.config.registry import Choice

#: Sizes that the positional parameters of components may name.
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
SLOTS = ("norm", "position", "attention", "feedforward", "block")


@dataclass(frozen=True)
class ModelSpec:
    """Sizes, and the component of each slot. Hashable.

    A size that has a default here is part of the id only where it differs from it.
    """

    vocab: int
    dim: int
    layers: int
    heads: int
    head_dim: int
    context: int
    norm: Choice
    position: Choice
    attention: Choice
    feedforward: Choice
    block: Choice
    bias: bool = False
    tie: bool = False
    init_std: float = 0.02
    logit_softcap: float | None = None

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes, by name, for the positional parameters of components."""
        return {name: getattr(self, name) for name in SIZES}

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, components as YAML would give them."""
        slots = {slot: getattr(self, slot).entry() for slot in SLOTS}
        return {**self.sizes, **slots}

    def with_width(self, width: int) -> "ModelSpec":
        """Return the same architecture with another feed-forward width."""
        return replace(self, feedforward=self.feedforward.with_options(width=width))

    def with_components(self, components: Mapping[str, Choice]) -> "ModelSpec":
        """Return the same architecture with other components in some slots."""
        changes: dict[str, Any] = dict(components)
        return replace(self, **changes)

    @property
    def id(self) -> str:
        """Eight hexadecimal digits: the hash of what differs from the defaults."""
        return digest(self.identity())

    def identity(self) -> dict[str, Any]:
        """Return what is hashed: sizes and options that differ from their defaults."""
        defaults = {f.name: f.default for f in fields(self)}
        sizes = {k: v for k, v in self.sizes.items() if v != defaults[k]}
        return sizes | {slot: getattr(self, slot).identity() for slot in SLOTS}


def digest(value: Any, length: int = 8) -> str:
    """Hash a plain value: equal values give equal digits, on every machine and Python."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
