"""Names of components, axis values, baselines and texts, for tables and messages."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from llama_ablate.config.registry import Entry
from llama_ablate.config.schema import Data, Experiment
from llama_ablate.config.spec import RULES, SLOTS
from llama_ablate.files.strict_json import to_json

#: Label of a model in which no axis is changed; also accepted as a name of any baseline.
UNCHANGED = "baseline"
_MAX_CHARACTERS = 32  # longest label of a baseline that is made of axis values
_MAX_WHOLE = 1e15  # a smaller float has all digits of its whole number
#: Keys of an axis whose values are components.
COMPONENT_KEYS = (
    *(*SLOTS, *RULES, "data.tokenizer"),
    *("train.optimizer", "train.schedule", "train.losses"),
)
#: Keys that are written before a component's name, which alone (`linear`) would be unclear.
_EXPLAINED = ("train.schedule", "train.losses")


def format_value(value: Any) -> str:
    """Format a plain value or a component's entry: `true`, `0.003`, `rope theta=10000`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return entry_text(value)
    if isinstance(value, tuple):
        value = list(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def entry_text(entry: Any, *, options: bool = True) -> str:
    """Format a component's entry as text, `rope theta=10000`, or any other value as JSON.

    Components of a pattern over depth are joined by slashes, `mha window=64 / mha`.
    """
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, dict) or not {"name", "pattern"} & entry.keys():
        return to_json(entry)
    if "pattern" in entry:
        return " / ".join(entry_text(part, options=options) for part in entry["pattern"])
    given = {key: value for key, value in entry.items() if options and key != "name"}
    texts = (f"{key}={_write_option(value)}" for key, value in given.items() if value is not None)
    return " ".join([str(entry["name"]), *texts])


def _write_option(value: Any) -> str:
    """Format the value of an option as in YAML: `true`, `10000`."""
    if isinstance(value, bool):
        return str(value).lower()
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _MAX_WHOLE
    return str(int(value)) if is_whole else str(value)


def name_level(key: str, value: Any) -> str:
    """Name a value of an axis: `gelu`, `mha-window=64`, `kv_heads=2`, `schedule=linear`.

    The name of a component includes the options that its entry gives.
    """
    option = key.rpartition(".")[2]
    if key in COMPONENT_KEYS:
        entries = value if isinstance(value, list) else [value]
        name = "+".join(_name_component(option, entry) for entry in entries) or "none"
        return f"{option}={name}" if key in _EXPLAINED else name
    if key == "dropout" and isinstance(value, Mapping):
        return "-".join([key, *(f"{kind}={format_value(rate)}" for kind, rate in value.items())])
    return f"{option}={format_value(value)}"


def _name_component(slot: str, entry: Entry) -> str:
    if isinstance(entry, str):
        return f"no-{slot}" if entry == "none" else entry
    if "name" not in entry:  # a pattern over depth
        layers = entry.get("layers", {}).items()
        names = [_name_component(slot, part) for part in entry["pattern"]]
        return "/".join([*names, *(f"{n}={_name_component(slot, part)}" for n, part in layers)])
    options = [f"{key}={format_value(value)}" for key, value in entry.items() if key != "name"]
    return "-".join([_name_component(slot, entry["name"]), *options])


def name_levels(experiment: Experiment, model: Mapping[str, Any], data: Data) -> tuple[str, ...]:
    """Name the value that a model has on each axis: `gelu`, `kv_heads=2`, `lr=0.003`.

    `model` is the model's architecture with every default filled in, and `data` is the `data`
    section of the comparison table.
    """
    names = []
    for key in experiment.variants.axes:
        section, _, option = key.partition(".")
        entry = model.get(section) or "none"
        if section == "train":
            names.append(name_level(key, getattr(experiment.train, option)))
        elif section == "data":
            names.append(name_level(key, getattr(data, option) or "none"))
        elif section not in (*SLOTS, *RULES):
            names.append(name_level(key, model.get(key, getattr(experiment.model, key, None))))
        elif option and isinstance(entry, dict) and entry.get(option) not in (None, False):
            names.append(name_level(key, entry[option]))
        else:
            name = entry_text(entry, options=False).replace(" / ", "/")
            names.append(f"no-{section}" if name == "none" else name)
    return tuple(names)


def name_baseline(
    experiment: Experiment, model: Mapping[str, Any], data: Data, *, compared: bool = True
) -> str:
    """Name the model that has the file's own value on every axis: `gelu (baseline)`.

    If the experiment file chooses another baseline (`compared` is False), the name is `gelu` alone.
    A name that is too long is replaced by `baseline`, or by `unchanged` if `compared` is False.
    """
    name = " ".join(dict.fromkeys(name_levels(experiment, model, data)))  # without repeated names
    if not name or len(name) > _MAX_CHARACTERS:
        return UNCHANGED if compared else "unchanged"
    return f"{name} ({UNCHANGED})" if compared else name


def baseline_aliases(experiment: Experiment, model: Mapping[str, Any], data: Data) -> set[str]:
    """Return the names, other than label and id, that refer to the baseline.

    The names are `baseline`, and the baseline's value on each axis.
    """
    levels = name_levels(experiment, model, data)
    return {UNCHANGED, name_baseline(experiment, model, data), *levels}


def shorten_labels(labels: Collection[str]) -> dict[str, str]:
    """Shorten labels that begin with the baseline's label; map each label to its short form.

    With the baseline `mha (baseline)`, the label `mha-qk_norm=true` becomes `qk_norm`. A label is
    not shortened if the result would equal another label.
    """
    bases = (label for label in labels if label.endswith(f" ({UNCHANGED})"))
    base = next(bases, "").removesuffix(f" ({UNCHANGED})")
    short = {
        label: label.removeprefix(f"{base}-" * bool(base)).replace("=true", "") for label in labels
    }
    taken = Counter([*short.values(), *labels])
    return {
        label: text if taken[text] == 1 + (text == label) and text else label
        for label, text in short.items()
    }


def name_corpus(data: Data) -> str:
    """Return a short name of the training text: its own or of its file or folder, or the corpus."""
    entry = {"name": data.corpus} if isinstance(data.corpus, str) else data.corpus
    texts = [p if isinstance(p, str) else p[0] for p in map(entry.get, ("train", "path")) if p]
    parts = [part for text in texts for part in text.split("/")]
    names = [part for part in parts if part.strip(".") and not {*part} & {*"*?[{"}]
    return (data.name or names[-1]) if names else str(entry.get("name", ""))


def name_text(data: Data) -> str:
    """Name the text of a table by its corpus, the corpus options, and its document options."""
    if data.name:
        return data.name
    corpus = {"name": data.corpus} if isinstance(data.corpus, str) else dict(data.corpus)
    options = [f"{k}={v}" for k, v in corpus.items() if k not in ("name", "path")]
    read = data.model_dump(include={"documents", "order"}, exclude_defaults=True)
    return " ".join([str(corpus.get("name", "")), *options, *(f"{k}={v}" for k, v in read.items())])
