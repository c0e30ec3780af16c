"""From a design to its variants: every default filled in, budgets matched, controls added.

The registries and the counting function are handed in, so this needs no torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from llama_ablate.config import baselines
from llama_ablate.config.experiment import Data, Experiment
from llama_ablate.config.spec import ModelSpec, digest
from llama_ablate.config.validation import shown
from llama_ablate.design import train_config
from llama_ablate.design.designs import DATA, DESIGNS, DRAWS, TOKENIZER, TRAIN, Change
from llama_ablate.design.labels import check_label, label_of, left_out
from llama_ablate.design.matching import Cost, knobs_for, solve
from llama_ablate.design.specs import change_of, check_key, model_of, parts, spec_of
from llama_ablate.design.table_text import TableText
from llama_ablate.design.train_config import Registries
from llama_ablate.errors import ConfigError, Where, nearest

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
    #: And of its table's `data`: what it is trained on.
    data: Mapping[str, Any] = field(default_factory=dict, compare=False)
    #: Its own text, where its tokenizer is not that of the table.
    text: TableText | None = field(default=None, compare=False)
    #: The kind of a control; what gets another seed than the baseline: "init", "order" or "both".
    role: Role = ""
    reseed: str = ""
    #: In a factorial design: which of its axis' values each factor has.
    levels: Mapping[str, int] = field(default_factory=dict, compare=False)
    #: And what the file calls it, where it does.
    level_labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    #: Labels of levels that change nothing, so that they are this variant.
    covers: tuple[str, ...] = field(default=(), compare=False)
    #: Which keys vary, and where they stand in the file.
    varied: Mapping[str, Where] = field(default_factory=dict, compare=False)

    @property
    def where(self) -> Where:
        """The place in the file that defines this variant."""
        return next(reversed(list(self.varied.values())), ("model",))

    def place(self, key: str) -> Where | None:
        """Return the place in the file that sets a key, or an option of it; None where none does.

        An option is asked for as `position.theta`; of a slot its last change counts.
        """
        places = [at for own, at in self.varied.items() if own == key or own.startswith(f"{key}.")]
        return places[-1] if places else None

    @cached_property
    def id(self) -> str:
        """The hash of architecture, training changes, reseeding and tokens, not of the label."""
        own: list[object] = [self.text.tokens.fingerprint] if self.text else []
        own += [{"data": dict(self.data)}] if self.data else []
        if not self.train and not self.reseed and not own:
            return self.spec.id
        return digest([self.spec.identity(), dict(self.train), self.reseed, *own])

    def is_base(self, spec: ModelSpec) -> bool:
        """Return whether it is the unchanged base, whose architecture is given."""
        return self.spec == spec and not (self.train or self.data or self.text or self.reseed)


def variants_of(
    experiment: Experiment,
    registries: Registries,
    vocab: int,
    cost: Cost | None = None,
    match: str = "parameters",
    separator: int | None = None,
    text_of: Callable[[Change], TableText | None] = lambda _change: None,
) -> tuple[Variant, ...]:
    """Return the variants of an experiment, the baseline first, the controls last.

    `cost` counts what `match` holds equal; None matches nothing. `separator` is the token between
    documents. `text_of` makes a variant's text from its change of the tokenizer; None where the
    tokens are those of `vocab`. Raises ConfigError with the path of the offending key.
    """
    arms: list[Variant] = []
    covered: list[str] = []
    base = spec_of(experiment.model, (), registries, vocab)
    design = experiment.variants.design
    axes = _changes(experiment)
    is_left_out = left_out(experiment, axes, registries)
    for changes in DESIGNS[design](axes):
        if is_left_out(changes):
            continue
        text = next((text_of(c) for c in changes if c.key == TOKENIZER), None)
        own_vocab = text.tokens.vocab if text else vocab
        spec = spec_of(experiment.model, changes, registries, own_vocab)
        train = _trained(experiment, changes, registries)
        own_data = _read(experiment.data, changes)
        label = label_of(experiment, changes, registries)
        varied = {c.key: c.where for c in changes}
        factorial = design in ("product", "fraction")
        levels = {c.key: int(c.where[-1]) for c in changes} if factorial else {}
        names = {c.key: c.label for c in changes if c.label} if factorial else {}
        drawn = next((c for c in changes if c.key == DRAWS), None)
        if drawn and drawn.value not in ("init", "order", "both"):
            said = f"{shown(drawn.value)} is not allowed here"
            raise ConfigError(f"{said}; allowed: init, order, both", drawn.where)
        arm = Variant(
            label,
            spec,
            levels=levels,
            level_labels=names,
            varied=varied,
            train=train,
            data=own_data,
            text=text,
            reseed=drawn.value if drawn else "",
        )
        if design == "one-at-a-time" and changes and arm.is_base(base):
            covered.append(label)
        else:
            arms.append(arm)
    _refuse_nothing_to_compare(experiment, arms)
    baseline = _baseline(experiment, arms, base)
    same_as_base = next((v for v in arms if v.is_base(base)), None)
    arms = [
        replace(v, is_baseline=v is baseline, covers=tuple(covered) if v is same_as_base else ())
        for v in arms
    ]
    arms.sort(key=lambda v: not v.is_baseline)
    if len(arms) > 1:  # else there is nothing to control
        arms += _controls(experiment, arms[0], registries)
    _distinct(arms)
    if cost is not None:
        target = counted(arms[0], cost)
        arms = [
            v if v.is_baseline or v.role == "aa" else _matched(v, target, cost, match) for v in arms
        ]
        _distinct(arms)  # variants that differ in width alone are equal once it is solved
    return tuple(_apart(v, experiment.data, separator) for v in arms)


def _apart(variant: Variant, data: Data, separator: int | None) -> Variant:
    """Return a variant that keeps documents apart in training, where its data say so."""
    if data.with_changes(variant.data).documents == "continue":
        return variant
    own = variant.text.tokens.separator if variant.text else separator
    return replace(variant, spec=replace(variant.spec, separator=own))


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
        place = (variant.place(str(slot[0])) or ("model", *slot)) if slot else variant.where
        raise ConfigError(error.message, place) from None


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
            level_labels={},
            varied={"controls": ("controls", "aa")},
        )
    if not controls.positive:
        return
    changes = []
    for key, value in controls.positive.items():
        where: Where = ("controls", "positive", key)
        check_key(key, where)
        if key == TOKENIZER:
            raise ConfigError("a control changes the model or its training, not the text", where)
        changes.append(change_of(key, value, where))
    spec = spec_of(
        model_of(base.spec, experiment.model), tuple(changes), registries, base.spec.vocab
    )
    train = {**base.train, **_trained(experiment, tuple(changes), registries)}
    yield Variant(
        "positive control",
        spec,
        role="positive",
        train=train,
        data={**base.data, **_read(experiment.data, tuple(changes))},
        text=base.text,
        varied={c.key: c.where for c in changes},
    )


def _trained(
    experiment: Experiment, changes: tuple[Change, ...], registries: Registries
) -> dict[str, Any]:
    """Return the validated changes of `train` that differ from the file's own values.

    A shorter context has as many more rows in a batch: all variants read as much in a step.
    """
    train = experiment.train
    keys = {c.key.removeprefix(TRAIN): c for c in changes if c.key.startswith(TRAIN)}
    values = {
        key: train_config.changed(train, key, c.value, c.where, registries)
        for key, c in keys.items()
    }
    for change in (change for change in changes if change.key == "context"):
        values["batch"] = values.get("batch", train.batch) * parts(experiment.model, change)
    if "precision" in keys and "auto" in (values["precision"], train.precision):
        message = "where the precision varies, each is stated in 'train' and on the axis"
        raise ConfigError(f"{message}: bfloat16, float32", keys["precision"].where)
    part = values.get("batch", train.batch) // train.accumulate
    if "batch" in keys and part % experiment.parallel.data:
        message = f"{experiment.parallel.data} processes cannot share {part} rows evenly"
        raise ConfigError(message, keys["batch"].where)
    own = train.model_dump(mode="json")
    return {key: value for key, value in values.items() if value != own[key]}


def _read(data: Data, changes: tuple[Change, ...]) -> dict[str, Any]:
    """Return the validated changes of `data` that differ from the text's own values."""
    own, values = data.model_dump(mode="json"), {}
    for change in (change for change in changes if change.key in DATA):
        key = change.key.partition(".")[2]
        try:
            values[key] = data.with_changes({key: change.value}).model_dump(mode="json")[key]
        except ConfigError as error:
            rest = error.where[1:] if error.where[:1] == (key,) else error.where
            raise ConfigError(error.message, (*change.where, *rest)) from None
    return {key: value for key, value in values.items() if value != own[key]}


