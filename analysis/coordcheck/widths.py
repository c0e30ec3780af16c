"""One architecture at several widths, in the standard parametrization and in its own."""

from collections.abc import Sequence
from dataclasses import replace

from llama_ablate.config import patterns
from llama_ablate.config.experiment import Experiment, Model
from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import STANDARD, ModelSpec
from llama_ablate.design.specs import resolve
from llama_ablate.design.variants import variants_of
from llama_ablate.errors import ConfigError
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import REGISTRIES


def over_widths(
    experiment: Experiment, widths: Sequence[int], vocab: int
) -> dict[str, dict[int, ModelSpec]]:
    """Return an experiment's model at some widths, by parametrization.

    The first is the standard one, then come the model's own and its variants'. Raises ConfigError
    where one of them cannot be built.
    """
    variants = variants_of(experiment, REGISTRIES, vocab)
    own = resolve(experiment.model, REGISTRIES)
    choices = dict.fromkeys(
        [STANDARD, own.parametrization, *(v.spec.parametrization for v in variants)]
    )
    wide = {width: at_width(experiment.model, width, vocab) for width in widths}
    specs = {
        REGISTRIES["parametrization"].label(choice.entry()): {
            width: replace(spec, parametrization=choice) for width, spec in wide.items()
        }
        for choice in choices
    }
    for of_widths in specs.values():
        for width, spec in of_widths.items():
            try:
                count(spec)
            except ConfigError as error:
                message = f"at width {width}: {error.message}"
                raise ConfigError(message, ("model", *error.where)) from None
    return specs


def at_width(model: Model, width: int, vocab: int) -> ModelSpec:
    """Return an architecture with another `dim`, and what grows in step with it.

    Feed-forward networks keep their ratio to it, as does a latent whose width is given. Heads grow
    in number or, where the parametrization names a `base_head_dim`, in width. Raises ConfigError
    where a size would be no whole number.
    """
    base = resolve(model, REGISTRIES)
    wider = dict(base.parametrization.options).get("base_head_dim") is not None
    size, rest = divmod(width * (base.head_dim if wider else base.heads), base.dim)
    if rest or not size:
        raise ConfigError(
            f"width {width}: the {'width' if wider else 'number'} of its heads would be no whole "
            f"number, beside {base.heads} heads of {base.head_dim} at dim {base.dim}",
            ("model",),
        )
    heads, head_dim = (base.heads, size) if wider else (size, base.head_dim)
    changes = {"dim": width, "heads": heads, "head_dim": head_dim}
    spec = resolve(model.model_copy(update=changes), REGISTRIES)
    ratio = width / base.dim
    feedforward, attention = (
        patterns.over_depth([_widened(choice, ratio) for choice in slot.choices])
        for slot in (spec.feedforward, spec.attention)
    )
    return replace(spec, vocab=vocab, feedforward=feedforward, attention=attention)


def _widened(choice: Choice, ratio: float) -> Choice:
    """Return a component with the widths that it was given grown in step."""
    given = dict(choice.options)
    widths = {key: given.get(key) for key in ("width", "latent")}
    grown = {key: round(size * ratio) for key, size in widths.items() if size is not None}
    return choice.with_options(**grown)
