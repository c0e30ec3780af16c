"""From a design to its variants: every default filled in, budgets matched, controls added.

The registries and the counting function are handed in, so this needs no torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from llama_ablate.config import patterns
from llama_ablate.config.experiment import Experiment, Model, Train
from llama_ablate.config.registry import laid_over, written
from llama_ablate.config.spec import RULES, SLOTS, STANDARD, DropoutRates, ModelSpec, digest
from llama_ablate.design import train_config
from llama_ablate.design.designs import DESIGNS, Change
from llama_ablate.design.matching import Cost, knobs_for, solve
from llama_ablate.design.train_config import Registries
from llama_ablate.errors import ConfigError, Where, nearest

_SIZES = ("dim", "layers", "heads", "head_dim", "bias", "tie", "init_std", "logit_softcap")
_TRAIN = "train."  # in front of such a key on an axis

Role = Literal["", "aa", "positive"]


@dataclass(frozen=True)
class Variant:
    """An architecture and what it changes of training, under a label for readers."""

    label: str
    spec: ModelSpec
    is_baseline: bool = False
    #: The relative residual of the matched budget, and what matching changed: "feed-forward
    #: width 176".
    residual: float = 0.0
    solved: str = ""
    #: What it changes of the experiment's `train`.
    train: Mapping[str, Any] = field(default_factory=dict, compare=False)
    #: The kind of a control; of an A/A arm, what gets another seed: "init", "order" or "both".
    role: Role = ""
    reseed: str = ""
    #: In a factorial design: which of its axis' values each factor has.
    levels: Mapping[str, int] = field(default_factory=dict, compare=False)
    #: Labels of levels that change nothing, so that they are this variant.
    covers: tuple[str, ...] = field(default=(), compare=False)
    #: Which keys vary, and where they stand in the file.
    varied: Mapping[str, Where] = field(default_factory=dict, compare=False)

    @property
    def where(self) -> Where:
        """The place in the file that defines this variant."""
        return next(reversed(list(self.varied.values())), ("model",))

    @property
    def id(self) -> str:
        """The hash of architecture, training changes and reseeding; the label is not part of it."""
        if not self.train and not self.reseed:
            return self.spec.id
        return digest([self.spec.identity(), dict(self.train), self.reseed])


def variants(
    experiment: Experiment,
    registries: Registries,
    vocab: int,
    cost: Cost | None = None,
    match: str = "parameters",
) -> tuple[Variant, ...]:
    """Return the variants of an experiment, the baseline first, the controls last.

    `cost` counts what `match` holds equal; None matches nothing. Raises ConfigError with the
    path of the offending key.
    """
    arms: list[Variant] = []
    covered: list[str] = []
    base = _spec(experiment.model, (), registries, vocab)
    design = experiment.variants.design
    for changes in DESIGNS[design](_changes(experiment)):
        spec = _spec(experiment.model, changes, registries, vocab)
        train = _trained(experiment.train, changes, registries)
        label = _label(experiment, changes, registries)
        if design == "one-at-a-time" and changes and spec == base and not train:
            covered.append(label)
            continue
        varied = {c.key: c.where for c in changes}
        factorial = design in ("product", "fraction")
        levels = {c.key: int(c.where[-1]) for c in changes} if factorial else {}
        arms.append(Variant(label, spec, levels=levels, varied=varied, train=train))
    baseline = _baseline(experiment, arms, base)
    same_as_base = next((v for v in arms if v.spec == base and not v.train), None)
    arms = [
        replace(v, is_baseline=v is baseline, covers=tuple(covered) if v is same_as_base else ())
        for v in arms
    ]
    arms.sort(key=lambda v: not v.is_baseline)
    arms += _controls(experiment, arms[0], registries)
    _distinct(arms)
    if cost is not None:
        target = counted(arms[0], cost)
        arms = [
            v if v.is_baseline or v.role == "aa" else _matched(v, target, cost, match) for v in arms
        ]
        _distinct(arms)  # variants that differ in width alone are equal once it is solved
    return tuple(arms)


def _distinct(variants: Sequence[Variant]) -> None:
    ids: dict[str, Variant] = {}
    labels: dict[str, Variant] = {}
    for variant in variants:
        if (twin := ids.setdefault(variant.id, variant)) is not variant:
            raise ConfigError(
                f"'{variant.label}' is the same variant as '{twin.label}'", variant.where
            )
        if labels.setdefault(variant.label, variant) is not variant:
            raise ConfigError(
                f"two variants have the label '{variant.label}'",
                variant.varied.get("label", variant.where),
            )


def counted(variant: Variant, cost: Callable[[ModelSpec], Any]) -> Any:
    """Count a variant. Raises ConfigError at the key of the file that does not fit."""
    try:
        return cost(variant.spec)
    except ConfigError as error:
        slot = error.where[:1]
        varied = variant.varied.get(str(slot[0]), ("model", *slot)) if slot else variant.where
        raise ConfigError(error.message, varied) from None


def _controls(experiment: Experiment, base: Variant, registries: Registries) -> Iterator[Variant]:
    """Yield the control arms: A/A arms, and the positive control."""
    controls = experiment.controls
    for reseed in controls.aa:
        label = "A/A" if len(controls.aa) == 1 else f"A/A {reseed}"
        yield replace(
            base,
            label=label,
            is_baseline=False,
            role="aa",
            reseed=reseed,
            levels={},
            varied={"controls": ("controls", "aa")},
        )
    if not controls.positive:
        return
    changes = []
    for key, value in controls.positive.items():
        where: Where = ("controls", "positive", key)
        _check_key(key, where)
        changes.append(Change(key, value, where))
    spec = _spec(
        _model_of(base.spec, experiment.model), tuple(changes), registries, base.spec.vocab
    )
    train = {**base.train, **_trained(experiment.train, tuple(changes), registries)}
    yield Variant(
        "positive control",
        spec,
        role="positive",
        train=train,
        varied={c.key: c.where for c in changes},
    )


def _model_of(spec: ModelSpec, model: Model) -> Model:
    """Return the `model` section that resolves to this spec."""
    values = {k: v for k, v in spec.to_dict().items() if k in Model.model_fields}
    return model.model_copy(update=values)


def _trained(train: Train, changes: tuple[Change, ...], registries: Registries) -> dict[str, Any]:
    """Return the validated changes of `train` that differ from the file's own values."""
    keys = {c.key.removeprefix(_TRAIN): c for c in changes if c.key.startswith(_TRAIN)}
    values = {
        key: train_config.changed(train, key, c.value, c.where, registries)
        for key, c in keys.items()
    }
    own = train.model_dump(mode="json")
    return {key: value for key, value in values.items() if value != own[key]}


