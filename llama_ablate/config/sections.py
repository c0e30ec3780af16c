"""What a recipe may say: an architecture, a text, and how it is trained."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from llama_ablate.config.registry import Entry
from llama_ablate.config.validation import Section, at, shown

#: How much of a running mean of gradients is kept from step to step.
Decay = Annotated[float, Field(ge=0, lt=1)]


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


class Data(Section):
    """The text, and how it becomes tokens. Both are entries of a registry of their own."""

    #: What its table is called, where there are several.
    name: str | None = Field(None, min_length=1, max_length=60)
    corpus: Entry = "python-stdlib"
    tokenizer: Entry = "bytes"


class Train(Section):
    """The training recipe, the same for every variant."""

    tokens: int | None = Field(None, gt=0, le=10**15)
    steps: int | None = Field(None, gt=0, le=10**12)
    batch: int = Field(32, gt=0, le=1 << 24)
    accumulate: int = Field(1, gt=0, le=1 << 24)
    lr: float = Field(1e-3, gt=0, le=1e30)
    min_lr: float = Field(0.1, ge=0, le=1)
    warmup: float = Field(0.05, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    clip: float = Field(1.0, ge=0)
    #: How the rate falls after the warm-up: along a cosine, in a line, or flat until the last
    #: `decay` of the steps and then in a line (warm-up, stable, decay).
    schedule: Literal["cosine", "linear", "wsd"] = "cosine"
    decay: float = Field(0.2, gt=0, le=1)
    #: Shares of the budget at which a `wsd` run is also cooled down aside and measured.
    branches: list[float] = Field(default_factory=list)
    #: The weights at the end are the mean over this many of the last hundredths of the run.
    average: int = Field(1, ge=1, le=50)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    kernel: Literal["auto", "math", "fused"] = "auto"
    evals: int = Field(10, gt=0, le=100_000)
    timeout_s: float | None = Field(None, gt=0, le=1e9)

    @field_validator("betas", mode="before")
    @classmethod
    def _list_is_a_pair(cls, given: object) -> object:
        return tuple(given) if isinstance(given, list) else given

    @model_validator(mode="after")
    def _one_budget(self) -> "Train":
        if (self.tokens is None) == (self.steps is None):
            raise ValueError("needs exactly one of 'tokens' and 'steps': how long a run trains")
        if self.batch % self.accumulate:
            raise at(
                f"batch {self.batch} does not divide into {self.accumulate} parts", "accumulate"
            )
        if self.branches and self.schedule != "wsd":
            raise at(f"'branches' need the schedule 'wsd', not '{self.schedule}'", "branches")
        if not all(0 < share < 1 for share in self.branches):
            raise at(f"branches {shown(self.branches)} must be shares between 0 and 1", "branches")
        if self.branches and min(self.branches) * (1 - self.decay) < self.warmup:
            raise at(
                f"the branch at {min(self.branches):g} would cool down before the "
                f"warm-up of {self.warmup:g} is over",
                "branches",
            )
        if self.branches and self.average > 1:
            raise at("'branches' and 'average' do not go together", "average")
        return self

    def identity(self, *without: str) -> dict[str, Any]:
        """Return what differs from the defaults, as plain JSON, but for some keys: what is hashed.

        So a key that training gains later changes no id.
        """
        return self.model_dump(mode="json", exclude_defaults=True, exclude={*without})
