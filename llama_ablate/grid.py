"""Designs -> variants. Every default is filled in here, and budgets are matched.

The registries and the counting function are handed in, so this needs no torch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from llama_ablate.errors import ConfigError, Where, nearest
from llama_ablate.experiment import Experiment, Model
from llama_ablate.registry import Registry
from llama_ablate.spec import SLOTS, ModelSpec, digest

TOLERANCE = 0.005  # how far a matched budget may be off
_SIZES = ("dim", "layers", "heads", "head_dim", "bias", "tie", "init_std", "logit_softcap")
#: Part of every run's identity: raised when the same recipe would train differently.
RECIPE = 1

Cost = Callable[[ModelSpec], int]
Registries = Mapping[str, Registry]


@dataclass(frozen=True)
class Variant:
    """A full recipe with a label for eyes. `residual` is what matching left of the budget."""

    label: str
    spec: ModelSpec
    is_baseline: bool = False
    residual: float = 0.0
    #: In a factorial design: which of its axis' values each factor has.
    levels: Mapping[str, int] = field(default_factory=dict, compare=False)
    #: Which keys of `model` vary, and where the file says so.
    varied: Mapping[str, Where] = field(default_factory=dict, compare=False)

    @property
    def where(self) -> Where:
        """The place in the file that makes this variant what it is."""
        return next(reversed(list(self.varied.values())), ("model",))

    @property
    def id(self) -> str:
        """The hash of the architecture; the label is not part of it."""
        return self.spec.id


@dataclass(frozen=True)
class Run:
    """A variant trained from one seed on one text."""

    variant: Variant
    seed: int
    id: str


@dataclass(frozen=True)
class _Change:
    """One step away from the base: a key of `model`, its new value, where the file says so."""

    key: str
    value: Any
    where: Where


def variants(
    experiment: Experiment, registries: Registries, vocab: int, cost: Cost | None = None
) -> tuple[Variant, ...]:
    """Return the variants of an experiment, the baseline first where the design has one.

    `cost` counts what `match` holds equal; None matches nothing. Raises ConfigError with the
    path of the offending key.
    """
    found: list[Variant] = []
    labels: dict[str, Variant] = {}
    ids: dict[str, Variant] = {}
    base = _spec(experiment.model, (), registries, vocab)
    design = experiment.variants.design
    for changes in DESIGNS[design](_changes(experiment)):
        spec = _spec(experiment.model, changes, registries, vocab)
        if design == "one-at-a-time" and changes and spec == base:
            continue  # a level that the base has already is the baseline itself
        varied = {c.key: c.where for c in changes}
        factorial = design in ("product", "fraction")
        levels = {c.key: int(c.where[-1]) for c in changes} if factorial else {}
        label = _label(experiment, changes, registries)
        variant = Variant(label, spec, levels=levels, varied=varied)
        if variant.label in labels or variant.id in ids:
            twin = labels.get(variant.label) or ids[variant.id]
            raise ConfigError(f"'{variant.label}' is the same variant as '{twin.label}'",
                              variant.where)  # fmt: skip
        labels[variant.label] = ids[variant.id] = variant
        found.append(variant)
    baseline = _baseline(experiment, found, base)
    found = [replace(v, is_baseline=v is baseline) for v in found]
    if cost is not None:
        target = costed(next(v for v in found if v.is_baseline), cost)
        found = [v if v.is_baseline else _matched(v, target, cost) for v in found]
    return tuple(sorted(found, key=lambda v: not v.is_baseline))


def costed(variant: Variant, cost: Callable[[ModelSpec], Any]) -> Any:
    """Count a variant; where its components do not fit its sizes, say at which key of the file."""
    try:
        return cost(variant.spec)
    except ConfigError as error:
        slot = error.where[:1]
        varied = variant.varied.get(str(slot[0]), ("model", *slot)) if slot else variant.where
        raise ConfigError(error.message, varied) from None


def runs(
    experiment: Experiment, variants: tuple[Variant, ...], fingerprint: str
) -> tuple[Run, ...]:
    """Return every variant with every seed, seeds outermost: a grid cut short is still paired."""
    train = experiment.train.model_dump(mode="json")
    return tuple(
        Run(v, seed, digest([RECIPE, v.spec.to_dict(), train, fingerprint, seed]))
        for seed in experiment.seed_list
        for v in variants
    )


def _one_at_a_time(axes: list[list[_Change]]) -> Iterator[tuple[_Change, ...]]:
    yield ()
    yield from ((change,) for axis in axes for change in axis)


def _path(axes: list[list[_Change]]) -> Iterator[tuple[_Change, ...]]:
    steps = [change for axis in axes for change in axis]
    yield from (tuple(steps[:n]) for n in range(len(steps) + 1))


def _fraction(axes: list[list[_Change]]) -> Iterator[tuple[_Change, ...]]:
    for axis in axes:
        if len(axis) != 2:
            raise ConfigError(f"design 'fraction' needs two values on every axis, not {len(axis)}",
                              axis[0].where[:-1])  # fmt: skip
    for run in half_fraction(len(axes)):
        yield tuple(axis[level] for axis, level in zip(axes, run, strict=True))


def half_fraction(factors: int) -> list[tuple[int, ...]]:
    """Return the runs of a 2^(k-1) design, each a tuple of levels 0 and 1, the all-0 run first.

    The last factor is the sum of the others modulo two, so that the product of all signs is the
    same in every run: resolution k, which for five factors or more keeps main effects and two-way
    interactions clear of each other (Box, Hunter & Hunter 2005, Statistics for Experimenters,
    chapter 6). For fewer it could not, and all 2^k runs are returned.
    """
    if factors < 5:
        return list(product((0, 1), repeat=factors))
    return [(*run, sum(run) % 2) for run in product((0, 1), repeat=factors - 1)]


#: How axes (lists of alternatives) become variants (tuples of changes).
DESIGNS: dict[str, Callable[[list[list[_Change]]], Iterable[tuple[_Change, ...]]]] = {
    "one-at-a-time": _one_at_a_time,
    "product": lambda axes: product(*axes),
    "fraction": _fraction,
    "path": _path,
    "list": lambda entries: (tuple(entry) for entry in entries),
}


def _changes(experiment: Experiment) -> list[list[_Change]]:
    """Read the file's axes, or its entries: a list for each, with where each value stands."""
    found = experiment.variants
    axes: list[list[_Change]] = []
    for key, levels in found.axes.items():
        at: Where = ("variants", "axes", key)
        _check_key(key, at)
        if not levels:
            raise ConfigError("an axis needs at least one value", at)
        axes.append([_Change(key, value, (*at, i)) for i, value in enumerate(levels)])
    for i, entry in enumerate(found.entries):
        at = ("variants", "entries", i)
        for key in entry.keys() - {"label"}:
            _check_key(key, (*at, key))
        axes.append([_Change(key, value, (*at, key)) for key, value in entry.items()])
    return axes


