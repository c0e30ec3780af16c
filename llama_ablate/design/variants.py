"""Variants of an experiment: axes, designs, labels, resolved specs, matched budgets, controls."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import isnan
from typing import Any

from llama_ablate.config import labels
from llama_ablate.config import spec as specs
from llama_ablate.config.experiment import About, Data, Experiment, Model, Train, preset
from llama_ablate.config.labels import COMPONENT_KEYS, UNCHANGED, entry_text, format_value
from llama_ablate.config.marked_yaml import Marked
from llama_ablate.config.registry import Registry, laid_over
from llama_ablate.config.spec import (
    RULES,
    SLOTS,
    STANDARD,
    DropoutRates,
    ModelSpec,
    digest,
    resolve_slot,
    shorten_entry,
)
from llama_ablate.config.validation import quote
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.design.matching import Cost, knobs_for, solve
from llama_ablate.errors import ConfigError, Where, nearest, need, under
from llama_ablate.model.components import REGISTRIES as MODEL
from llama_ablate.model.counts import count, states
from llama_ablate.model.counts import parts as parts_of
from llama_ablate.results.plan_document import CONTEXTS, PlannedText, PlannedVariant
from llama_ablate.training.registries import REGISTRIES as TRAINING

#: Registries of the components that an axis may vary, by the key of the axis.
REGISTRIES: Mapping[str, Registry] = {**MODEL, **TRAINING, "data.tokenizer": TOKENIZERS}

#: Sizes of the model that an axis may vary.
SIZES = tuple(size for size in specs.SIZES if size not in ("vocab", "separator"))
TRAIN = "train."  # prefix of a key of `train` on an axis
TOKENIZER = "data.tokenizer"
#: Keys of `data` that change a variant's training text, not its evaluation.
DATA = ("data.documents", "data.order", "data.mixture")
DRAWS = "draws"  # key of a `list` entry: `init`, `order` or `both` are drawn with another seed
#: Keys of `train` that may not be tuned: the length of a run, how it is computed, its evaluations.
_LENGTH = ("tokens", "steps", "batch", "accumulate", "timeout_s")
_COMPUTED, _EVALUATED = ("precision", "kernel", "compile"), ("evals", "branches")
TUNED = tuple(k for k in Train.model_fields if k not in (*_LENGTH, *_COMPUTED, *_EVALUATED))
#: Keys of `train` that may differ between variants.
VARIED = (*TUNED, "batch", "precision")
#: Keys whose values may be mappings.
_ENTRIES = (*COMPONENT_KEYS, "dropout")
_MODEL_KEYS = (*SLOTS, *RULES, *SIZES, "dropout")
_KEYS = (*SLOTS, *RULES, *SIZES, "dropout", TOKENIZER, *DATA, *(TRAIN + key for key in VARIED))


@dataclass(frozen=True)
class Change:
    """Change of the base experiment: a key, its value, and its path in the file."""

    #: A slot, a size, `train.lr`, or an option of a slot's component, `position.theta`.
    key: str
    value: Any
    where: Where
    #: Label of the value, if the file gives a label.
    label: str = ""


def plan_variant(experiment: Experiment, **values: Any) -> PlannedVariant:
    """Return the variant of a spec with its id and exact sizes; `values` are its other fields.

    The state is counted at the experiment's contexts. Raises ConfigError, at the change that causes
    it, if the components do not fit the sizes.
    """
    spec, trained = values["spec"], experiment.model.context
    allowed = (
        n for n in experiment.state_contexts if n > 0
    )  # others are refused with their metric
    contexts = tuple(sorted({*CONTEXTS, *allowed}))
    counted = asdict(count_at(values.get("varied", {}), spec, count))
    growth = dict(zip(contexts, states(spec, contexts), strict=True))
    if spec.context != trained and not isnan(growth[trained]):
        (longer,) = states(spec, (trained + 1,))
        counted["state_bytes"] = growth[trained]
        counted["kv_bytes_per_token"] = longer - growth[trained]
    sizes = {name: None if isnan(number) else number for name, number in counted.items()}
    sizes["state_growth"] = {at: int(size) for at, size in growth.items() if not isnan(size)}
    return PlannedVariant(**{**values, **sizes, "id": _identify(values), "model": spec.to_dict()})


def _identify(values: Mapping[str, Any]) -> str:
    """Hash architecture, changed settings, reseeding and tokens, without the label."""
    spec, train, reseed = values["spec"], values.get("train", {}), values.get("reseed", "")
    identity: list[object] = [values["text"].fingerprint] if values.get("text") else []
    identity += [{"data": values["data"]}] if values.get("data") else []
    if not train and not reseed and not identity:
        return str(spec.id)
    return digest([spec.identity(), train, reseed, *identity])


def find_place(varied: Mapping[str, Where], key: str = "", otherwise: Where | None = None) -> Where:
    """Return the path in the file of a variant's change of a key or of the key's option.

    `varied` has the path of each changed key. If several changes set the same slot, the last one
    counts. Without such a change, return `otherwise`, by default the path of the last change.
    """
    places = [at for name, at in varied.items() if name == key or name.startswith(f"{key}.")]
    return (places or [otherwise or next(reversed(list(varied.values())), ("model",))])[-1]


def _is_base(variant: PlannedVariant, spec: ModelSpec) -> bool:
    """Return whether a variant is the unchanged base, whose architecture is `spec`."""
    others = variant.train or variant.data or variant.text or variant.reseed
    return bool(variant.spec == spec and not others)


def variants_of(
    experiment: Experiment,
    vocab: int,
    cost: Cost | None = None,
    match: str = "parameters",
    separator: int | None = None,
    text_of: Callable[[Change], PlannedText | None] = lambda _change: None,
) -> list[PlannedVariant]:
    """Return the variants of an experiment, the baseline first, the controls last.

    `cost` is the function that counts the cost named by `match`; None disables matching.
    `separator` is the token between documents. `text_of` makes the text of a variant that changes
    the tokenizer; it returns None if the tokens equal the table's tokens. Raises ConfigError with
    the path of the offending key.
    """
    arms: list[PlannedVariant] = []
    covered: list[str] = []
    base = resolve(experiment.model, vocab)
    axes = _parse_changes(experiment)
    is_left_out = exclusion(experiment, axes)
    for changes in DESIGNS[experiment.variants.design](axes):
        if is_left_out(changes):
            continue
        text = next((text_of(c) for c in changes if c.key == TOKENIZER), None)
        arm = _variant(experiment, base, changes, text)
        if experiment.variants.design == "one-at-a-time" and changes and _is_base(arm, base):
            covered.append(arm.label)
        else:
            arms.append(arm)
    _check_comparison(experiment, arms)
    baseline = _choose_baseline(experiment, arms, base)
    same_as_base = next((v for v in arms if _is_base(v, base)), None)
    arms = [
        v.model_copy(
            update={"baseline": v is baseline, "covers": covered if v is same_as_base else []}
        )
        for v in arms
    ]
    arms.sort(key=lambda v: not v.baseline)
    if len(arms) > 1:  # a single arm has nothing to control
        arms += _controls(experiment, arms[0])
    _check_distinct(arms)
    if cost is not None:
        target = count_at(arms[0].varied, arms[0].spec, cost)
        arms = [
            v if v.baseline or v.role == "aa" else _match_size(experiment, v, target, cost, match)
            for v in arms
        ]
        _check_distinct(arms)  # variants that differ only in width are equal after matching
    return [_with_separator(experiment, v, separator) for v in arms]


def _variant(
    experiment: Experiment, base: ModelSpec, changes: Sequence[Change], text: PlannedText | None
) -> PlannedVariant:
    """Return the variant with a combination of changes, before its cost is matched."""
    factorial = experiment.variants.design in ("product", "fraction")
    draws = next((change for change in changes if change.key == DRAWS), None)
    if draws:
        said = f"{quote(draws.value)} is not allowed here; allowed: init, order, both"
        need(draws.value in ("init", "order", "both"), said, *draws.where)
    vocab = text.vocab if text else base.vocab
    spec = spec_of(experiment.model, base, changes, vocab)  # first, since labels need valid values
    return plan_variant(
        experiment,
        label=label_of(experiment, changes),
        spec=spec,
        train=_train_changes(experiment, changes),
        data=_data_changes(experiment.data, changes),
        text=text,
        reseed=draws.value if draws else "",
        levels={c.key: int(c.where[-1]) for c in changes} if factorial else {},
        level_labels={c.key: c.label for c in changes if c.label} if factorial else {},
        varied={c.key: c.where for c in changes},
    )


def _with_separator(
    experiment: Experiment, variant: PlannedVariant, separator: int | None
) -> PlannedVariant:
    """Set the separator for a per-document mask, if the variant's data has `documents: mask`."""
    if experiment.data.with_changes(variant.data).documents == "continue":
        return variant
    own_separator = variant.text.separator if variant.text else separator
    spec = replace(variant.spec, separator=own_separator)
    return plan_variant(experiment, **dict(variant) | {"spec": spec})


