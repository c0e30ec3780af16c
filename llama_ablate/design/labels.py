"""What variants are called, and which combinations of levels are left out."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from llama_ablate.config import patterns
from llama_ablate.config.experiment import Experiment
from llama_ablate.config.registry import written
from llama_ablate.config.spec import RULES, SLOTS
from llama_ablate.config.validation import shown
from llama_ablate.design import train_config
from llama_ablate.design.designs import TOKENIZER, TRAIN, Change
from llama_ablate.design.train_config import Registries
from llama_ablate.errors import ConfigError, Where, nearest


def left_out(
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


def check_label(label: Any, where: Where) -> None:
    """Refuse a label that is no text of one line, or a long one."""
    words = isinstance(label, str | int | float) and str(label)
    if not words or len(words) > 80 or not words.isprintable():
        raise ConfigError("a label is one line of 1 to 80 characters", where)


def label_of(experiment: Experiment, changes: tuple[Change, ...], registries: Registries) -> str:
    """Return the label of a combination of changes: the one given, or their names."""
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
    if change.key in (*RULES, TOKENIZER):
        return registries[change.key].label(change.value, change.where)
    if change.key == "dropout" and isinstance(change.value, Mapping):
        rates = (f"{kind}={written(rate)}" for kind, rate in change.value.items())
        return "-".join([change.key, *rates])
    if not change.key.startswith(TRAIN):  # a size, or an option by its own name
        return f"{change.key.rpartition('.')[2]}={written(change.value)}"
    return train_config.label(change.key.removeprefix(TRAIN), change.value, registries)
