"""Sections of an experiment file: `model`, `data`, `train`."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from llama_ablate.config.registry import Entry
from llama_ablate.config.spec import SLOTS
from llama_ablate.config.validation import Keys, at, shown
from llama_ablate.errors import nearest

_SUFFIXES = {"k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9}
_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?) ?([kMBG])", re.ASCII)

#: A decay rate of AdamW's running means.
Decay = Annotated[float, Field(ge=0, lt=1)]


#: The share of numbers that dropout sets to zero.
Rate = Annotated[float, Field(ge=0, lt=1)]


class DropoutKeys(Keys):
    """Rates of dropout, for each kind of place."""

    embedding: Rate = 0.0
    attention: Rate = 0.0
    sublayer: Rate = 0.0


class Model(Keys):
    """The architecture of a decoder: sizes, and a component for each slot."""

    dim: int = Field(64, gt=0, le=65536)
    layers: int = Field(2, gt=0, le=1024)
    heads: int = Field(4, gt=0, le=1024)
    head_dim: int | None = Field(None, gt=0, le=65536)
    context: int = Field(128, gt=0, le=1_048_576)
    vocab: int | None = Field(None, gt=0, le=1 << 24)
    bias: bool = False
    tie: bool = False
    #: The deviation of initial weights, or the word for one that keeps the scale of activations
    #: at any width.
    init_std: Annotated[float, Field(gt=0)] | Literal["1/sqrt(dim)"] = 0.02
    logit_softcap: float | None = Field(None, gt=0)
    norm: Entry = "rmsnorm"
    position: Entry = "rope"
    attention: Entry = "mha"
    feedforward: Entry = "swiglu"
    block: Entry = "pre"
    #: How weights begin whose layer does not say it itself.
    init: Entry = "depth-scaled"
    #: While training: one rate for all places, or a rate for each.
    dropout: Rate | DropoutKeys = 0.0
    #: How initial weights, multipliers and rates follow width and depth.
    parametrization: Entry = "standard"

    @field_validator(*SLOTS, mode="before")
    @classmethod
    def _no_list(cls, value: object) -> object:
        if isinstance(value, list):
            how = "components over depth are written {pattern: [...]}"
            raise at(f"{shown(value)} is a list: {how}")
        return value


class About(Keys):
    """The source of an architecture, and notes on it."""

    source: str = ""
    #: Of pre-training, as its source says; None where it does not.
    training_tokens: float | None = Field(None, gt=0, le=1e18)
    notes: list[str] = Field(default_factory=list)


class Preset(Keys):
    """A published architecture, which `base` and `summary` may name."""

    about: About = About()
    model: Model


#: Whether a model sees the documents before the one that it reads.
Reading = Literal["continue", "mask"]


class Portion(Keys):
    """How much of a mixture a source is, and how much of the source it takes."""

    weight: float = Field(1.0, ge=0, le=1e9)
    #: At most so many training tokens from its beginning, which are repeated.
    limit: int | None = Field(None, gt=0, le=10**15)
    #: So few of them that a run passes over them so often.
    epochs: float | None = Field(None, gt=0, le=1e6)

    @model_validator(mode="before")
    @classmethod
    def _weight_alone(cls, value: object) -> object:
        return {"weight": value} if isinstance(value, int | float) else value


class Data(Keys):
    """A corpus and a tokenizer, each an entry of its registry."""

    #: The name of its table, where there are several texts.
    name: str | None = Field(None, min_length=1, max_length=60)
    corpus: Entry = "python-stdlib"
    tokenizer: Entry = "bytes"
    documents: Reading = "continue"
    #: What a step reads: windows drawn anywhere, or the next pieces of documents in random order.
    order: Literal["windows", "documents"] = "windows"
    #: Further corpora that a mixture may name.
    sources: dict[str, Entry] = Field(default_factory=dict)
    #: What becomes of held-out documents that stand in the training text too: more than 1% of the
    #: held-out tokens are refused; `drop` leaves them out, `allow` keeps them.
    overlap: Literal["refuse", "drop", "allow"] = "refuse"
    #: What is trained on: sources by name, `corpus` the text's own, each with its weight.
    mixture: dict[str, Portion] = Field(default_factory=dict)

    @field_validator("mixture")
    @classmethod
    def _as_shares(cls, mixture: dict[str, Portion]) -> dict[str, Portion]:
        """Divide weights by their sum, so that mixtures that are equal are written alike."""
        total = sum(portion.weight for portion in mixture.values())
        if mixture and not total:
            raise ValueError("the weights of a mixture sum to nothing: give one above 0")
        scale = total if abs(total - 1) > 1e-9 else 1.0  # what is read again stays what it is
        mixture = {
            name: portion.model_copy(update={"weight": portion.weight / scale})
            for name, portion in mixture.items()
            if portion.weight
        }
        return {} if mixture == {"corpus": Portion()} else mixture

    @model_validator(mode="after")
    def _has_its_sources(self) -> "Data":
        known = ["corpus", *self.sources]
        if unknown := [name for name in self.mixture if name not in known]:
            message = f"'{unknown[0]}' is none of the sources{nearest(unknown[0], known)}"
            raise at(message, "mixture", unknown[0])
        if taken := {"corpus", "train", "validation", "test"} & {*self.sources}:
            own = min(taken)
            raise at(f"'{own}' is of the text's own: call the source otherwise", "sources", own)
        if self.mixture and self.order == "documents":
            raise at("a mixture is of windows: it takes no 'order: documents'", "mixture")
        return self

    def with_changes(self, changes: Mapping[str, Any]) -> "Data":
        """Return this section with some keys changed, as a variant does. Raises ConfigError."""
        return Data.check({**self.model_dump(mode="json"), **changes})

    @property
    def called(self) -> str:
        """What the text is called in a sentence: as its file, else as its corpus."""
        entry = {"name": self.corpus} if isinstance(self.corpus, str) else self.corpus
        path = entry.get("path")
        of_file = path.rpartition("/")[2].strip(".") if isinstance(path, str) else ""
        return of_file or str(entry["name"])

    @field_validator("corpus", "tokenizer")
    @classmethod
    def _no_file(cls, value: Entry, info: ValidationInfo) -> Entry:
        if isinstance(value, str) and ("." in value or "/" in value):
            name = "files" if info.field_name == "corpus" else "file"
            raise ValueError(f"a file is written {{name: {name}, path: {value:.80}}}")
        return value


class Train(Keys):
    """The train config, the same for every variant unless an axis changes a key."""

    tokens: int | None = Field(None, gt=0, le=10**15)
    steps: int | None = Field(None, gt=0, le=10**12)
    batch: int = Field(32, gt=0, le=1 << 24)
    accumulate: int = Field(1, gt=0, le=1 << 24)
    optimizer: Entry = "adamw"
    lr: float = Field(1e-3, gt=0, le=1e30)
    min_lr: float = Field(0.1, ge=0, le=1)
    warmup: float = Field(0.05, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    clip: float = Field(1.0, ge=0)
    #: How the rate falls after the warm-up; that of `wsd` over the last `decay` of the steps.
    schedule: Entry = "cosine"
    decay: float = Field(0.2, gt=0, le=1)
    #: What is minimised beside cross-entropy.
    losses: list[Entry] = Field(default_factory=list, max_length=20)
    #: Shares of the budget at which a copy of a `wsd` run is cooled down and evaluated.
    branches: list[float] = Field(default_factory=list)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    kernel: Literal["auto", "math", "fused"] = "auto"
    #: Whether training steps are compiled.
    compile: Literal["never", "always"] = "never"
    evals: int = Field(10, gt=0, le=100_000)
    timeout_s: float | None = Field(None, gt=0, le=1e9)

    @field_validator("losses", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: object) -> object:
        return [value] if isinstance(value, str | dict) else value

    @field_validator("losses")
    @classmethod
    def _each_loss_once(cls, losses: list[Entry]) -> list[Entry]:
        names = [entry if isinstance(entry, str) else entry.get("name") for entry in losses]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"names '{twice[0]}' twice")
        return losses

    @field_validator("warmup", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        if isinstance(value, int | float) and value >= 1:
            raise ValueError(f"{value:g} is no share of the steps, as 0.05 is; allowed: 0 to 1")
        return value

    @field_validator("tokens", "steps", mode="before")
    @classmethod
    def _with_suffix(cls, value: object) -> object:
        """Read `20k` and `1.5M` as a number."""
        match = _SUFFIXED.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return value
        number = float(match[1]) * _SUFFIXES[match[2]]
        return int(number) if number.is_integer() else value

    @field_validator("betas", mode="before")
    @classmethod
    def _list_is_a_pair(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _one_budget(self) -> "Train":
        if self.tokens and self.steps:
            raise ValueError("takes one of 'tokens' and 'steps': how long a run trains")
        if self.batch % self.accumulate:
            raise at(
                f"batch {self.batch} does not divide into {self.accumulate} parts", "accumulate"
            )
        if not all(0 < share < 1 for share in self.branches):
            raise at(f"branches {shown(self.branches)} must be shares between 0 and 1", "branches")
        if self.branches and min(self.branches) * (1 - self.decay) < self.warmup:
            raise at(
                f"the branch at {min(self.branches):g} would cool down before the "
                f"warm-up of {self.warmup:g} is over",
                "branches",
            )
        return self

    def with_changes(self, changes: Mapping[str, Any]) -> "Train":
        """Return this train config with some keys changed, as a variant or tuned point does."""
        return Train.model_validate({**self.model_dump(), **changes})

    def identity(self, *without: str) -> dict[str, Any]:
        """Return the values that differ from the defaults, as plain JSON: what is hashed.

        Keys in `without` are left out. So a key that is added later changes no id.
        """
        return self.model_dump(mode="json", exclude_defaults=True, exclude={*without})
