"""From a design to its variants: every default filled in, budgets matched, controls added.

The registries and the counting function are handed in, so this needs no torch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal

from llama_ablate.config import patterns
from llama_ablate.config.experiment import Experiment, Model
from llama_ablate.config.registry import laid_over, written
from llama_ablate.config.spec import RULES, SLOTS, STANDARD, DropoutRates, ModelSpec, digest
from llama_ablate.config.validation import shown
from llama_ablate.design import train_config
from llama_ablate.design.designs import DESIGNS, Change
from llama_ablate.design.matching import Cost, knobs_for, solve
from llama_ablate.design.text import Text
from llama_ablate.design.train_config import Registries
from llama_ablate.errors import ConfigError, Where, nearest

_SIZES = (
    *("dim", "layers", "heads", "head_dim", "context"),
    *("bias", "tie", "init_std", "logit_softcap"),
)
_TRAIN = "train."  # in front of a key of `train` on an axis
_TOKENIZER = "data.tokenizer"
#: Keys whose values may be mappings.
_ENTRIES = (
    *(*SLOTS, *RULES, "dropout", _TOKENIZER),
    *(f"{_TRAIN}{key}" for key in ("optimizer", "schedule", "losses")),
)

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
    #: Its own text, where its tokenizer is not that of the table.
    text: Text | None = field(default=None, compare=False)
    #: The kind of a control; of an A/A arm, what gets another seed: "init", "order" or "both".
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
        own = [self.text.tokens.fingerprint] if self.text else []
        if not self.train and not self.reseed and not own:
            return self.spec.id
        return digest([self.spec.identity(), dict(self.train), self.reseed, *own])

    def is_base(self, spec: ModelSpec) -> bool:
        """Return whether it is the unchanged base, whose architecture is given."""
        return self.spec == spec and not self.train and not self.text


def variants(
    experiment: Experiment,
    registries: Registries,
    vocab: int,
    cost: Cost | None = None,
    match: str = "parameters",
    separator: int | None = None,
    text_of: Callable[[Change], Text | None] = lambda _change: None,
) -> tuple[Variant, ...]:
    """Return the variants of an experiment, the baseline first, the controls last.

    `cost` counts what `match` holds equal; None matches nothing. `separator` is that of models
    that keep documents apart. `text_of` makes a variant's text from its change of the tokenizer;
    None where the tokens are those of `vocab`. Raises ConfigError with the path of the offending
    key.
    """
    arms: list[Variant] = []
    covered: list[str] = []
    base = _spec(experiment.model, (), registries, vocab)
    design = experiment.variants.design
    axes = _changes(experiment)
    left_out = _left_out(experiment, axes, registries)
    for changes in DESIGNS[design](axes):
        if left_out(changes):
            continue
        text = next((text_of(c) for c in changes if c.key == _TOKENIZER), None)
        own_vocab = text.tokens.vocab if text else vocab
        spec = _spec(experiment.model, changes, registries, own_vocab)
        train = _trained(experiment, changes, registries)
        label = _label(experiment, changes, registries)
        varied = {c.key: c.where for c in changes}
        # Without some of its combinations a product is no factorial design any more.
        factorial = design in ("product", "fraction") and not experiment.variants.exclude
        levels = {c.key: int(c.where[-1]) for c in changes} if factorial else {}
        names = {c.key: c.label for c in changes if c.label} if factorial else {}
        arm = Variant(
            label,
            spec,
            levels=levels,
            level_labels=names,
            varied=varied,
            train=train,
            text=text,
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
    if separator is None:
        return tuple(arms)
    separators = [v.text.tokens.separator if v.text else separator for v in arms]
    return tuple(
        replace(v, spec=replace(v.spec, separator=own))
        for v, own in zip(arms, separators, strict=True)
    )


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
        _check_key(key, where)
        if key == _TOKENIZER:
            raise ConfigError("a control changes the model or its training, not the text", where)
        changes.append(_change(key, value, where))
    spec = _spec(
        _model_of(base.spec, experiment.model), tuple(changes), registries, base.spec.vocab
    )
    train = {**base.train, **_trained(experiment, tuple(changes), registries)}
    yield Variant(
        "positive control",
        spec,
        role="positive",
        train=train,
        text=base.text,
        varied={c.key: c.where for c in changes},
    )


def _model_of(spec: ModelSpec, model: Model) -> Model:
    """Return the `model` section that resolves to this spec."""
    values = {k: v for k, v in spec.to_dict().items() if k in Model.model_fields}
    return model.model_copy(update=values)


def _trained(
    experiment: Experiment, changes: tuple[Change, ...], registries: Registries
) -> dict[str, Any]:
    """Return the validated changes of `train` that differ from the file's own values.

    A shorter context has as many more rows in a batch: all variants read as much in a step.
    """
    train = experiment.train
    keys = {c.key.removeprefix(_TRAIN): c for c in changes if c.key.startswith(_TRAIN)}
    values = {
        key: train_config.changed(train, key, c.value, c.where, registries)
        for key, c in keys.items()
    }
    for change in (change for change in changes if change.key == "context"):
        values["batch"] = values.get("batch", train.batch) * _parts(experiment.model, change)
    own = train.model_dump(mode="json")
    return {key: value for key, value in values.items() if value != own[key]}


def _parts(model: Model, change: Change) -> int:
    """Return into how many windows of another context the base's are cut."""
    if model.context % change.value:
        divisors = [n for n in range(1, model.context) if model.context % n == 0]
        raise ConfigError(
            f"{change.value} does not divide the base's context of {model.context}, which is the "
            f"longest and whose text the others cut in parts; allowed: {shown(divisors[-6:])}",
            change.where,
        )
    return model.context // int(change.value)