def _check_distinct(variants: Sequence[PlannedVariant]) -> None:
    ids: dict[str, PlannedVariant] = {}
    labels: dict[str, PlannedVariant] = {}
    for variant in variants:
        twin, place = ids.setdefault(variant.id, variant), find_place(variant.varied)
        need(twin is variant, f"'{variant.label}' is the same variant as '{twin.label}'", *place)
        is_first = labels.setdefault(variant.label, variant) is variant
        said = f"two variants have the label '{variant.label}'"
        need(is_first, said, *variant.varied.get("label", place))


def count_at(varied: Mapping[str, Where], spec: ModelSpec, cost: Callable[[ModelSpec], Any]) -> Any:
    """Return the cost of a spec. Raises ConfigError at the change that causes an error."""
    try:
        return cost(spec)
    except ConfigError as error:
        slot = error.where[:1]
        place = find_place(varied, str(slot[0]), ("model", *slot)) if slot else find_place(varied)
        raise ConfigError(error.message, place) from None


def _controls(experiment: Experiment, base: PlannedVariant) -> Iterator[PlannedVariant]:
    """Yield the control arms: A/A arms, and the positive control."""
    controls = experiment.controls
    for reseed in controls.aa:
        label = "A/A" if len(controls.aa) == 1 else f"A/A {reseed}"
        changed = {"label": label, "baseline": False, "role": "aa", "reseed": reseed}
        changed |= {"levels": {}, "level_labels": {}, "varied": {"controls": ("controls", "aa")}}
        yield plan_variant(experiment, **dict(base) | changed)
    if not controls.positive:
        return
    changes = []
    for key, value in controls.positive.items():
        where: Where = ("controls", "positive", key)
        check_key(key, where)
        said = "a control changes the model or its training, not the text"
        need(key != TOKENIZER, said, *where)
        changes.append(change_of(key, value, where))
    spec = spec_of(section_of(base.spec, experiment.model), base.spec, changes)
    yield plan_variant(
        experiment,
        label="positive control",
        spec=spec,
        role="positive",
        train={**base.train, **_train_changes(experiment, changes)},
        data={**base.data, **_data_changes(experiment.data, changes)},
        text=base.text,
        varied={c.key: c.where for c in changes},
    )


