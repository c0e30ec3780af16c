"""What an experiment file and a preset may say: keys, types, defaults and allowed values."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from llama_ablate.registry import Entry
from llama_ablate.validation import Section


def slug(text: str, longest: int = 40) -> str:
    """Turn a label into a safe piece of a file name.

    >>> slug("RoPE theta=500000")
    'rope-theta-500000'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:longest].strip("-") or "x"


class Model(Section):
    """The recipe of a decoder: sizes, and a component for each slot."""

    dim: int = Field(64, gt=0, le=65536)
    layers: int = Field(2, gt=0, le=1024)
    heads: int = Field(4, gt=0, le=1024)
    head_dim: int | None = Field(None, gt=0, le=65536)
    context: int = Field(128, gt=0, le=1_048_576)
    vocab: int | None = Field(None, gt=0, le=1 << 24)
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


def _with_unit(given: object) -> object:
    number = re.fullmatch(r"(\d*\.?\d+([eE][-+]?\d+)?) nats", str(given))
    if given is not None and (number is None or float(number[1]) == 0):
        raise ValueError(f"'{given}': must be a number above 0 and its unit, as '0.01 nats'")
    return given


class Hypothesis(Section):
    """What is claimed before the runs: how two variants' losses compare, and who says so."""

    variant: str
    #: Another variant's label; the baseline unless given.
    against: str | None = None
    direction: Literal["better", "worse", "equivalent"]
    margin: str | None = None
    source: str = ""
    said: str = ""

    _margin = field_validator("margin", mode="before")(_with_unit)

    @model_validator(mode="after")
    def _equivalence_has_a_margin(self) -> "Hypothesis":
        if self.direction == "equivalent" and self.margin is None:
            raise ValueError("direction 'equivalent' needs a margin, such as '0.01 nats'")
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
    hypotheses: list[Hypothesis] = Field(default_factory=list)
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

    _margin = field_validator("margin", mode="before")(_with_unit)

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds: `seeds: 3` stands for 0, 1, 2."""
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else tuple(self.seeds)

    @property
    def slug(self) -> str:
        """The name as a folder can bear it."""
        return slug(self.name)
