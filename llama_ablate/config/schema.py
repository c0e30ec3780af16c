"""Schema of experiment files: keys, types, defaults and allowed values."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from llama_ablate.config import margins
from llama_ablate.config.registry import Entry
from llama_ablate.config.spec import SLOTS
from llama_ablate.config.validation import Keys, at, quote
from llama_ablate.errors import nearest
from llama_ablate.files.slugs import slug

#: The most runs of one experiment, over all tables: a plan of that size takes seconds.
MOST_VARIANTS = 2_000
MOST_RUNS = 20_000
MOST_SEEDS = 1_000
#: The first of the seeds that a race of tuned points takes: none that is reported.
RACE_SEED = 1_000_000


def _listed(value: object) -> list[Any]:
    """Accept one value as a list of one."""
    return value if isinstance(value, list) else [value]


def _without_repeats(values: list[Any]) -> list[Any]:
    if not values:
        raise ValueError("[] is empty: name one or more")
    names = Counter(
        str(value.get("name") if isinstance(value, dict) else value) for value in values
    )
    name, times = names.most_common(1)[0]
    if times > 1:
        raise ValueError(f"{quote(values)} names '{name}' twice")
    return values


def _each_once(values: list[Any]) -> list[Any]:
    return _without_repeats(values) if values else values


def _without_size(value: object) -> object:
    if any(isinstance(item, dict) for item in _listed(value)):
        raise ValueError(
            f"{quote(value)} is not accepted: a budget is tokens, bytes, flops or seconds, "
            "without a number; the number is train.tokens or train.steps, of the "
            "baseline"
        )
    return value


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
            raise at(f"{quote(value)} is a list: {how}")
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
    """Weight of a source in a mixture, and limits on its tokens."""

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
        keys = ["corpus", *self.sources]
        if unknown := [name for name in self.mixture if name not in keys]:
            message = f"'{unknown[0]}' is none of the sources{nearest(unknown[0], keys)}"
            raise at(message, "mixture", unknown[0])
        if taken := {"corpus", "train", "validation", "test"} & {*self.sources}:
            first_taken = min(taken)
            raise at(
                f"'{first_taken}' is of the text's own: call the source otherwise",
                "sources",
                first_taken,
            )
        if self.mixture and self.order == "documents":
            raise at("a mixture is of windows: it takes no 'order: documents'", "mixture")
        return self

    def with_changes(self, changes: Mapping[str, Any]) -> "Data":
        """Return this section with some keys changed, as a variant does. Raises ConfigError."""
        return Data.check({**self.model_dump(mode="json"), **changes})

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: object) -> object:
        """Read `my.txt`, `books/*.jsonl` and `{hub: NAME}` as a corpus."""
        if isinstance(value, str):
            return {"corpus": value}
        if isinstance(value, dict) and "hub" in value and "corpus" not in value:
            rest = {key: of for key, of in value.items() if key != "hub"}
            return {**rest, "corpus": {"name": "hub", "dataset": value["hub"]}}
        return value

    @field_validator("corpus", "tokenizer", mode="before")
    @classmethod
    def _file(cls, value: object, info: ValidationInfo) -> object:
        """Read a path as local files, or as the file of a tokenizer."""
        if isinstance(value, str) and any(character in value for character in "./*"):
            return {"name": "files" if info.field_name == "corpus" else "file", "path": value}
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
            raise at(f"branches {quote(self.branches)} must be shares between 0 and 1", "branches")
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
        """Return the non-default values as plain JSON, for hashing.

        Keys in `without` are left out. So a key that is added later changes no id.
        """
        return self.model_dump(mode="json", exclude_defaults=True, exclude={*without})


Match = Literal[
    "parameters", "total", "active_parameters", "flops", "kv_bytes", "state_bytes", "none"
]
Budget = Literal["tokens", "bytes", "flops", "seconds"]
#: The name of a variant or a table.
Named = Annotated[str, Field(min_length=1, max_length=400)]


class Variants(Keys):
    """The `variants` section: design, axes or entries, baseline, matching."""

    design: Literal["one-at-a-time", "product", "fraction", "path", "list"] = "one-at-a-time"
    axes: dict[str, list[Any]] = Field(default_factory=dict)
    entries: list[dict[str, Any]] = Field(default_factory=list)
    #: What is held equal by solving a size for it. Of several, each makes a table of its own.
    match: list[Match] = Field(default=["none"])
    #: The context at which `state_bytes` are counted; the model's unless given.
    match_context: int | None = Field(None, gt=0, le=1 << 30)
    baseline: Named | None = None
    #: Of a product, the combinations that are left out: values of some of its axes each.
    exclude: list[dict[str, Any]] = Field(default_factory=list)

    _one_match = field_validator("match", mode="before")(_listed)
    _no_repeats = field_validator("match")(_without_repeats)

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> "Variants":
        if self.design == "list" and (self.axes or not self.entries):
            raise ValueError("design 'list' takes 'entries' (a list of mappings) and no 'axes'")
        if self.design == "path" and self.baseline:
            raise at("a path starts at its baseline: it takes no 'baseline'", "baseline")
        if self.match_context and "state_bytes" not in self.match:
            raise at("'match_context' is for match: state_bytes", "match_context")
        if self.design != "list" and self.entries:
            raise at(f"design '{self.design}' takes 'axes', not 'entries'", "entries")
        if self.exclude and self.design != "product":
            raise at(
                f"'exclude' leaves combinations out of design 'product', not '{self.design}'",
                "exclude",
            )
        return self

    @property
    def count(self) -> int:
        """Number of variants of the design."""
        levels = [len(values) for values in self.axes.values()]
        return {
            "one-at-a-time": 1 + sum(levels),
            "path": 1 + sum(levels),
            "product": math.prod(levels),
            "fraction": 1 << max(len(levels) - 1, 0),
            "list": len(self.entries),
        }[self.design]


def _with_unit(value: object) -> object:
    if value is not None and margins.loss_margin(value) is None:
        raise ValueError(
            f"{quote(str(value))}: must be a number above 0 and its unit, as '0.01 nats'"
        )
    return value


def _complete_hypothesis(value: object) -> object:
    if value is not None and margins.read(value)[1] in ("", "%"):
        raise ValueError(
            f"{quote(str(value))}: must be a number in the metric's unit: '0.01 nats', or "
            "'0.1 points' of what has none"
        )
    return value


def _with_some_unit(value: object) -> object:
    if value is not None and not margins.read(value)[1]:
        raise ValueError(
            f"{quote(str(value))}: must be a number and its unit: '0.01 nats', '5%' "
            "of the other's, or '0.1 points' of what is neither"
        )
    return value


#: How one number may lie to another; those of losses are better or worse.
_Way = Literal["better", "worse", "lower", "higher"]


class Hypothesis(Keys):
    """A hypothesis stated before the runs: how two variants compare in a metric."""

    variant: Named
    #: Another variant's label; the baseline unless given.
    against: Named | None = None
    direction: Literal[_Way, "equivalent", "not better", "not worse", "not lower", "not higher"]
    margin: str | None = None
    #: Which measured number, as `show` lists them; the reported loss unless given.
    measure: Named | None = None
    #: In which of the experiment's tables; the first unless given.
    table: Named | None = None
    #: Who says so, such as a paper, and what it says.
    source: str = ""
    said: str = ""
    #: Whether it may be an equivalence that a pilot's noise does not let be shown.
    force: bool = False

    _margin = field_validator("margin", mode="before")(_complete_hypothesis)

    @model_validator(mode="after")
    def _makes_sense(self) -> "Hypothesis":
        if self.direction.startswith(("equivalent", "not ")) and not self.size:
            raise at(
                f"direction '{self.direction}' needs a margin, such as '0.01 nats'", "direction"
            )
        if self.measure and self.direction.removeprefix("not ") in ("better", "worse"):
            raise at(
                f"direction '{self.direction}' is for the loss: of '{self.measure}' "
                "say lower, higher or equivalent",
                "direction",
            )
        return self

    @property
    def size(self) -> float:
        """The margin as a number; 0 where none is stated."""
        return margins.read(self.margin)[0]


class Guard(Keys):
    """A number in which no variant may be worse, whatever its loss."""

    #: A metric that `measure` names, and which of the kinds of its numbers; the plan fills in the
    #: metric's own unless given.
    metric: Named
    quantity: Named | None = None
    #: By how much more than this: "0.02 points", "0.01 nats", or "5%" of the baseline's.
    worse_by: str
    #: What is worse; the plan fills in what the metric says unless given.
    worse: Literal["lower", "higher"] | None = None

    _margin = field_validator("worse_by", mode="before")(_with_some_unit)

    @model_validator(mode="after")
    def _below_all(self) -> "Guard":
        if self.is_relative and margins.read(self.worse_by)[0] >= 100:
            raise at(f"{self.worse_by}: must be below 100%", "worse_by")
        return self

    @property
    def is_relative(self) -> bool:
        """Whether `worse_by` is a percentage of the baseline's value."""
        return margins.read(self.worse_by)[1] == "%"