def _changes(experiment: Experiment) -> list[list[Change]]:
    """Return the changes of each axis, or of each entry, with their places in the file."""
    section = experiment.variants
    axes: list[list[Change]] = []
    for key, levels in section.axes.items():
        at: Where = ("variants", "axes", key)
        _check_key(key, at)
        if not levels:
            raise ConfigError("an axis needs at least one value", at)
        for i, value in enumerate(levels):
            if key in SLOTS and patterns.unlabelled(value) != value:
                _check_label(value["label"], (*at, i, "label"))
        axes.append([Change(key, value, (*at, i)) for i, value in enumerate(levels)])
    for i, entry in enumerate(section.entries):
        at = ("variants", "entries", i)
        for key, value in entry.items():
            if key == "label":
                _check_label(value, (*at, key))
            else:
                _check_key(key, (*at, key))
        axes.append([Change(key, value, (*at, key)) for key, value in entry.items()])
    return axes


def _check_label(label: Any, where: Where) -> None:
    words = isinstance(label, str | int | float) and str(label)
    if not words or len(words) > 80 or not words.isprintable():
        raise ConfigError("a label is one line of 1 to 80 characters", where)


def _check_key(key: str, where: Where) -> None:
    allowed = (*SLOTS, *RULES, *_SIZES, "dropout", *(_TRAIN + name for name in train_config.KEYS))
    if key not in allowed:
        raise ConfigError(f"'{key}' cannot vary{nearest(key, allowed)}", where)