def _changes(experiment: Experiment) -> list[list[Change]]:
    """Return the changes of each axis, or of each entry, with their places in the file."""
    section = experiment.variants
    axes: list[list[Change]] = []
    for key, levels in section.axes.items():
        at: Where = ("variants", "axes", key)
        check_key(key, at)
        if not levels:
            raise ConfigError("an axis needs at least one value", at)
        axes.append([change_of(key, value, (*at, i)) for i, value in enumerate(levels)])
    for i, entry in enumerate(section.entries):
        at = ("variants", "entries", i)
        for key, value in entry.items():
            if key == "label":
                check_label(value, (*at, key))
            elif key != DRAWS:
                check_key(key, (*at, key))
        axes.append([change_of(key, value, (*at, key)) for key, value in entry.items()])
    return axes


def _refuse_nothing_to_compare(experiment: Experiment, arms: Sequence[Variant]) -> None:
    """Raise ConfigError where axes or entries make one variant, and nothing else varies."""
    section = experiment.variants
    key = "entries" if section.design == "list" else "axes"
    several = experiment.tune or experiment.sizes or len(experiment.texts) > 1
    several = several or len(experiment.budget) > 1 or experiment.controls.positive
    if len(arms) > 1 or several or not getattr(section, key):
        return
    why = {
        "list": "one entry is one variant",
        "one-at-a-time": "every value is the base's own",
        "path": "every value is the base's own",
    }.get(section.design, "one value on every axis is one variant: write the base's value too")
    raise ConfigError(
        f"{why}, so there is nothing to compare; without '{key}' the base alone is trained",
        ("variants", key),
    )