class Size(Keys):
    """One model size: its changes of `model`."""

    dim: int | None = Field(None, gt=0, le=65536)
    layers: int | None = Field(None, gt=0, le=1024)
    heads: int | None = Field(None, gt=0, le=1024)
    head_dim: int | None = Field(None, gt=0, le=65536)

    @model_validator(mode="after")
    def _says_something(self) -> "Size":
        if not self.changes:
            raise ValueError("a size changes dim, layers, heads or head_dim")
        return self

    @property
    def changes(self) -> dict[str, int]:
        """The keys that are set."""
        return self.model_dump(exclude_none=True)


class Sizes(Keys):
    """A ladder: the same question asked of models of growing size."""

    models: list[Size] = Field(min_length=2)
    #: Training tokens for each non-embedding parameter of the baseline; `train` says how many
    #: unless given.
    tokens_per_parameter: float | None = Field(None, gt=0, le=1e6)
    #: How the learning rate of the first size carries over: as it is, or in proportion to 1/dim.
    lr: Literal["same", "inverse-dim"] = "same"


class Parallel(Keys):
    """Data parallelism of a run."""

    #: Processes, each with its own device, that share every batch.
    data: int = Field(1, gt=0, le=1024)


def _whole_above_1(amount: float) -> float:
    if amount > 1 and amount % 1:
        raise at("a number above 1 must be whole")
    return amount


