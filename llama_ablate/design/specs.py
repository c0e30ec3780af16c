"""Architectures from the keys of a file: components resolved, and changes applied."""

from collections.abc import Mapping
from typing import Any

from llama_ablate.config import patterns
from llama_ablate.config.experiment import Model
from llama_ablate.config.registry import laid_over, written
from llama_ablate.config.spec import RULES, SLOTS, STANDARD, DropoutRates, ModelSpec
from llama_ablate.config.validation import shown
from llama_ablate.design import train_config
from llama_ablate.design.designs import DATA, DRAWS, ENTRIES, SIZES, TOKENIZER, TRAIN, Change
from llama_ablate.design.labels import check_label
from llama_ablate.design.train_config import Registries
from llama_ablate.errors import ConfigError, Where, nearest


def model_of(spec: ModelSpec, model: Model) -> Model:
    """Return the `model` section that resolves to this spec."""
    values = {k: v for k, v in spec.to_dict().items() if k in Model.model_fields}
    return model.model_copy(update=values)


def parts(model: Model, change: Change) -> int:
    """Return into how many windows of another context the base's are cut."""
    if model.context % change.value:
        divisors = [n for n in range(1, model.context) if model.context % n == 0]
        raise ConfigError(
            f"{change.value} does not divide the base's context of {model.context}, which is the "
            f"longest and whose text the others cut in parts; allowed: {shown(divisors[-6:])}",
            change.where,
        )
    return model.context // int(change.value)


def change_of(key: str, level: Any, where: Where) -> Change:
    """Return the change that a level makes: a value, or one with a label.

    A component's label stands beside its name, `{label: local, name: mha, window: 64}`; that of any
    other value beside `value`, `{label: wide, value: 128}`.
    """
    if not isinstance(level, Mapping) or "label" not in level:
        return Change(key, level, where)
    check_label(level["label"], (*where, "label"))
    rest = {k: v for k, v in level.items() if k != "label"}
    if [*rest] == ["value"]:
        return Change(key, rest["value"], where, str(level["label"]))
    if key in ENTRIES and rest:
        return Change(key, rest, where, str(level["label"]))
    what = f"a value with a label is {{label: ..., value: ...}}, not {shown(level)}"
    raise ConfigError(what, where)


def check_key(key: str, where: Where) -> None:
    """Refuse a key that no axis can have."""
    of_train = (TRAIN + name for name in train_config.VARIED)
    allowed = (*SLOTS, *RULES, *SIZES, "dropout", TOKENIZER, *DATA, *of_train)
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
    return spec_of(model, (), registries, model.vocab or 256)


def spec_of(
    base: Model, changes: tuple[Change, ...], registries: Registries, vocab: int
) -> ModelSpec:
    """Resolve the base with its changes. Raises ConfigError at the change, or in `model`."""
    values = base.model_dump()
    at: dict[str, Where] = {}
    others = ("label", DRAWS, TOKENIZER, *DATA)
    own = [c for c in changes if c.key not in others and not c.key.startswith(TRAIN)]
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
    sizes = {key: values[key] for key in SIZES}
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
