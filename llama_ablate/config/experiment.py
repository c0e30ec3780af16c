"""Load an experiment file: merge YAML over its base, apply overrides, validate.

`load` reads the YAML, merges it over its `base` (a preset or another file), applies `--set`
overrides, and checks every key and type. In the returned experiment, components still have the
names and options that the user wrote; `llama_ablate.design` looks them up in the registries later,
and refuses unknown components.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from llama_ablate.config.marked_yaml import Mark, Marked, parse, scalar
from llama_ablate.config.marked_yaml import load as load_yaml
from llama_ablate.config.schema import About, Data, Experiment, Hypothesis, Model, Preset, Train
from llama_ablate.errors import ConfigError, Where, dotted, nearest
from llama_ablate.files.slugs import slug

__all__ = [
    "About",
    "Data",
    "Experiment",
    "ExperimentFile",
    "Hypothesis",
    "Model",
    "Preset",
    "Train",
    "from_mapping",
    "load",
    "preset",
    "presets",
    "slug",
]

_MERGED = ("model", "data", "train")  # sections that are merged into the base's key by key
#: Sections whose keys are paths, and may contain dots.
_CHANGE_PATHS = (("variants", "axes"), ("controls", "positive"))
#: Groups of alternative keys: a key in a file or a `--set` replaces the base's alternatives.
_ONE_OF: tuple[tuple[Where, ...], ...] = (
    (("train", "tokens"), ("train", "steps"), ("sizes", "tokens_per_parameter")),
    (("texts",), ("data",)),
)


@dataclass(frozen=True)
class ExperimentFile:
    """Experiment with its source file, so that errors name file, line and column."""

    experiment: Experiment
    #: Values of the file, with the line and column of each.
    marked: Marked
    #: Text of the file, after one comment line for each override.
    text: str
    #: The `model` section of the file's base, without the file's own keys.
    base_model: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, experiment: Experiment) -> "ExperimentFile":
        """Wrap an experiment that was not read from a file.

        Error messages then name the key, without file, line and column.
        """
        return cls(experiment, Marked({}), "")

    def locate(self, error: ConfigError) -> ConfigError:
        """Return the error with file, line and column of the wrong key or value."""
        return self.marked.locate(error)

    def located(self) -> AbstractContextManager[None]:
        """Return a context manager that adds file, line and column to a ConfigError."""
        return self.marked.located()


def load(path: Path | str, sets: tuple[str, ...] = ()) -> ExperimentFile:
    """Read an experiment file. Raises ConfigError, one sentence with file, line and column.

    `sets` are overrides in the form `train.lr=3e-4`, as given with `--set`.
    """
    return _source(load_yaml(Path(path)), Path(path), sets)


def read(text: str, path: Path) -> ExperimentFile:
    """Parse the text of an experiment file; error messages name `path` as the file.

    Raises ConfigError as `load` does.
    """
    return _source(parse(text, str(path)), path, ())


def from_mapping(values: Mapping[str, Any], sets: tuple[str, ...] = ()) -> ExperimentFile:
    """Read an experiment from a mapping with the keys of an experiment file.

    A relative path in `base` starts from the working directory. The text of the returned experiment
    is the mapping as YAML. Raises ConfigError as `load` does.
    """
    if "name" not in values:
        raise ConfigError("needs a name, which its results are kept under", ("name",))
    try:
        text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError:
        raise ConfigError("an experiment holds numbers, text, lists and mappings alone") from None
    read = parse(text, "experiment")
    return _source(Marked(read.values, {}, text), Path(), sets)


def _source(marked: Marked, path: Path, sets: tuple[str, ...]) -> ExperimentFile:
    for text in sets:
        if text.startswith("base="):
            _override(marked, text)  # before the other overrides, which change the base's values
    own_name = marked.values.get("name", path.stem)
    marked, base_model = _over_base(marked, path, (path,))
    marked.values["name"] = own_name  # never the base's name: each experiment has separate results
    for text in sets:
        _override(marked, text)
    with marked.located():
        experiment = Experiment.check(marked.values)
    if {"data", "texts"} <= marked.values.keys():
        both = ConfigError("'texts' stands in place of 'data': name one of them", ("texts",))
        raise marked.locate(both)
    overrides = "".join(f"# --set {text}\n" for text in sets)
    return ExperimentFile(experiment, marked, overrides + marked.text, base_model)


def presets() -> dict[str, str]:
    """Return the YAML text of each preset that the key `base` may name, by name."""
    folder = resources.files("llama_ablate.config") / "presets"
    files = sorted(folder.iterdir(), key=lambda f: f.name)
    return {f.name.removesuffix(".yaml"): f.read_text() for f in files if f.name.endswith(".yaml")}


def preset(name: str, sets: tuple[str, ...] = ()) -> Preset:
    """Return a validated preset with overrides, such as `model.tie=true`.

    Raises ConfigError for an unknown name, or for a `--set` that does not fit.
    """
    presets_by_name = presets()
    if name not in presets_by_name:
        raise ConfigError(f"'{name}' is not a preset{nearest(name, presets_by_name)}")
    recipe = parse(presets_by_name[name], f"{name}.yaml")
    for text in sets:
        _override(recipe, text)
    with recipe.located():
        return Preset.check(recipe.values)


def _over_base(
    marked: Marked, path: Path, seen: tuple[Path, ...]
) -> tuple[Marked, Mapping[str, Any]]:
    """Merge an experiment file over its base; return the result and the base's `model`.

    The marks (line and column of each value) are merged, too. `seen` are the files whose bases are
    being merged, so that a file that is based on itself is refused. Raises ConfigError for a base
    that does not exist.
    """
    name = marked.values.get("base", "llama2-tiny")
    if not isinstance(name, str):
        raise marked.locate(ConfigError("must be a preset's name or a file", ("base",)))
    presets_by_name = presets()
    if name in presets_by_name:
        # Without marks: an error in a preset's value is reported at the file that names the preset.
        preset = parse(presets_by_name[name], f"{name}.yaml").values
        base = Marked({"model": preset["model"]})
    elif name.endswith((".yaml", ".yml")):
        file = path.parent / name
        try:
            circular = file.resolve() in {p.resolve() for p in seen}
            there = file.is_file()
        except (OSError, RuntimeError):  # a name that is too long, a link to itself
            circular = there = False
        if circular or not there:
            message = f"'{name}' is based on itself" if circular else f"there is no file '{file}'"
            raise marked.locate(ConfigError(message, ("base",)))
        base, _ = _over_base(load_yaml(file), file, (*seen, file))
    else:
        message = (
            f"'{name:.80}' is neither a preset nor a .yaml file{nearest(name, presets_by_name)}"
        )
        raise marked.locate(ConfigError(message, ("base",)))

    values: dict[str, Any] = dict(base.values)
    taken: set[Where] = set()
    for key, value in marked.values.items():
        merged = key in _MERGED and isinstance(value, dict) and isinstance(values.get(key), dict)
        taken |= {(key, inner) for inner in value} if merged else {(key,)}
        values[key] = {**values[key], **value} if merged else value
    # The file replaces an entry as a whole, so no mark of the base's entry may remain.
    marks = {w: m for w, m in base.marks.items() if taken.isdisjoint((w[:1], w[:2]))}
    stated_places = {where for group in _ONE_OF for where in group if _holds(marked.values, where)}
    _drop_others(values, stated_places)
    model = base.values.get("model")
    merged_marks = Marked(values, marks | marked.marks, marked.text)
    return merged_marks, model if isinstance(model, dict) else {}


def _override(marked: Marked, text: str) -> None:
    """Apply one `--set KEY=VALUE` to the parsed experiment file.

    Errors about the new value then name this `--set` instead of a line of the file. Raises
    ConfigError for a text that is not KEY=VALUE, and for a key that cannot be set.
    """
    key, equals, value = text.partition("=")
    where = _path_of(key)
    if not equals or "" in where:
        raise ConfigError(f"--set {text}: expected KEY=VALUE, such as train.lr=3e-4")
    is_path = value.startswith(("/", ".")) and not isinstance(scalar(value), int | float)
    # Otherwise it is parsed as YAML: a number, a word, `[1, 2]` or `{name: rope, theta: 5e5}`.
    given = value if is_path else parse(f"value: {value}", f"--set {text}").values["value"]
    inner: Any = marked.values
    for depth, part in enumerate(where):
        if isinstance(inner, list) and not (isinstance(part, int) and part < len(inner)):
            place = dotted(where[:depth])
            raise ConfigError(f"--set {text}: {place} has the entries 0 to {len(inner) - 1}")
        if not isinstance(inner, dict | list):
            raise ConfigError(f"--set {text}: '{dotted(where[:depth])}' holds no keys")
        if depth + 1 < len(where):
            inner = _section(inner, part)
    inner[where[-1]] = given
    for below in [w for w in marked.marks if w[: len(where)] == where]:
        del marked.marks[below]
    mark = Mark(f"--set {text}", 1, len(key) + 2)
    marked.marks[where] = mark
    for depth in range(1, len(where)):  # mark sections that only this override creates
        marked.marks.setdefault(where[:depth], mark)
    _drop_others(marked.values, {where})


def _section(values: Any, key: Any) -> Any:
    """Return the section at a key; add an empty section if the key is missing.

    A component that is given as a bare name is first converted to a mapping, to which options can
    be added.
    """
    section = values[key] if isinstance(values, list) else values.setdefault(key, {})
    if isinstance(section, str):
        values[key] = section = {"name": section}
    return section


def _path_of(key: str) -> Where:
    """Parse the KEY of a `--set` to a path of keys and list indices.

    Whole numbers are list indices. A key of the `model` section may be given without `model`, such
    as `position.theta`. The sections `variants.axes` and `controls.positive` have keys with dots,
    such as `train.lr`: after these sections, all parts up to a list index form one key.
    """
    parts: Where = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
    if parts[0] in Model.model_fields:
        parts = ("model", *parts)
    for section in _CHANGE_PATHS:
        if parts[: len(section)] == section and (rest := parts[len(section) :]) and "" not in rest:
            ends = [i for i, part in enumerate(rest) if isinstance(part, int)]
            names, behind = (rest[: ends[0]], rest[ends[0] :]) if ends else (rest, ())
            return (*section, ".".join(map(str, names)), *behind)
    return parts


def _holds(values: Any, where: Where) -> bool:
    for key in where:
        if not isinstance(values, dict) or key not in values:
            return False
        values = values[key]
    return True


def _drop_others(values: dict[Any, Any], named: set[Where]) -> None:
    """Remove the keys that the named keys replace, as listed in `_ONE_OF`.

    For example, `train.steps` replaces `train.tokens`.
    """
    for group in _ONE_OF:
        for where in {*group} - named if named & {*group} else ():
            if _holds(values, where):
                section = values[where[0]] if where[1:] else values
                del section[where[-1]]