def _changes(experiment: Experiment) -> list[list[Change]]:
    """Return the changes of each axis, or of each entry, with their places in the file."""
    section = experiment.variants
    axes: list[list[Change]] = []
    for key, levels in section.axes.items():
        at: Where = ("variants", "axes", key)
        _check_key(key, at)
        if not levels:
            raise ConfigError("an axis needs at least one value", at)
        axes.append([_change(key, value, (*at, i)) for i, value in enumerate(levels)])
    for i, entry in enumerate(section.entries):
        at = ("variants", "entries", i)
        for key, value in entry.items():
            if key == "label":
                _check_label(value, (*at, key))
            else:
                _check_key(key, (*at, key))
        axes.append([_change(key, value, (*at, key)) for key, value in entry.items()])
    return axes


def _change(key: str, level: Any, where: Where) -> Change:
    """Return the change that a level makes: a value, or one with a label.

    A component's label stands beside its name, `{label: local, name: mha, window: 64}`; that of any
    other value beside `value`, `{label: wide, value: 128}`.
    """
    if not isinstance(level, Mapping) or "label" not in level:
        return Change(key, level, where)
    _check_label(level["label"], (*where, "label"))
    rest = {k: v for k, v in level.items() if k != "label"}
    if [*rest] == ["value"]:
        return Change(key, rest["value"], where, str(level["label"]))
    if key in _ENTRIES and rest:
        return Change(key, rest, where, str(level["label"]))
    what = f"a value with a label is {{label: ..., value: ...}}, not {shown(level)}"
    raise ConfigError(what, where)


def _left_out(
    experiment: Experiment, axes: list[list[Change]], registries: Registries
) -> Callable[[Sequence[Change]], bool]:
    """Return what says whether `exclude` leaves a combination out.

    Raises ConfigError for a key that is no axis, a value that its axis has not, and where no
    combination would be left.
    """
    levels = {axis[0].key: axis for axis in axes if axis}
    entries: list[list[tuple[str, list[Where]]]] = []
    for i, entry in enumerate(experiment.variants.exclude):
        where: Where = ("variants", "exclude", i)
        if not entry:
            raise ConfigError("names no combination: give values of axes", where)
        wanted = []
        for key, value in entry.items():
            if key not in levels:
                raise ConfigError(f"'{key}' is no axis{nearest(key, levels)}", (*where, key))
            named = {id(c): _level_names(c, registries) for c in levels[key]}
            places = [c.where for c in levels[key] if value == c.value or value in named[id(c)]]
            if not places:
                known = dict.fromkeys(names[0] for names in named.values())
                raise ConfigError(
                    f"{shown(value)} is no value of the axis '{key}'{nearest(value, known)}",
                    (*where, key),
                )
            wanted.append((key, places))
        entries.append(wanted)

    def left_out(changes: Sequence[Change]) -> bool:
        at = {change.key: change.where for change in changes}
        return any(all(at[key] in places for key, places in wanted) for wanted in entries)

    if entries and all(map(left_out, product(*axes))):
        raise ConfigError("leaves no combination", ("variants", "exclude"))
    return left_out


def _level_names(change: Change, registries: Registries) -> list[Any]:
    """Return what `exclude` may call a level: its label, its component's name."""
    value = change.value
    name = value.get("name") if isinstance(value, Mapping) else value
    return [change.label or (name if isinstance(name, str) else _name(change, registries)), name]


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
    }.get(section.design, "one value on every axis is one variant")
    raise ConfigError(
        f"{why}, so there is nothing to compare; without '{key}' the base alone is trained",
        ("variants", key),
    )


