"""The experiment file: one question, as a frozen and validated value.

`load` reads the YAML, lays it over its `base` (a preset or another file), applies `--set`, and
checks every key and type. What it returns still names components as the user wrote them; whether
those exist is the grid's question, because only the registries know.
"""

import re
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from llama_ablate.errors import ConfigError, Where, nearest
from llama_ablate.marked_yaml import Mark, Marked, parse, scalar
from llama_ablate.marked_yaml import load as load_yaml
from llama_ablate.registry import Entry
from llama_ablate.validation import Section

_MERGED = ("model", "data", "train")  # sections laid over the base key by key
_Positive = Field(gt=0)


class Model(Section):
    """The recipe of a decoder: sizes, and a component for each slot."""

    dim: int = Field(64, gt=0, le=65536)
    layers: int = Field(2, gt=0, le=1024)
    heads: int = Field(4, gt=0, le=1024)
    head_dim: int | None = Field(None, gt=0)
    context: int = Field(128, gt=0, le=1_048_576)
    vocab: int | None = Field(None, gt=0)
    bias: bool = False
    tie: bool = False
    init_std: float = Field(0.02, gt=0)
    logit_softcap: float | None = Field(None, gt=0)
    norm: Entry = "rmsnorm"
    position: Entry = "rope"
    attention: Entry = "mha"
    feedforward: Entry = "swiglu"
    block: Entry = "pre"


class About(Section):
    """Where an architecture comes from, and what is worth knowing about it."""

    source: str = ""
    notes: list[str] = Field(default_factory=list)


class Preset(Section):
    """A published architecture, as `base` and `summary` may name it."""

    about: About = About()
    model: Model


class Variants(Section):
    """What varies, and what is held equal while it does."""

    design: Literal["one-at-a-time", "product", "fraction", "path", "list"] = "one-at-a-time"
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    entries: list[dict[str, Any]] = Field(default_factory=list)
    match: Literal["parameters", "flops", "none"] = "none"
    baseline: str | None = None

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> "Variants":
        if self.design == "list" and (self.axes or not self.entries):
            raise ValueError("design 'list' takes 'entries' (a list of mappings) and no 'axes'")
        if self.design != "list" and self.entries:
            raise ValueError(f"design '{self.design}' takes 'axes', not 'entries'")
        return self


class Data(Section):
    """The text, and how it becomes tokens. Both are entries of a registry of their own."""

    corpus: Entry = "python-stdlib"
    tokenizer: Entry = "bytes"