def _train_changes(experiment: Experiment, changes: Sequence[Change]) -> dict[str, Any]:
    """Validate changes of `train`; return the values that differ from those in the file.

    A variant with a shorter context gets proportionally more rows in a batch, so that all variants
    read equally many tokens in a step.
    """
    train = experiment.train
    keys = {c.key.removeprefix(TRAIN): c for c in changes if c.key.startswith(TRAIN)}
    values = {key: resolve_train_key(train, key, c.value, c.where) for key, c in keys.items()}
    for change in (change for change in changes if change.key == "context"):
        values["batch"] = values.get("batch", train.batch) * count_windows(experiment.model, change)
    if "precision" in keys:
        said = "where the precision varies, each is stated in 'train' and on the axis: bfloat16, "
        is_stated = "auto" not in (values["precision"], train.precision)
        need(is_stated, f"{said}float32", *keys["precision"].where)
    if "batch" in keys:
        part, ranks = values["batch"] // train.accumulate, experiment.parallel.data
        said = f"{ranks} processes cannot share {part} rows evenly"
        need(part % ranks == 0, said, *keys["batch"].where)
    base_values = train.model_dump(mode="json")
    return {key: value for key, value in values.items() if value != base_values[key]}


def _data_changes(data: Data, changes: Sequence[Change]) -> dict[str, Any]:
    """Validate changes of `data`; return the values that differ from the text's own values."""
    base_values, values = data.model_dump(mode="json"), {}
    for change in (change for change in changes if change.key in DATA):
        key = change.key.partition(".")[2]
        with under(change.where, (key,)):
            values[key] = data.with_changes({key: change.value}).model_dump(mode="json")[key]
    return {key: value for key, value in values.items() if value != base_values[key]}


