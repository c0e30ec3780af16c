"""Labels of baselines, built from their value on each axis."""

from collections.abc import Mapping
from typing import Any

from llama_ablate.config.experiment import Data, Experiment
from llama_ablate.config.registry import entry_text, written
from llama_ablate.config.spec import RULES, SLOTS

#: The label of a model in which no axis is changed; also a name for whatever the baseline is.
UNCHANGED = "baseline"
#: The most characters that a label takes of the values; of more axes it is `baseline`.
_LONGEST = 32


def levels(experiment: Experiment, model: Mapping[str, Any], data: Data) -> tuple[str, ...]:
    """Return a model's value on each axis as labels: `gelu`, `kv_heads=2`, `lr=0.003`.

    `model` is its architecture with every default filled in, `data` the text of its table.
    """
    values = []
    for key, axis in experiment.variants.axes.items():
        slot, _, option = key.partition(".")
        if key == "data.tokenizer":
            values.append(entry_text(data.tokenizer))
        elif slot == "data":
            values.append(_written(getattr(data, option) or "none", option))
        elif slot == "train":
            own = getattr(experiment.train, option)
            named = option if isinstance(own, int | float) else ""
            values.append(_written(own, named))
        elif slot in (*SLOTS, *RULES):
            values.append(_component(slot, model.get(slot), option, axis))
        else:
            values.append(_written(model.get(key, getattr(experiment.model, key, None)), key))
    return tuple(values)


def label(
    experiment: Experiment, model: Mapping[str, Any], data: Data, *, compared: bool = True
) -> str:
    """Return the label of a model in which no axis is changed: `gelu (baseline)`.

    Where it is not what others are `compared` with, as the file names another, `gelu`.
    """
    name = " ".join(levels(experiment, model, data))
    if not name or len(name) > _LONGEST:
        return UNCHANGED if compared else "unchanged"
    return f"{name} ({UNCHANGED})" if compared else name


def aliases(experiment: Experiment, model: Mapping[str, Any], data: Data) -> set[str]:
    """Return the names of a baseline, besides its label and id."""
    slots = {key.partition(".")[0] for key in experiment.variants.axes}
    parts = [model[slot] for slot in slots if isinstance(model.get(slot), Mapping)]
    names = {str(part["name"]) for part in parts if "name" in part}
    label_of_it = label(experiment, model, data)
    return {UNCHANGED, label_of_it, *levels(experiment, model, data), *names}


def _component(slot: str, entry: Any, option: str, axis: list[Any]) -> str:
    """Write a component; with an option, where it alone is varied."""
    if not isinstance(entry, Mapping) or "name" not in entry:
        return f"no-{slot}" if entry in (None, "none") else entry_text(entry, options=False)
    same = (e for e in axis if isinstance(e, Mapping) and e.get("name") == entry["name"])
    varied = [option] if option else [*dict.fromkeys(k for e in same for k in e if k != "name")]
    if len(varied) != 1 or entry.get(varied[0]) in (None, False):
        return str(entry["name"])
    value = _written(entry[varied[0]], varied[0])
    return value if option else f"{entry['name']}-{value}"


def _written(value: Any, name: str) -> str:
    if isinstance(value, Mapping) and "name" in value:
        return entry_text(value, options=False)
    return f"{name}={written(value)}" if name else str(written(value))