#: How much of a resource of Ray.
Amount = Annotated[float, Field(ge=0.01, le=1e6), AfterValidator(_whole_above_1)]


class RayTask(Keys):
    """Resources that each run requests from Ray."""

    #: A CPU for each of its processes unless given.
    cpus: Amount | None = None
    #: The share of a GPU that each of its processes takes, with `--device cuda`.
    gpus: float = Field(1, gt=0, le=1)
    memory_gb: float = Field(0, ge=0, le=1e6)
    #: Custom resources that nodes offer, and how much of each.
    resources: dict[str, Amount] = Field(default_factory=dict)

    @field_validator("resources")
    @classmethod
    def _custom(cls, named: dict[str, float]) -> dict[str, float]:
        if reserved := {*named} & {"CPU", "GPU", "memory", "object_store_memory"}:
            raise at(
                f"{min(reserved)} is no custom resource: cpus, gpus and memory_gb are",
                min(reserved),
            )
        return named


class Evaluation(Keys):
    """Evaluation settings shared by all variants of a table."""

    #: How held-out text is read; as `data` says unless given. Of several, each makes a table of its
    #: own from the same runs.
    documents: list[Reading] = Field(default_factory=list)

    _listed = field_validator("documents", mode="before")(_listed)
    _no_repeats = field_validator("documents")(_each_once)


Reseed = Literal["init", "order", "both", "none"]


def _repeated() -> list[Reseed]:
    return ["none"]


class Controls(Keys):
    """Arms that show whether the experiment can be believed.

    `aa` is the baseline once more under another name. With nothing changed (`none`) it must be
    equal bit for bit, which bounds the bias of all arms but the baseline: so it is the default, on
    the first `repeat` seeds. With other initial weights (`init`), another order of the text
    (`order`) or `both` it shows the noise. `positive` is a change of known harm.
    """

    aa: list[Reseed] = Field(default_factory=_repeated)
    repeat: int = Field(1, ge=1)
    positive: dict[str, Any] = Field(default_factory=dict)

    _list_aa = field_validator("aa", mode="before")(_listed)
    _no_repeats = field_validator("aa")(_each_once)


#: What a variant costs, as an answer names it.
CostName = Literal[
    "kv_cache", "train_speed", "decode_speed", "parameters", "active", "flops", "memory"
]


class AnswerKeys(Keys):
    """Keys of a report's first sentence that the question alone does not decide."""

    #: The cost beside which differences in loss are read: "needs 1/4 of it and is equivalent".
    #: Unless given, the state bytes where `kv_cache` has a `context` and there is a margin.
    cost: CostName | None = None