def _parse_changes(experiment: Experiment) -> list[list[Change]]:
    """Parse `variants.axes` or `variants.entries` to a list of changes per axis or entry."""
    section = experiment.variants
    axes: list[list[Change]] = []
    for key, levels in section.axes.items():
        at: Where = ("variants", "axes", key)
        check_key(key, at)
        need(levels, "an axis needs at least one value", *at)
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


def _check_comparison(experiment: Experiment, arms: Sequence[PlannedVariant]) -> None:
    """Raise ConfigError if axes or entries define a single variant, and nothing else varies."""
    section = experiment.variants
    key = "entries" if section.design == "list" else "axes"
    several = experiment.tune or experiment.sizes or len(experiment.texts) > 1
    several = several or len(experiment.budget) > 1 or experiment.controls.positive
    if len(arms) == 1 and not several and getattr(section, key):
        raise ConfigError(
            "one variant, so there is nothing to compare: write another value, or of a product "
            f"the base's too, as [false, true]; without '{key}' the base alone is trained",
            ("variants", key),
        )


def _choose_baseline(
    experiment: Experiment, variants: list[PlannedVariant], base: ModelSpec
) -> PlannedVariant:
    """Return the baseline: the named variant, else the unchanged base, else the first variant."""
    unchanged = next((v for v in variants if _is_base(v, base)), None)
    named = experiment.variants.baseline
    chosen = next((v for v in variants if v.label == named), None)
    if named is None or chosen:
        return chosen or unchanged or variants[0]
    aliases = labels.baseline_aliases(experiment, base.to_dict(), experiment.data)
    if unchanged and named in aliases:
        return unchanged
    hint = nearest(named, [v.label for v in variants])
    raise ConfigError(f"no variant is called '{named}'{hint}", ("variants", "baseline"))


def _match_size(
    experiment: Experiment, variant: PlannedVariant, target: int, cost: Cost, match: str
) -> PlannedVariant:
    """Return a variant with one size solved so that its cost matches the baseline's cost."""
    counted = count_at(variant.varied, variant.spec, cost)
    with under(find_place(variant.varied), None):
        if match == "kv_bytes" and not counted * target:
            without = f"'{variant.label}'" if target else "the baseline"
            raise ConfigError(
                f"a further token adds no bytes to what {without} keeps at the training context, so"
                f" '{variant.label}' cannot be matched by them; match: state_bytes counts all of it"
            )
        try:
            solved = solve(variant.spec, target, cost, knobs_for(match, variant.spec))
        except ConfigError as error:
            raise ConfigError(f"'{variant.label}' {error.message}") from None
    sizes = {"spec": solved.spec, "residual": solved.residual, "solved": solved.change}
    return plan_variant(experiment, **dict(variant) | sizes)


def _one_at_a_time(axes: list[list[Change]]) -> Iterator[tuple[Change, ...]]:
    yield ()
    yield from ((change,) for axis in axes for change in axis)


def _path(axes: list[list[Change]]) -> Iterator[tuple[Change, ...]]:
    steps = [change for axis in axes for change in axis]
    yield from (tuple(steps[:n]) for n in range(len(steps) + 1))


def _fraction(axes: list[list[Change]]) -> Iterator[tuple[Change, ...]]:
    for axis in axes:
        said = f"design 'fraction' needs two values on every axis, not {len(axis)}"
        need(len(axis) == 2, said, *axis[0].where[:-1])
    for run in half_fraction(len(axes)):
        yield tuple(axis[level] for axis, level in zip(axes, run, strict=True))


def half_fraction(factors: int) -> list[tuple[int, ...]]:
    """Return the runs of a 2^(k-1) design as tuples of levels, the all-0 run first.

    Levels are 0 and 1. The level of the last factor is the sum of the other levels modulo two, so
    that the product of all signs is the same in every run: a design of resolution k. With five
    factors or more, main effects and two-way interactions are then not aliased with each other
    (Box, Hunter & Hunter 2005, Statistics for Experimenters, chapter 6). With fewer factors some
    would be aliased, so all 2^k runs are returned.
    """
    if factors < 5:
        return list(product((0, 1), repeat=factors))
    return [(*run, sum(run) % 2) for run in product((0, 1), repeat=factors - 1)]