def _check_key(key: str, where: Where) -> None:
    allowed = (*SLOTS, *_SIZES)
    if key not in allowed:
        raise ConfigError(f"'{key}' cannot vary{nearest(key, allowed)}", where)


def resolve(model: Model, registries: Registries) -> ModelSpec:
    """Return a recipe with every default filled in; without a vocabulary it takes bytes.

    Raises ConfigError with the path of the offending key.
    """
    return _spec(model, (), registries, model.vocab or 256)


def _spec(
    base: Model, changes: tuple[_Change, ...], registries: Registries, vocab: int
) -> ModelSpec:
    """Resolve the base with its changes. Raises ConfigError at the change, or in `model`."""
    values = base.model_dump()
    at: dict[str, Where] = {}
    for change in changes:
        if change.key != "label":
            values[change.key], at[change.key] = change.value, change.where

    def located(error: ConfigError) -> ConfigError:
        key = str(error.where[0]) if error.where else ""
        return ConfigError(error.message, (*at.get(key, ("model", key)), *error.where[1:]))

    try:
        model = Model.check(values)
        slots = {s: registries[s].resolve(getattr(model, s), (s,)) for s in SLOTS}
    except ConfigError as error:
        raise located(error) from None
    if model.head_dim is None and model.dim % model.heads:
        divisors = [str(n) for n in range(1, model.dim + 1) if model.dim % n == 0]
        message = f"{model.heads} heads do not divide dim {model.dim}"
        key = next((k for k in ("heads", "dim") if k in at), "heads")
        raise located(ConfigError(f"{message}; allowed: {', '.join(divisors)}", (key,)))
    return ModelSpec(
        **{key: values[key] for key in (*_SIZES, "context")}
        | {"vocab": vocab, "head_dim": model.head_dim or model.dim // model.heads}
        | slots
    )


def _label(experiment: Experiment, changes: tuple[_Change, ...], registries: Registries) -> str:
    given = {change.key: change.value for change in changes}
    if "label" in given:
        return str(given["label"])
    if not changes:
        return "baseline"
    names = [_name(c, registries) for c in changes]
    if experiment.variants.design == "path":
        return "+" + names[-1]
    return " ".join(names)


def _name(change: _Change, registries: Registries) -> str:
    if change.key not in SLOTS:
        return f"{change.key}={_written(change.value)}"
    registry = registries[change.key]
    choice = registry.resolve(change.value, change.where)
    defaults = {option.name: option.default for option in registry.options(choice.name)}
    special = [
        f"{key}={_written(value)}" for key, value in choice.options if value != defaults[key]
    ]
    name = f"no-{change.key}" if choice.name == "none" else choice.name
    return "-".join([name, *special])


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _baseline(experiment: Experiment, found: list[Variant], base: ModelSpec) -> Variant:
    """Choose whom the others are compared with: as asked, else the base itself, else the first."""
    named = experiment.variants.baseline
    if named is not None:
        chosen = [v for v in found if v.label == named]
        if not chosen:
            hint = nearest(named, [v.label for v in found])
            raise ConfigError(f"no variant is called '{named}'{hint}", ("variants", "baseline"))
        return chosen[0]
    return next((v for v in found if v.spec == base), found[0])


def _matched(variant: Variant, target: int, cost: Cost) -> Variant:
    """Give a variant the feed-forward width at which it costs what the baseline costs.

    Costs are affine in the width, so two counts give the width; it is rounded to the coarsest of
    8, 4, 2 and 1 that stays within the tolerance, because round widths compute faster. A variant
    whose own width does as well keeps it.
    """
    spec = variant.spec
    own = costed(variant, cost) / target - 1
    low, high = (cost(spec.with_width(width)) for width in (8, 16))
    exact = 8 + (target - low) * 8 / (high - low)
    for multiple in (8, 4, 2, 1):
        width = max(multiple, round(exact / multiple) * multiple)
        residual = cost(spec.with_width(width)) / target - 1
        if abs(own) <= min(TOLERANCE, abs(residual)):
            return replace(variant, residual=own)
        if abs(residual) <= TOLERANCE:
            return replace(variant, spec=spec.with_width(width), residual=residual)
    raise ConfigError(
        f"'{variant.label}' cannot be matched to the baseline within {TOLERANCE:.1%}: "
        f"feed-forward width {width} leaves {residual:+.1%}",
        variant.where,
    )