class Looks(Keys):
    """Seeds in groups: variants that are undecided after a group get the next one.

    A group-sequential design: the error that a table may make is divided over its looks before
    the first run (Lan & DeMets 1983, Biometrika 70), so looking often costs no false verdicts.
    """

    #: How many seeds there are at each look: the first 3, the first 6, all 12.
    looks: list[int] = Field(min_length=1, max_length=20)
    #: The share of the error that each look may spend; in proportion to the seeds that it adds
    #: unless given.
    spend: list[float] = Field(default_factory=list)
    #: The first of the seeds.
    first: int = Field(0, ge=0, le=1 << 31)

    @model_validator(mode="after")
    def _in_order(self) -> "Looks":
        numbers = self.looks
        if not 2 <= numbers[0] <= numbers[-1] <= MOST_SEEDS or any(
            later <= earlier for earlier, later in itertools.pairwise(numbers)
        ):
            raise at(
                f"{quote(numbers)}: must be numbers of seeds that grow, the first 2 or more, the "
                f"last at most {MOST_SEEDS:,}",
                "looks",
            )
        if self.spend and (
            len(self.spend) != len(numbers) or min(self.spend) <= 0 or sum(self.spend) > 1 + 1e-9
        ):
            raise at(
                f"{quote(self.spend)}: must be {len(numbers)} shares above 0, one for each look, "
                "that sum to 1 at most",
                "spend",
            )
        return self


class Terms(Keys):
    """The `judge` section: terms for all candidates of a ledger."""

    #: The text of gate two, as `data` has it, of other documents than those of gate one.
    second: Data
    #: Where a gain's sign must hold, too, at gate two.
    size: Size | None = None
    #: How many seeds gate one has at each look, and gate two.
    looks: list[int] = Field(default=[4, 8], min_length=1, max_length=20)
    confirm: int = Field(6, ge=2, le=1000)
    #: How many candidates there may be, which error their acceptances share, and by which rule.
    candidates: int = Field(100, ge=1, le=10_000)
    error: float = Field(0.05, gt=0, le=0.2)
    rule: Literal["lord", "family-wise"] = "lord"

    @field_validator("looks")
    @classmethod
    def _grow(cls, looks: list[int]) -> list[int]:
        Looks.check({"looks": looks})
        return looks