def _check_label(label: Any, where: Where) -> None:
    words = isinstance(label, str | int | float) and str(label)
    if not words or len(words) > 80 or not words.isprintable():
        raise ConfigError("a label is one line of 1 to 80 characters", where)


def _check_key(key: str, where: Where) -> None:
    of_train = (_TRAIN + name for name in train_config.KEYS)
    allowed = (*SLOTS, *RULES, *_SIZES, "dropout", _TOKENIZER, *of_train)
    slot, _, option = key.partition(".")
    if key not in allowed and not (slot in (*SLOTS, *RULES) and option):
        raise ConfigError(f"'{key}' cannot vary{nearest(slot if option else key, allowed)}", where)


def resets(model: Model, base: Mapping[str, Any], registries: Registries) -> list[ConfigError]:
    """Return where `model` names the base's own component, and loses options that the base set.

    `base` is the base's `model` section. In a file an entry stands for a whole component, so what
    it does not give has the component's default.
    """
    lost = []
    for slot in (*SLOTS, *RULES):
        entry, own = base.get(slot, ()), getattr(model, slot)
        if not (_is_single(entry) and _is_single(own)):
            continue
        before, after = (registries[slot].resolve(one) for one in (entry, own))
        if before.name != after.name:
            continue
        given = own if isinstance(own, Mapping) else {}
        gone = [
            f"{key}: {written(after[key])}, not {written(value)}"
            for key, value in before.options
            if value != after[key] and key not in given
        ]
        if gone:
            what = f"'{after.name}' has its default here, not what the base has ({'; '.join(gone)})"
            lost.append(ConfigError(what, ("model", slot)))
    return lost


def _is_single(entry: Any) -> bool:
    """Return whether an entry is one component, and no pattern of several."""
    return isinstance(entry, str) or (isinstance(entry, Mapping) and "name" in entry)


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
    others = ("label", _TOKENIZER)
    own = [c for c in changes if c.key not in others and not c.key.startswith(_TRAIN)]
    # An option belongs to the component that the variant has, so components come first.
    for change in sorted(own, key=lambda c: "." in c.key):
        slot, _, option = change.key.partition(".")
        value = change.value
        if option:
            value = _with_option(values[slot], option, value, change)
        elif slot in (*SLOTS, *RULES):
            value = laid_over(values[slot], value)
        values[slot], at[change.key] = value, change.where

    def located(error: ConfigError) -> ConfigError:
        key, *rest = map(str, error.where or ("",))
        if rest and (option := at.get(f"{key}.{rest[0]}")):
            return ConfigError(error.message, option)
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
    sizes = {key: values[key] for key in _SIZES}
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


def _with_option(entry: Any, option: str, value: Any, change: Change) -> dict[str, Any]:
    """Return a component's entry with an option set. Raises ConfigError for a pattern."""
    if isinstance(entry, Mapping) and "name" not in entry:
        slot = change.key.partition(".")[0]
        raise ConfigError(
            f"'{slot}' is a pattern here, so '{option}' is an option of several components: give "
            f"'{slot}' as a whole",
            change.where,
        )
    return {**({"name": entry} if isinstance(entry, str) else entry), option: value}


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
    if change.label:
        return change.label
    if change.key in SLOTS:
        return patterns.label(registries[change.key], change.value, change.where)
    if change.key in (*RULES, _TOKENIZER):
        return registries[change.key].label(change.value, change.where)
    if change.key == "dropout" and isinstance(change.value, Mapping):
        rates = (f"{kind}={written(rate)}" for kind, rate in change.value.items())
        return "-".join([change.key, *rates])
    if not change.key.startswith(_TRAIN):  # a size, or an option by its own name
        return f"{change.key.rpartition('.')[2]}={written(change.value)}"
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
    return next((v for v in variants if v.is_base(base)), variants[0])


def _matched(variant: Variant, target: int, cost: Cost, match: str) -> Variant:
    """Solve a variant's size so that it costs what the baseline costs."""
    own = counted(variant, cost)
    if match == "kv_bytes" and not own * target:
        without = f"'{variant.label}'" if target else "the baseline"
        raise ConfigError(
            f"{without} keeps no keys and values, so '{variant.label}' cannot be matched by their "
            "bytes; match: state_bytes counts whatever a mixer keeps",
            variant.where,
        )
    try:
        solved = solve(variant.spec, target, cost, knobs_for(match, variant.spec))
    except ConfigError as error:
        raise ConfigError(f"'{variant.label}' {error.message}", variant.where) from None
    return replace(variant, spec=solved.spec, residual=solved.residual, solved=solved.change)