#: Functions that turn axes (lists of alternatives) into variants (tuples of changes), by design.
DESIGNS: dict[str, Callable[[list[list[Change]]], Iterable[tuple[Change, ...]]]] = {
    "one-at-a-time": _one_at_a_time,
    "product": lambda axes: product(*axes),
    "fraction": _fraction,
    "path": _path,
    "list": lambda entries: (tuple(entry) for entry in entries),
}


def change_of(key: str, level: Any, where: Where) -> Change:
    """Parse an axis value, which may have a label, into a change.

    A labelled component has a further key in its entry, `{label: local, name: mha, window: 64}`.
    Any other labelled value is written `{label: wide, value: 128}`.
    """
    if not isinstance(level, Mapping) or "label" not in level:
        return Change(key, level, where)
    check_label(level["label"], (*where, "label"))
    rest = {k: v for k, v in level.items() if k != "label"}
    if [*rest] == ["value"]:
        return Change(key, rest["value"], where, str(level["label"]))
    if key in _ENTRIES and rest:
        return Change(key, rest, where, str(level["label"]))
    what = f"a value with a label is {{label: ..., value: ...}}, not {quote(level)}"
    raise ConfigError(what, where)


def check_key(key: str, where: Where) -> None:
    """Refuse a key that cannot vary on an axis."""
    slot, _, option = key.partition(".")
    if key not in _KEYS and not (slot in (*SLOTS, *RULES) and option):
        raise ConfigError(f"'{key}' cannot vary{nearest(slot if option else key, _KEYS)}", where)


def exclusion(
    experiment: Experiment, axes: list[list[Change]]
) -> Callable[[Sequence[Change]], bool]:
    """Return a predicate that is true for the combinations that `exclude` leaves out.

    Raises ConfigError for a key that is not an axis, a value that its axis does not have, and an
    exclusion of all combinations.
    """
    levels = {axis[0].key: axis for axis in axes if axis}
    entries: list[list[tuple[str, list[Where]]]] = []
    for i, entry in enumerate(experiment.variants.exclude):
        where: Where = ("variants", "exclude", i)
        need(entry, "names no combination: give values of axes", *where)
        wanted = []
        for key, value in entry.items():
            need(key in levels, f"'{key}' is no axis{nearest(key, levels)}", *where, key)
            names = [(change, _level_names(change)) for change in levels[key]]
            places = [c.where for c, called in names if value == c.value or value in called]
            hint = "" if places else nearest(value, dict.fromkeys(called[0] for _, called in names))
            need(places, f"{quote(value)} is no value of the axis '{key}'{hint}", *where, key)
            wanted.append((key, places))
        entries.append(wanted)

    def left_out(changes: Sequence[Change]) -> bool:
        at = {change.key: change.where for change in changes}
        return any(all(at[key] in places for key, places in wanted) for wanted in entries)

    is_some = not entries or not all(map(left_out, product(*axes)))
    need(is_some, "leaves no combination", "variants", "exclude")
    return left_out


def _level_names(change: Change) -> list[Any]:
    """Return the names by which `exclude` may refer to an axis value.

    The names are the value's label and its component's name.
    """
    value = change.value
    name = value.get("name") if isinstance(value, Mapping) else value
    return [change.label or (name if isinstance(name, str) else _name(change)), name]


def check_label(label: Any, where: Where) -> None:
    """Refuse a label that is not one line of 1 to 80 printable characters."""
    words = str(label) if isinstance(label, str | int | float) else ""
    is_line = 0 < len(words) <= 80 and words.isprintable()
    need(is_line, "a label is one line of 1 to 80 characters", *where)


def label_of(experiment: Experiment, changes: Sequence[Change]) -> str:
    """Return the label of a combination of changes: the given label, or the changes' names."""
    given = next((change.value for change in changes if change.key == "label"), None)
    if given is not None:
        return str(given)
    if not changes:
        return UNCHANGED
    names = [_name(change) for change in changes]
    return f"+{names[-1]}" if experiment.variants.design == "path" else " ".join(names)


def _name(change: Change) -> str:
    """Return the name of a change: its label, its component's name, or key and value."""
    value, key = change.value, change.key.removeprefix(TRAIN)
    registry = TRAINING.get(key) if change.key.startswith(TRAIN) else REGISTRIES.get(key)
    if registry is not None and not change.label:
        value = shorten_entry(registry, value, change.where)
    return change.label or labels.name_level(change.key, value)