class Experiment(Keys):
    """An experiment file."""

    name: str = Field(min_length=1, max_length=80)
    question: str = ""
    base: str = "llama2-tiny"
    model: Model = Model()
    variants: Variants = Variants()
    data: Data = Data()
    #: In place of `data`: several texts, each with a table of its own.
    texts: list[Data] = Field(default_factory=list, max_length=100)
    train: Train = Train()
    evaluation: Evaluation = Evaluation()
    #: What a run's length is counted in: tokens as `train` says, or the bytes of text, FLOPs or
    #: measured seconds that the baseline spends on them. Of several, each makes a table of its own.
    budget: list[Budget] = Field(default=["tokens"])
    #: Keys of `train`, and the values of each that every variant is tried with.
    tune: dict[str, list[Any]] = Field(default_factory=dict)
    sizes: Sizes | None = None
    parallel: Parallel = Parallel()
    ray: RayTask = RayTask()
    controls: Controls = Controls()
    #: How many seeds, or which; or how many at each look.
    seeds: int | list[int] | Looks = 3
    #: Seeds on which the tuned points are tried, apart from those that are reported; then each
    #: variant runs at its best point alone. Without it all points run with all seeds.
    race: int | None = Field(None, ge=1, le=10)
    #: Differences smaller than this count as none: "0.01 nats".
    margin: str | None = None
    answer: AnswerKeys = AnswerKeys()
    hypotheses: list[Hypothesis] = Field(default_factory=list)
    #: Numbers in which no variant may be worse.
    guard: list[Guard] = Field(default_factory=list)
    measure: list[Entry] = Field(default=["perplexity", "train_speed", "decode_speed", "kv_cache"])
    #: Of the file that opens a ledger: what its candidates are held to.
    judge: Terms | None = None

    _metrics = field_validator("measure")(_without_repeats)

    @field_validator("seeds")
    @classmethod
    def _some_seeds(cls, seeds: int | list[int] | Looks) -> int | list[int] | Looks:
        if isinstance(seeds, int) and not 0 < seeds <= MOST_SEEDS:
            raise ValueError(f"{seeds}: must be from 1 to {MOST_SEEDS:,}, or a list of seeds")
        if isinstance(seeds, list) and not all(0 <= seed < 2**32 for seed in seeds):
            raise ValueError("a seed must be from 0 to 2^32 - 1")
        return _without_repeats(seeds) if isinstance(seeds, list) else seeds

    _margin = field_validator("margin", mode="before")(_with_unit)
    _one_guard = field_validator("guard", mode="before")(_listed)
    _one_budget = field_validator("budget", mode="before")(_listed)
    _budget_alone = field_validator("budget", mode="before")(_without_size)
    _no_repeats = field_validator("budget")(_without_repeats)

    @model_validator(mode="after")
    def _has_a_length(self) -> "Experiment":
        by_size = self.sizes and self.sizes.tokens_per_parameter
        if not (self.train.tokens or self.train.steps or by_size):
            raise at(
                "needs 'tokens' or 'steps', or 'sizes' needs 'tokens_per_parameter': how long a "
                "run trains",
                "train",
            )
        return self

    @model_validator(mode="after")
    def _can_be_planned(self) -> "Experiment":
        tables = (
            len(self.variants.match)
            * len(self.budget)
            * max(1, len(self.texts))
            * max(1, len(self.evaluation.documents))
            * (len(self.sizes.models) if self.sizes else 1)
        )
        controls = len(self.controls.aa) + bool(self.controls.positive)
        variants = tables * (self.variants.count + controls)
        if variants > MOST_VARIANTS:
            raise at(
                f"more than {MOST_VARIANTS:,} variants in all tables together; split the "
                "experiment",
                "variants",
            )
        part = self.train.batch // self.train.accumulate
        if part % self.parallel.data:
            raise at(
                f"{self.parallel.data} processes cannot share {part} rows of a batch evenly",
                "parallel",
                "data",
            )
        if self.parallel.data > 1 and self.ray.gpus < 1:
            raise at("processes that share a batch take a whole GPU each", "ray", "gpus")
        points = math.prod(len(values) for values in self.tune.values())
        if variants * points * len(self.race_seeds + self.seed_list) > MOST_RUNS:
            raise at(
                f"more than {MOST_RUNS:,} runs: variants times tuned points times seeds; "
                "split the experiment",
                "tune" if points > len(self.seed_list) else "seeds",
            )
        return self

    @model_validator(mode="after")
    def _can_go_by_stages(self) -> "Experiment":
        if self.race and not self.tune:
            raise at("a race is between tuned points: it needs 'tune'", "race")
        if set(self.race_seeds) & set(self.seed_list):
            raise at(
                f"the seeds from {RACE_SEED:,} on are those of the race, which are not reported",
                "seeds",
            )
        if isinstance(self.seeds, Looks):
            if self.tune and not self.race:
                raise at(
                    "looks need tuned points that are fixed before the first look: give 'race', "
                    "such as race: 2",
                    "seeds",
                )
            design = "a ladder of sizes" if self.sizes else f"design '{self.variants.design}'"
            if self.sizes or self.variants.design == "path":
                raise at(
                    f"looks stop variants one by one, and {design} needs all of them with the same "
                    "seeds: give their number",
                    "seeds",
                )
        return self

    @property
    def seed_list(self) -> tuple[int, ...]:
        """Reported seeds: `seeds: 3` stands for 0, 1, 2."""
        if isinstance(self.seeds, Looks):
            return tuple(range(self.seeds.first, self.seeds.first + self.seeds.looks[-1]))
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else tuple(self.seeds)

    @property
    def state_contexts(self) -> tuple[int, ...]:
        """Contexts whose state bytes are reported: the training context, then those asked for."""
        options = [entry for entry in self.measure if isinstance(entry, dict)]
        asked_contexts = (
            option.get("context") for option in options if option["name"] == "kv_cache"
        )
        contexts = (self.model.context, *asked_contexts, self.variants.match_context)
        return tuple(dict.fromkeys(context for context in contexts if context))

    @property
    def race_seeds(self) -> tuple[int, ...]:
        """The seeds on which tuned points are tried, where that is done apart."""
        return tuple(range(RACE_SEED, RACE_SEED + (self.race or 0)))

    @property
    def looks(self) -> tuple[int, ...]:
        """Number of seeds at each look; all of them without looks."""
        if isinstance(self.seeds, Looks):
            return tuple(self.seeds.looks)
        return (len(self.seed_list),)

    @property
    def spend(self) -> tuple[float, ...]:
        """Share of the type I error spent at each look; empty unless stated."""
        return tuple(self.seeds.spend) if isinstance(self.seeds, Looks) else ()

    @property
    def is_staged(self) -> bool:
        """Whether earlier results decide which planned runs are needed."""
        return self.race is not None or isinstance(self.seeds, Looks)

    @property
    def slug(self) -> str:
        """The name as a folder can bear it."""
        return slug(self.name)