class Train(Section):
    """The training recipe, the same for every variant."""

    tokens: int | None = Field(None, gt=0)
    steps: int | None = Field(None, gt=0)
    batch: int = Field(32, gt=0)
    accumulate: int = Field(1, gt=0)
    lr: float = Field(1e-3, gt=0)
    min_lr: float = Field(0.1, ge=0, le=1)
    warmup: float = Field(0.05, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    clip: float = Field(1.0, ge=0)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    kernel: Literal["auto", "math", "fused"] = "auto"
    evals: int = Field(10, gt=0)
    timeout_s: float | None = Field(None, gt=0)

    @field_validator("betas", mode="before")
    @classmethod
    def _list_is_a_pair(cls, given: object) -> object:
        return tuple(given) if isinstance(given, list) else given

    @model_validator(mode="after")
    def _one_budget(self) -> "Train":
        if (self.tokens is None) == (self.steps is None):
            raise ValueError("needs exactly one of 'tokens' and 'steps': how long a run trains")
        if self.batch % self.accumulate:
            raise ValueError(f"batch {self.batch} does not divide into {self.accumulate} parts")
        return self


class Experiment(Section):
    """One YAML file, one question."""

    name: str = Field(min_length=1, max_length=80)
    question: str = ""
    base: str = "llama2-tiny"
    model: Model = Model()
    variants: Variants = Variants()
    data: Data = Data()
    train: Train
    seeds: int | list[int] = 3
    #: Differences smaller than this count as none: "0.01 nats".
    margin: str | None = None
    measure: list[Entry] = Field(default=["perplexity", "train_speed", "decode_speed", "kv_cache"])

    @field_validator("seeds")
    @classmethod
    def _some_seeds(cls, given: int | list[int]) -> int | list[int]:
        if isinstance(given, int) and not 0 < given <= 1000:
            raise ValueError(f"{given} seeds: must be 1 to 1000, or a list of seeds")
        if isinstance(given, list) and (not given or len(set(given)) < len(given)):
            raise ValueError(f"the list of seeds {given} must not be empty or name a seed twice")
        if isinstance(given, list) and not all(0 <= seed < 2**32 for seed in given):
            raise ValueError("a seed must be from 0 to 2^32 - 1")
        return given

    @field_validator("margin", mode="before")
    @classmethod
    def _margin_has_its_unit(cls, given: object) -> object:
        number = re.fullmatch(r"(\d*\.?\d+([eE][-+]?\d+)?) nats", str(given))
        if given is not None and (number is None or float(number[1]) == 0):
            raise ValueError(f"'{given}': must be a number above 0 and its unit, as '0.01 nats'")
        return given

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds: `seeds: 3` stands for 0, 1, 2."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else tuple(self.seeds)

    @property
    def slug(self) -> str:
        """The name as a folder can bear it."""
        return slug(self.name)


class Source:
    """An experiment together with the file that it came from, so that errors can name the line."""

    def __init__(self, experiment: Experiment, marked: Marked, text: str) -> None:
        self.experiment = experiment
        self.text = text
        self._marked = marked

    @classmethod
    def of(cls, experiment: Experiment) -> "Source":
        """Wrap an experiment that comes from no file; its errors name keys alone."""
        return cls(experiment, Marked({}), "")

    def locate(self, error: ConfigError) -> ConfigError:
        """Return the error with its file, line and column."""
        return self._marked.locate(error)


def slug(text: str, longest: int = 40) -> str:
    """Turn a label into a safe piece of a file name.

    >>> slug("RoPE theta=500000")
    'rope-theta-500000'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:longest].strip("-") or "x"


def load(path: Path | str, sets: tuple[str, ...] = ()) -> Source:
    """Read an experiment file. Raises ConfigError, one sentence with file, line and column.

    `sets` are overrides in the form `train.lr=3e-4`, as given with `--set`.
    """
    path = Path(path)
    marked = _over_base(load_yaml(path), path, (path,))
    for text in sets:
        _override(marked, text)
    try:
        experiment = Experiment.check(marked.values)
    except ConfigError as error:
        raise marked.locate(error) from None
    return Source(experiment, marked, path.read_text(encoding="utf-8"))


def presets() -> dict[str, str]:
    """List the presets that `base` may name: name -> the YAML text."""
    folder = resources.files("llama_ablate") / "presets"
    files = sorted(folder.iterdir(), key=lambda f: f.name)
    return {f.name.removesuffix(".yaml"): f.read_text() for f in files if f.name.endswith(".yaml")}


def preset(name: str, sets: tuple[str, ...] = ()) -> Preset:
    """Return a preset, checked, with `sets` laid over it, such as `model.tie=true`.

    Raises ConfigError for an unknown name, or for a `--set` that does not fit.
    """
    known = presets()
    if name not in known:
        raise ConfigError(f"'{name}' is not a preset{nearest(name, known)}")
    marked = parse(known[name], f"{name}.yaml")
    for text in sets:
        _override(marked, text)
    try:
        return Preset.check(marked.values)
    except ConfigError as error:
        raise marked.locate(error) from None


def _over_base(marked: Marked, path: Path, seen: tuple[Path, ...]) -> Marked:
    """Lay a file's values over those of its base, marks and all."""
    name = marked.values.get("base", "llama2-tiny")
    if not isinstance(name, str):
        raise marked.locate(ConfigError("must be a preset's name or a file", ("base",)))
    known = presets()
    if name in known:
        # Without marks: what does not fit a preset is to be mended in the file that names it.
        recipe = parse(known[name], f"{name}.yaml").values
        base = Marked({"model": recipe["model"]})
    elif name.endswith((".yaml", ".yml")):
        file = path.parent / name
        if file.resolve() in {p.resolve() for p in seen}:
            raise marked.locate(ConfigError(f"'{name}' is based on itself", ("base",)))
        if not file.is_file():
            raise marked.locate(ConfigError(f"there is no file '{file}'", ("base",)))
        base = _over_base(load_yaml(file), file, (*seen, file))
    else:
        message = f"'{name}' is neither a preset nor a .yaml file{nearest(name, known)}"
        raise marked.locate(ConfigError(message, ("base",)))

    values: dict[str, Any] = dict(base.values)
    marks: dict[Where, Mark] = dict(base.marks)
    for key, value in marked.values.items():
        merged = key in _MERGED and isinstance(value, dict) and isinstance(values.get(key), dict)
        taken = [(key, inner) for inner in value] if merged else [(key,)]
        # What is replaced is replaced whole: nothing of the base's entry may shine through.
        marks = {w: m for w, m in marks.items() if not any(w[: len(t)] == t for t in taken)}
        values[key] = {**values[key], **value} if merged else value
    if isinstance(own := marked.values.get("train"), dict) and {"tokens", "steps"} & own.keys():
        for budget in {"tokens", "steps"} - own.keys():
            values["train"].pop(budget, None)  # the file's own budget stands in for the base's
    return Marked(values, marks | marked.marks)


def _override(marked: Marked, text: str) -> None:
    key, equals, given = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {text}: expected KEY=VALUE, such as train.lr=3e-4")
    where = tuple(key.split("."))
    value = (
        given if given.startswith(("/", ".")) and not _is_number(given) else _inline(given, text)
    )
    inner: Any = marked.values
    for depth, part in enumerate(where[:-1]):
        if isinstance(inner.get(part), str):
            inner[part] = {"name": inner[part]}  # an option of a component given by its bare name
        inner = inner.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"--set {text}: '{'.'.join(where[: depth + 1])}' holds no keys")
    inner[where[-1]] = value
    for known in [w for w in marked.marks if w[: len(where)] == where]:
        del marked.marks[known]
    marked.marks[where] = Mark(f"--set {text}", 1, len(key) + 2)
    if where in (("train", "tokens"), ("train", "steps")):
        inner.pop("steps" if where[-1] == "tokens" else "tokens", None)


def _is_number(text: str) -> bool:
    return isinstance(scalar(text), int | float)


def _inline(given: str, text: str) -> Any:
    """Read a value as YAML would: a number, a word, `[1, 2]` or `{name: rope, theta: 5e5}`."""
    return parse(f"value: {given}", f"--set {text}").values["value"]