def _baseline(experiment: Experiment, variants: list[Variant], base: ModelSpec) -> Variant:
    """Return the named baseline, else the unchanged base, else the first variant."""
    unchanged = next((v for v in variants if v.is_base(base)), None)
    named = experiment.variants.baseline
    chosen = next((v for v in variants if v.label == named), None)
    if named is None or chosen:
        return chosen or unchanged or variants[0]
    levels = baselines.aliases(experiment, base.to_dict(), experiment.data)
    if unchanged and named in levels:
        return unchanged
    hint = nearest(named, [v.label for v in variants])
    raise ConfigError(f"no variant is called '{named}'{hint}", ("variants", "baseline"))


def _matched(variant: Variant, target: int, cost: Cost, match: str) -> Variant:
    """Solve a variant's size so that it costs what the baseline costs."""
    own = counted(variant, cost)
    if match == "kv_bytes" and not own * target:
        without = f"'{variant.label}'" if target else "the baseline"
        raise ConfigError(
            f"a further token adds no bytes to what {without} keeps at the training context, so "
            f"'{variant.label}' cannot be matched by them; match: state_bytes counts all of it",
            variant.where,
        )
    try:
        solved = solve(variant.spec, target, cost, knobs_for(match, variant.spec))
    except ConfigError as error:
        raise ConfigError(f"'{variant.label}' {error.message}", variant.where) from None
    return replace(variant, spec=solved.spec, residual=solved.residual, solved=solved.change)