def resolve(model: Model, vocab: int | None = None) -> ModelSpec:
    """Return the spec of a `model` section, with every default filled in.

    The vocabulary size is `vocab` if given, else the section's `vocab`, else 256. Raises
    ConfigError with the path of the offending key.
    """
    with under(("model",)):
        return _resolve_spec(model, vocab or model.vocab or 256)


def resolve_preset(name: str, sets: Sequence[str] = ()) -> tuple[ModelSpec, About]:
    """Return the spec of a preset, and the notes on its source.

    Raises ConfigError for an unknown preset, or a `--set` that cannot be applied.
    """
    loaded = preset(name, tuple(sets))
    with Marked({}).located():
        spec = resolve(loaded.model)
        with under(("model",)):
            parts_of(spec)
    return spec, loaded.about


def spec_of(
    model: Model, base: ModelSpec, changes: Sequence[Change], vocab: int | None = None
) -> ModelSpec:
    """Return the spec that a `model` section has after some changes.

    `base` is the spec of the section before the changes. Only the changed keys are validated.
    Raises ConfigError with the path of the offending change, or of a key of `model`.
    """
    at: dict[str, Where] = {}
    values: dict[str, Any] = {}
    # An option applies to the variant's component, so components are changed first.
    for change in sorted(changes, key=lambda change: "." in change.key):
        slot, _, option = change.key.partition(".")
        if change.key not in _MODEL_KEYS and not (slot in (*SLOTS, *RULES) and option):
            continue  # a key of `train` or `data`, or of the entry itself
        value, before = change.value, values.get(slot, getattr(model, slot))
        if option:
            value = _with_option(before, option, value, change)
        elif slot in (*SLOTS, *RULES):
            value = laid_over(before, value)
        values[slot], at[change.key] = value, change.where
    try:
        changed = Model.check(values)
        merged = model.model_copy(update={key: getattr(changed, key) for key in values})
        return _resolve_spec(merged, base.vocab if vocab is None else vocab, base, {*values})
    except ConfigError as error:
        key, *rest = map(str, error.where or ("",))
        place = at.get(f"{key}.{rest[0]}") if rest else None
        location = (*at.get(key, ("model", key)), *error.where[1:])
        raise ConfigError(error.message, place or location) from None


def _resolve_spec(
    model: Model, vocab: int, base: ModelSpec | None = None, changed: Collection[str] = ()
) -> ModelSpec:
    """Resolve a `model` section to its spec.

    If `base`, the spec before the changes, is given, components are resolved again only if their
    own key or the number of layers is in `changed`.
    """
    components: dict[str, Any] = {}
    for key in (*SLOTS, *RULES):
        entry = getattr(model, key)
        if base and not {key, "layers"} & {*changed}:
            components[key] = getattr(base, key)
        elif key in SLOTS:
            components[key] = resolve_slot(REGISTRIES[key], entry, model.layers, (key,))
        else:
            components[key] = REGISTRIES[key].resolve(entry, (key,))
    if model.head_dim is None and model.dim % model.heads:
        divisors = [str(n) for n in range(1, model.dim + 1) if model.dim % n == 0]
        key = next((key for key in ("heads", "dim") if key in changed), "heads")
        raise ConfigError(
            f"{model.heads} heads do not divide dim {model.dim}; allowed: {', '.join(divisors)}",
            (key,),
        )
    sizes = {key: getattr(model, key) for key in SIZES}
    if model.init_std == "1/sqrt(dim)":
        rule = components["parametrization"]
        said = f"'1/sqrt(dim)': '{rule.name}' scales initial weights itself; give the base's number"
        need(rule == STANDARD, said, "init_std")
        sizes["init_std"] = model.dim**-0.5
    dropout = model.dropout
    rates = dropout if isinstance(dropout, int | float) else dropout.model_dump()
    sizes["head_dim"] = model.head_dim or model.dim // model.heads
    return ModelSpec(vocab=vocab, dropout=DropoutRates.of(rates), **sizes, **components)


def _with_option(entry: Any, option: str, value: Any, change: Change) -> dict[str, Any]:
    """Return a component's entry with an option set. Raises ConfigError for a pattern."""
    slot = change.key.partition(".")[0]
    said = f"'{slot}' is a pattern here, so '{option}' is an option of several components: give "
    is_one = not isinstance(entry, Mapping) or "name" in entry
    need(is_one, f"{said}'{slot}' as a whole", *change.where)
    return {**({"name": entry} if isinstance(entry, str) else entry), option: value}


