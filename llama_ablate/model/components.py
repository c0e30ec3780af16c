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
from llama_ablate.model.initialisation import INITS
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


def make_part(spec: ModelSpec, slot: str, choice: Choice, **sizes: Any) -> nn.Module:
    """Build the component of a slot. Raises ConfigError for options that do not fit the sizes.

    `sizes` are sizes that are not in the spec, such as the layer's index.
    """
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
