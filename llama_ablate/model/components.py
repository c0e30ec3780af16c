"""Parts of a decoder: construction from a spec, and a registry of components for each slot.

A slot is an interchangeable part of a model, such as `attention`; a component is an implementation
of a slot, such as `mha`.
"""

from typing import Any

from torch import nn

from llama_ablate.config import spec as patterns
from llama_ablate.config.labels import entry_text
from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import RULES, SLOTS, DropoutRates, ModelSpec
from llama_ablate.errors import ConfigError, under
from llama_ablate.model import mixture, rope  # noqa: F401  they register
from llama_ablate.model.blocks import BLOCKS
from llama_ablate.model.feedforward import FEEDFORWARDS
from llama_ablate.model.initialisation import INITS, drawing_from
from llama_ablate.model.linear import Embedding, Head
from llama_ablate.model.mixers import gated_delta  # noqa: F401  it registers
from llama_ablate.model.mixers.attention import ATTENTIONS
from llama_ablate.model.norms import NORMS
from llama_ablate.model.parametrization import PARAMETRIZATIONS, Parametrization
from llama_ablate.model.positions import POSITIONS

REGISTRIES = {
    "norm": NORMS,
    "position": POSITIONS,
    "attention": ATTENTIONS,
    "feedforward": FEEDFORWARDS,
    "block": BLOCKS,
    "init": INITS,
    "parametrization": PARAMETRIZATIONS,
}


def make_norm(spec: ModelSpec, choice: Choice, layer: int, dim: int) -> nn.Module:
    """Build a layer's norm of width `dim`."""
    return make_part(spec, "norm", choice, layer=layer, dim=dim)


def make_parametrization(spec: ModelSpec) -> Parametrization:
    """Build the parametrization of a spec. Raises ConfigError for options that do not fit."""
    with under(("parametrization",)):
        built: Parametrization = PARAMETRIZATIONS.build(spec.parametrization, **spec.sizes)
    return built


class PartMaker:
    """Factory of the parts of a decoder."""

    def part(
        self, spec: ModelSpec, slot: str, choice: Choice, draw: tuple[int, str], **sizes: Any
    ) -> nn.Module:
        """Build a slot's component, whose random numbers are seeded by `draw`, (seed, name).

        `sizes` are sizes that are not in the spec, such as the layer's index.
        """
        with drawing_from(*draw):
            return make_part(spec, slot, choice, **sizes)

    def ends(self, spec: ModelSpec) -> tuple[Embedding, Head]:
        """Build the embedding and the output head."""
        embedding, head = Embedding(spec.vocab, spec.dim), Head(spec.dim, spec.vocab, bias=False)
        if spec.tie:
            head.weight = embedding.weight
        return embedding, head


class SharedParts(PartMaker):
    """Factory that caches modules, to count the parameters of many models without building each.

    The models of a large grid share modules, but no module occurs twice in one model.
    """

    def __init__(self) -> None:
        self._parts: dict[Any, Any] = {}

    def part(
        self, spec: ModelSpec, slot: str, choice: Choice, draw: tuple[int, str], **sizes: Any
    ) -> nn.Module:
        """Return the cached module of a component with these sizes, or build and cache one."""
        part_sizes = {k: v for k, v in sizes.items() if k != "norm"} | {"name": draw[1]}
        norm = spec.norm.at(sizes["layer"]) if "norm" in sizes else None
        component = REGISTRIES[slot].get(choice.name)
        key = (component, choice, norm, *spec.sizes.values(), *part_sizes.values())
        if key not in self._parts:
            self._parts[key] = super().part(spec, slot, choice, draw, **sizes)
        part: nn.Module = self._parts[key]
        return part

    def ends(self, spec: ModelSpec) -> tuple[Embedding, Head]:
        """Return the cached embedding and head of the spec's sizes, or build and cache a pair."""
        key = spec.vocab, spec.dim, spec.tie
        if key not in self._parts:
            self._parts[key] = super().ends(spec)
        ends: tuple[Embedding, Head] = self._parts[key]
        return ends

    def forget(self) -> None:
        """Clear the cache."""
        self._parts.clear()


def make_part(spec: ModelSpec, slot: str, choice: Choice, **sizes: Any) -> nn.Module:
    """Build the component of a slot. Raises ConfigError for options that do not fit the sizes."""
    try:
        part: nn.Module = REGISTRIES[slot].build(choice, **{**spec.sizes, **sizes})
    except ConfigError as error:
        if error.where[:1] == ("norm",):  # an error of the norm inside the part
            raise
        if len(getattr(spec, slot).choices) > 1:
            which = entry_text(choice.shortest())
            error = ConfigError(f"'{which}' of the pattern: {error.message}", error.where)
        raise ConfigError(error.message, (slot, *error.where)) from None
    return part


def spec_from(values: dict[str, Any]) -> ModelSpec:
    """Restore a spec from the values of `ModelSpec.to_dict`.

    Raises ConfigError for unknown components.
    """
    slots = {
        slot: patterns.resolve_slot(REGISTRIES[slot], values[slot], values["layers"], (slot,))
        for slot in SLOTS
    }
    rules = {key: REGISTRIES[key].resolve(values[key], (key,)) for key in RULES if key in values}
    dropout = DropoutRates.of(values.get("dropout", 0.0))
    return ModelSpec(**{**values, **slots, **rules, "dropout": dropout})