def resolve(model: Model, registries: Registries) -> ModelSpec:
    """Return a spec with every default filled in; the vocabulary is 256 where none is given.

    Raises ConfigError with the path of the offending key.
    """
    return _spec(model, (), registries, model.vocab or 256)


def _spec(
    base: Model, changes: tuple[Change, ...], registries: Registries, vocab: int
) -> ModelSpec:
    """Resolve the base with its changes. Raises ConfigError at the change, or in `model`."""
    values = base.model_dump()
    at: dict[str, Where] = {}
    for change in changes:
        if change.key != "label" and not change.key.startswith(_TRAIN):
            value = change.value
            if change.key in (*SLOTS, *RULES):
                value = laid_over(values[change.key], patterns.unlabelled(value))
            values[change.key], at[change.key] = value, change.where

    def located(error: ConfigError) -> ConfigError:
        key = str(error.where[0]) if error.where else ""
        return ConfigError(error.message, (*at.get(key, ("model", key)), *error.where[1:]))

    try:
        model = Model.check(values)
        components = {
            key: patterns.resolve(registries[key], getattr(model, key), model.layers, (key,))
            for key in SLOTS
        } | {key: registries[key].resolve(getattr(model, key), (key,)) for key in RULES}
    except ConfigError as error:
        raise located(error) from None
    if model.head_dim is None and model.dim % model.heads:
        divisors = [str(n) for n in range(1, model.dim + 1) if model.dim % n == 0]
        message = f"{model.heads} heads do not divide dim {model.dim}"
        key = next((k for k in ("heads", "dim") if k in at), "heads")
        raise located(ConfigError(f"{message}; allowed: {', '.join(divisors)}", (key,)))
    sizes = {key: values[key] for key in (*_SIZES, "context")}
    if model.init_std == "1/sqrt(dim)":
        if components["parametrization"] != STANDARD:
            name = components["parametrization"].name
            message = (
                f"'1/sqrt(dim)': '{name}' scales initial weights itself; give the base's number"
            )
            raise located(ConfigError(message, ("init_std",)))
        sizes["init_std"] = model.dim**-0.5
    head_dim = model.head_dim or model.dim // model.heads
    dropout = DropoutRates.of(values["dropout"])
    filled = {"vocab": vocab, "head_dim": head_dim, "dropout": dropout}
    return ModelSpec(**sizes | filled | components)


def _label(experiment: Experiment, changes: tuple[Change, ...], registries: Registries) -> str:
    values = {change.key: change.value for change in changes}
    if "label" in values:
        return str(values["label"])
    if not changes:
        return "baseline"
    names = [_name(c, registries) for c in changes]
    if experiment.variants.design == "path":
        return "+" + names[-1]
    return " ".join(names)


def _name(change: Change, registries: Registries) -> str:
    if change.key in SLOTS:
        return patterns.label(registries[change.key], change.value, change.where)
    if change.key in RULES:
        return registries[change.key].label(change.value, change.where)
    if change.key == "dropout" and isinstance(change.value, Mapping):
        rates = (f"{kind}={written(rate)}" for kind, rate in change.value.items())
        return "-".join([change.key, *rates])
    return train_config.label(change.key.removeprefix(_TRAIN), change.value, registries)


def _baseline(experiment: Experiment, variants: list[Variant], base: ModelSpec) -> Variant:
    """Return the named baseline, else the unchanged base, else the first variant."""
    named = experiment.variants.baseline
    if named is not None:
        chosen = [v for v in variants if v.label == named]
        if not chosen:
            hint = nearest(named, [v.label for v in variants])
            raise ConfigError(f"no variant is called '{named}'{hint}", ("variants", "baseline"))
        return chosen[0]
    return next((v for v in variants if v.spec == base and not v.train), variants[0])


def _matched(variant: Variant, target: int, cost: Cost, match: str) -> Variant:
    """Solve a variant's size so that it costs what the baseline costs."""
    counted(variant, cost)
    try:
        solved = solve(variant.spec, target, cost, knobs_for(match, variant.spec))
    except ConfigError as error:
        raise ConfigError(f"'{variant.label}' {error.message}", variant.where) from None
    return replace(variant, spec=solved.spec, residual=solved.residual, solved=solved.change)