def section_of(spec: ModelSpec, model: Model) -> Model:
    """Return the `model` section that resolves to this spec."""
    values = {k: v for k, v in spec.to_dict().items() if k in Model.model_fields}
    return model.model_copy(update=values)


def count_windows(model: Model, change: Change) -> int:
    """Return the ratio of the base's context to the shorter context of a change.

    Raises ConfigError if the ratio is not a whole number.
    """
    if model.context % change.value:
        divisors = [n for n in range(1, model.context) if model.context % n == 0]
        raise ConfigError(
            f"{change.value} does not divide the base's context of {model.context}, which is the "
            f"longest and whose text the others cut in parts; allowed: {quote(divisors[-6:])}",
            change.where,
        )
    return model.context // int(change.value)


def find_reset_options(model: Model, base: Mapping[str, Any]) -> list[ConfigError]:
    """Find components in `model` that reset options of the base to their defaults.

    `base` is the `model` section of the file's base. An entry in a file replaces the whole
    component of the base, so an option that the entry does not give has the component's default.
    The errors are returned, not raised.
    """
    lost = []
    for slot in (*SLOTS, *RULES):
        entry, new_entry = base.get(slot, ()), getattr(model, slot)
        if not (_is_single(entry) and _is_single(new_entry)):
            continue
        before, after = (REGISTRIES[slot].resolve(each_entry) for each_entry in (entry, new_entry))
        if before.name != after.name:
            continue
        given = new_entry if isinstance(new_entry, Mapping) else {}
        gone = [
            f"{key}: {format_value(after[key])}, not {format_value(value)}"
            for key, value in before.options
            if value != after[key] and key not in given
        ]
        if gone:
            what = f"'{after.name}' has its default here, not what the base has ({'; '.join(gone)})"
            lost.append(ConfigError(what, ("model", slot)))
    return lost


def _is_single(entry: Any) -> bool:
    """Return whether an entry is a single component, not a pattern."""
    return isinstance(entry, str) or (isinstance(entry, Mapping) and "name" in entry)


def resolve_train(train: Train) -> Train:
    """Return a train config whose entries are in their shortest form.

    The key of an entry in `train` selects the registry. Raises ConfigError, at the key, for an
    unknown component, and for an option that the component does not have.
    """
    entries: dict[str, Any] = {}
    for key in TRAINING.keys() & Train.model_fields.keys():
        value, registry = getattr(train, key), REGISTRIES[key]
        entries[key] = (
            [registry.resolve(part, (key, i)).shortest() for i, part in enumerate(value)]
            if isinstance(value, list)
            else registry.resolve(value, (key,)).shortest()
        )
    schedule = entry_text(entries.get("schedule", train.schedule), options=False)
    is_wsd = schedule == "wsd" or not train.branches
    need(is_wsd, f"'branches' need the schedule 'wsd', not '{schedule}'", "branches")
    return train.model_copy(update=entries)


def resolve_train_key(
    train: Train, key: str, value: Any, where: Where, *, tuned: bool = False
) -> Any:
    """Validate a value for a key of `train`; return the value as plain JSON.

    If the value names the component that `train` has already, only the options in the value change.
    Raises ConfigError for a key that may not vary, and for an invalid value.
    """
    if key not in (allowed := TUNED if tuned else VARIED):
        raise ConfigError(
            f"'{key}' is not a key of train that may vary{nearest(key, allowed)}",
            where[:-1] if isinstance(where[-1], int) else where,
        )
    if key in TRAINING and not isinstance(getattr(train, key), list):
        value = laid_over(getattr(train, key), value)
    with under(where, (key,)):
        config = resolve_train(Train.check({**train.model_dump(), key: value}))
    return config.model_dump(mode="json")[key]


def train_components(train: Train) -> list[tuple[str, Callable[..., Any]]]:
    """Return the name and the class or function of every component of a train config."""
    names = [
        (key, entry_text(entry, options=False))
        for key in TRAINING.keys() & Train.model_fields.keys()
        for entry in _listed(getattr(train, key))
    ]
    return [(name, REGISTRIES[key].get(name)) for key, name in names]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
