"""Schema of experiment files: keys, types, defaults and allowed values."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from llama_ablate.config import margins
from llama_ablate.config.registry import Entry
from llama_ablate.config.spec import SLOTS
from llama_ablate.config.validation import Keys, quote
from llama_ablate.errors import nearest, need
from llama_ablate.files.slugs import slug

#: Limits of one experiment, over all tables: making a plan of that size takes seconds.
MOST_VARIANTS = 2_000
MOST_RUNS = 20_000
MOST_SEEDS = 1_000
#: First seed of a race, which compares tuned points; reported seeds may not be race seeds.
RACE_SEED = 1_000_000


def _listed(value: object) -> list[Any]:
    """Return a single value as a list of one; return a list unchanged."""
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
    said = "is not accepted: a budget is tokens, bytes, flops or seconds, without a number; the "
    said += "number is train.tokens or train.steps, of the baseline"
    need(not any(isinstance(item, dict) for item in _listed(value)), f"{quote(value)} {said}")
    return value


_SUFFIXES = {"k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9}
_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?) ?([kMBG])", re.ASCII)

#: A decay rate of AdamW's running means.
Decay = Annotated[float, Field(ge=0, lt=1)]


#: A dropout rate: the share of elements that are set to zero.
Rate = Annotated[float, Field(ge=0, lt=1)]


class DropoutKeys(Keys):
    """Dropout rates of embeddings, attention weights and sublayer outputs."""

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
    #: Standard deviation of initial weights; "1/sqrt(dim)" keeps the scale of activations at any
    #: width.
    init_std: Annotated[float, Field(gt=0)] | Literal["1/sqrt(dim)"] = 0.02
    logit_softcap: float | None = Field(None, gt=0)
    norm: Entry = "rmsnorm"
    position: Entry = "rope"
    attention: Entry = "mha"
    feedforward: Entry = "swiglu"
    block: Entry = "pre"
    #: Rule for initial weights of layers that do not initialise their weights themselves.
    init: Entry = "depth-scaled"
    #: Dropout in training: one rate for all places, or a rate for each.
    dropout: Rate | DropoutKeys = 0.0
    #: Rule by which initial weights, multipliers and learning rates depend on width and depth.
    parametrization: Entry = "standard"

    @field_validator(*SLOTS, mode="before")
    @classmethod
    def _no_list(cls, value: object) -> object:
        how = "components over depth are written {pattern: [...]}"
        need(not isinstance(value, list), f"{quote(value)} is a list: {how}")
        return value


class About(Keys):
    """The source of an architecture, and notes on it."""

    source: str = ""
    #: Number of pre-training tokens according to the source; None if it is not stated there.
    training_tokens: float | None = Field(None, gt=0, le=1e18)
    notes: list[str] = Field(default_factory=list)


class Preset(Keys):
    """A published architecture, which `base` and `summary` may name."""

    about: About = About()
    model: Model


#: How documents in one window are read: with "continue", a token may attend to earlier documents;
#: "mask" prevents it (per-document mask).
Reading = Literal["continue", "mask"]


class Portion(Keys):
    """Weight of a source in a training mixture, and limits on its tokens."""

    weight: float = Field(1.0, ge=0, le=1e9)
    #: Maximum number of training tokens, taken from the source's beginning and repeated.
    limit: int | None = Field(None, gt=0, le=10**15)
    #: Number of passes over the source in a run; its tokens are limited accordingly.
    epochs: float | None = Field(None, gt=0, le=1e6)

    @model_validator(mode="before")
    @classmethod
    def _weight_alone(cls, value: object) -> object:
        return {"weight": value} if isinstance(value, int | float) else value


class Data(Keys):
    """The `data` section: a corpus and a tokenizer, and how their text is read."""

    #: Name of this text's table, if the experiment has several texts.
    name: str | None = Field(None, min_length=1, max_length=60)
    corpus: Entry = "python-stdlib"
    tokenizer: Entry = "bytes"
    documents: Reading = "continue"
    #: Order of training text: windows at random positions, or documents in random order, of which
    #: each step reads the next pieces.
    order: Literal["windows", "documents"] = "windows"
    #: Further corpora that a mixture may name.
    sources: dict[str, Entry] = Field(default_factory=dict)
    #: Treatment of held-out documents that the training text contains, too: `refuse` raises an
    #: error if they have more than 1% of the held-out tokens, `drop` leaves them out, `allow` keeps
    #: them.
    overlap: Literal["refuse", "drop", "allow"] = "refuse"
    #: Training mixture: the weight of each source by name; `corpus` is the section's own corpus.
    mixture: dict[str, Portion] = Field(default_factory=dict)

    @field_validator("mixture")
    @classmethod
    def _as_shares(cls, mixture: dict[str, Portion]) -> dict[str, Portion]:
        """Divide weights by their sum, so that equal mixtures have equal values."""
        total = sum(portion.weight for portion in mixture.values())
        need(total or not mixture, "the weights of a mixture sum to nothing: give one above 0")
        scale = total if abs(total - 1) > 1e-9 else 1.0  # do not change stored shares
        mixture = {
            name: portion.model_copy(update={"weight": portion.weight / scale})
            for name, portion in mixture.items()
            if portion.weight
        }
        return {} if mixture == {"corpus": Portion()} else mixture

    @model_validator(mode="after")
    def _has_its_sources(self) -> "Data":
        keys = ["corpus", *self.sources]
        for name in self.mixture:
            hint = "" if name in keys else nearest(name, keys)
            need(not hint, f"'{name}' is none of the sources{hint}", "mixture", name)
        for name in self.sources:
            is_free = name not in ("corpus", "train", "validation", "test")
            said = f"'{name}' is of the text's own: call the source otherwise"
            need(is_free, said, "sources", name)
        both = self.mixture and self.order == "documents"
        need(not both, "a mixture is of windows: it takes no 'order: documents'", "mixture")
        return self

    def with_changes(self, changes: Mapping[str, Any]) -> "Data":
        """Return this section with some keys changed by a variant. Raises ConfigError."""
        return Data.check({**self.model_dump(mode="json"), **changes})

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, value: object) -> object:
        """Read `my.txt`, `books/*.jsonl` and `{hub: NAME}` as a section with this corpus."""
        if isinstance(value, str):
            return {"corpus": value}
        if isinstance(value, dict) and "hub" in value and "corpus" not in value:
            rest = {key: of for key, of in value.items() if key != "hub"}
            return {**rest, "corpus": {"name": "hub", "dataset": value["hub"]}}
        return value

    @field_validator("corpus", "tokenizer", mode="before")
    @classmethod
    def _file(cls, value: object, info: ValidationInfo) -> object:
        """Read a path as a corpus of local files, or as a tokenizer file."""
        if isinstance(value, str) and any(character in value for character in "./*"):
            return {"name": "files" if info.field_name == "corpus" else "file", "path": value}
        return value


class Train(Keys):
    """The `train` section: training settings of all variants unless an axis changes a key."""

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
    #: Learning rate schedule after the warm-up; `wsd` decays over the last share `decay` of the
    #: steps.
    schedule: Entry = "cosine"
    decay: float = Field(0.2, gt=0, le=1)
    #: Auxiliary losses, which are added to the cross-entropy.
    losses: list[Entry] = Field(default_factory=list, max_length=20)
    #: Shares of the training length at which a copy of a `wsd` run is decayed and evaluated.
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
        for name in names:
            need(names.count(name) == 1, f"names '{name}' twice")
        return losses

    @field_validator("warmup", mode="before")
    @classmethod
    def _share(cls, value: object) -> object:
        is_share = not isinstance(value, int | float) or value < 1
        need(is_share, f"{value} is no share of the steps, as 0.05 is; allowed: 0 to 1")
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
        is_one = not (self.tokens and self.steps)
        need(is_one, "takes one of 'tokens' and 'steps': how long a run trains")
        parts = f"batch {self.batch} does not divide into {self.accumulate} parts"
        need(self.batch % self.accumulate == 0, parts, "accumulate")
        are_shares = all(0 < share < 1 for share in self.branches)
        said = f"branches {quote(self.branches)} must be shares between 0 and 1"
        need(are_shares, said, "branches")
        first = min(self.branches, default=1.0)
        said = f"the branch at {first:g} would cool down before the warm-up of {self.warmup:g} is "
        is_warm = not self.branches or first * (1 - self.decay) >= self.warmup
        need(is_warm, f"{said}over", "branches")
        return self

    def with_changes(self, changes: Mapping[str, Any]) -> "Train":
        """Return this train config with some keys changed.

        The changes come from a variant or from a combination of tuned values.
        """
        return Train.model_validate({**self.model_dump(), **changes})

    def identity(self, *without: str) -> dict[str, Any]:
        """Return the non-default values as plain JSON, for hashing.

        Keys in `without` are left out, too. Defaults are left out, so that adding a key to the
        schema changes no existing id.
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
    #: Budget of the variants that is matched to the baseline's by changing a size. Each of several
    #: budgets makes a separate table.
    match: list[Match] = Field(default=["none"])
    #: The context at which `state_bytes` are counted; the model's unless given.
    match_context: int | None = Field(None, gt=0, le=1 << 30)
    baseline: Named | None = None
    #: Combinations that are left out of a product design, each given by the values of some axes.
    exclude: list[dict[str, Any]] = Field(default_factory=list)

    _one_match = field_validator("match", mode="before")(_listed)
    _no_repeats = field_validator("match")(_without_repeats)

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> "Variants":
        design, is_list = self.design, self.design == "list"
        said = "design 'list' takes 'entries' (a list of mappings) and no 'axes'"
        need(not is_list or (self.entries and not self.axes), said)
        said = "a path starts at its baseline: it takes no 'baseline'"
        need(design != "path" or not self.baseline, said, "baseline")
        is_used = not self.match_context or "state_bytes" in self.match
        need(is_used, "'match_context' is for match: state_bytes", "match_context")
        said = f"design '{design}' takes 'axes', not 'entries'"
        need(is_list or not self.entries, said, "entries")
        said = f"'exclude' leaves combinations out of design 'product', not '{design}'"
        need(design == "product" or not self.exclude, said, "exclude")
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
    said = f"{quote(str(value))}: must be a number above 0 and its unit, as '0.01 nats'"
    need(value is None or margins.loss_margin(value), said)
    return value


def _complete_hypothesis(value: object) -> object:
    said = "must be a number in the metric's unit: '0.01 nats', or '0.1 points' of what has none"
    fine = value is None or margins.read(value)[1] not in ("", "%")
    need(fine, f"{quote(str(value))}: {said}")
    return value


def _with_some_unit(value: object) -> object:
    said = "must be a number and its unit: '0.01 nats', '5%' of the other's, or '0.1 points' of "
    fine = value is None or margins.read(value)[1]
    need(fine, f"{quote(str(value))}: {said}what is neither")
    return value


#: Directions in which two numbers may differ; "better" and "worse" are for losses.
_Way = Literal["better", "worse", "lower", "higher"]


class Hypothesis(Keys):
    """A hypothesis stated before the runs: how two variants compare in a metric."""

    variant: Named
    #: Another variant's label; the baseline unless given.
    against: Named | None = None
    direction: Literal[_Way, "equivalent", "not better", "not worse", "not lower", "not higher"]
    margin: str | None = None
    #: Name of the compared number, as `show` lists it; the reported loss unless given.
    measure: Named | None = None
    #: Name of the experiment's table in which the hypothesis is tested; the first unless given.
    table: Named | None = None
    #: Source of the claim, such as a paper, and its wording there.
    source: str = ""
    said: str = ""
    #: Accept a hypothesis of equivalence that, given the noise of a pilot, cannot be shown.
    force: bool = False

    _margin = field_validator("margin", mode="before")(_complete_hypothesis)

    @model_validator(mode="after")
    def _makes_sense(self) -> "Hypothesis":
        way = self.direction
        is_whole = self.size or not way.startswith(("equivalent", "not "))
        need(is_whole, f"direction '{way}' needs a margin, such as '0.01 nats'", "direction")
        said = f"direction '{way}' is for the loss: of '{self.measure}' say lower, higher or "
        is_loss = not self.measure or way.removeprefix("not ") not in ("better", "worse")
        need(is_loss, f"{said}equivalent", "direction")
        return self

    @property
    def size(self) -> float:
        """The margin as a number; 0 if no margin is given."""
        return margins.read(self.margin)[0]


class Guard(Keys):
    """Limit on how much worse than the baseline a measured number may be.

    The limit applies whatever the variant's loss.
    """

    #: A metric that `measure` names, and one of its quantities; the plan fills in the metric's
    #: default unless given.
    metric: Named
    quantity: Named | None = None
    #: Largest allowed worsening: "0.02 points", "0.01 nats", or "5%" of the baseline's value.
    worse_by: str
    #: Direction that is worse; the plan fills in the metric's direction unless given.
    worse: Literal["lower", "higher"] | None = None

    _margin = field_validator("worse_by", mode="before")(_with_some_unit)

    @model_validator(mode="after")
    def _below_all(self) -> "Guard":
        is_less = not self.is_relative or margins.read(self.worse_by)[0] < 100
        need(is_less, f"{self.worse_by}: must be below 100%", "worse_by")
        return self

    @property
    def is_relative(self) -> bool:
        """True if `worse_by` is a percentage of the baseline's value."""
        return margins.read(self.worse_by)[1] == "%"


class Size(Keys):
    """Model size at which a comparison is repeated: changed keys of the `model` section."""

    dim: int | None = Field(None, gt=0, le=65536)
    layers: int | None = Field(None, gt=0, le=1024)
    heads: int | None = Field(None, gt=0, le=1024)
    head_dim: int | None = Field(None, gt=0, le=65536)

    @model_validator(mode="after")
    def _says_something(self) -> "Size":
        need(self.changes, "a size changes dim, layers, heads or head_dim")
        return self

    @property
    def changes(self) -> dict[str, int]:
        """Keys of `model` that this size changes, with their values."""
        return self.model_dump(exclude_none=True)


class Sizes(Keys):
    """Ladder: an experiment that repeats a comparison at several model sizes."""

    models: list[Size] = Field(min_length=2)
    #: Training tokens for each non-embedding parameter of the baseline; unless given, `train` sets
    #: the number of tokens.
    tokens_per_parameter: float | None = Field(None, gt=0, le=1e6)
    #: Learning rate of the other sizes: the first size's, or scaled in proportion to 1/dim.
    lr: Literal["same", "inverse-dim"] = "same"


class Parallel(Keys):
    """Data parallelism of a run."""

    #: Number of processes, each with a separate device, that share every batch.
    data: int = Field(1, gt=0, le=1024)


def _whole_above_1(amount: float) -> float:
    need(amount <= 1 or amount % 1 == 0, "a number above 1 must be whole")
    return amount


#: Amount of a resource of Ray; an amount above 1 is whole.
Amount = Annotated[float, Field(ge=0.01, le=1e6), AfterValidator(_whole_above_1)]


class RayTask(Keys):
    """Resources that each run requests from Ray."""

    #: Number of CPUs; one for each process of the run unless given.
    cpus: Amount | None = None
    #: Share of a GPU that each process of the run takes, with `--device cuda`.
    gpus: float = Field(1, gt=0, le=1)
    memory_gb: float = Field(0, ge=0, le=1e6)
    #: Custom resources that nodes offer, with the amount of each.
    resources: dict[str, Amount] = Field(default_factory=dict)

    @field_validator("resources")
    @classmethod
    def _custom(cls, named: dict[str, float]) -> dict[str, float]:
        for name in named:
            is_custom = name not in ("CPU", "GPU", "memory", "object_store_memory")
            need(is_custom, f"{name} is no custom resource: cpus, gpus and memory_gb are", name)
        return named


class Evaluation(Keys):
    """Evaluation settings shared by all variants of a table."""

    #: How documents of held-out text are read; as in `data` unless given. Each of several values
    #: makes a separate table from the same runs.
    documents: list[Reading] = Field(default_factory=list)

    _listed = field_validator("documents", mode="before")(_listed)
    _no_repeats = field_validator("documents")(_each_once)


Reseed = Literal["init", "order", "both", "none"]


def _repeated() -> list[Reseed]:
    return ["none"]


class Controls(Keys):
    """Control arms, which check that an experiment can be trusted.

    An A/A arm (`aa`) trains the baseline again under another name. With nothing changed (`none`,
    the default, on the first `repeat` seeds) its results must equal the baseline's bit for bit; a
    difference bounds the bias of all arms but the baseline. With other initial weights (`init`),
    another order of training batches (`order`) or `both`, an A/A arm shows the noise. The positive
    control (`positive`) is a change that is known to do harm.
    """

    aa: list[Reseed] = Field(default_factory=_repeated)
    repeat: int = Field(1, ge=1)
    positive: dict[str, Any] = Field(default_factory=dict)

    _list_aa = field_validator("aa", mode="before")(_listed)
    _no_repeats = field_validator("aa")(_each_once)


#: Names of costs for a report's first sentence.
CostName = Literal[
    "kv_cache", "train_speed", "decode_speed", "parameters", "active", "flops", "memory"
]


class AnswerKeys(Keys):
    """Settings of the sentence at the top of a report that answers its question."""

    #: Cost that is reported together with differences in loss: "needs 1/4 of it and is equivalent".
    #: Unless given, the state bytes if there is a margin, and either `kv_cache` has a `context` or
    #: only the attention is varied.
    cost: CostName | None = None
    #: Difference in loss up to which a variant counts as not worse: "0.05 nats". A row is not worse
    #: if the upper end of its interval lies below; the answer names the cheapest such variant.
    not_worse_by: str | None = None

    _not_worse_by = field_validator("not_worse_by", mode="before")(_with_unit)


class Looks(Keys):
    """Group-sequential design: seeds are trained in groups, with a test after each.

    A test on the seeds so far is a look; variants that are undecided at a look get the next group.
    The type I error of a table is divided over its looks before the first run (Lan & DeMets 1983,
    Biometrika 70), so frequent looks cause no additional false verdicts.
    """

    #: Cumulative number of seeds at each look, such as 3, 6 and 12.
    looks: list[int] = Field(min_length=1, max_length=20)
    #: Share of the type I error that each look spends; unless given, in proportion to the seeds
    #: that it adds.
    spend: list[float] = Field(default_factory=list)
    #: First seed; the others follow it.
    first: int = Field(0, ge=0, le=1 << 31)

    @model_validator(mode="after")
    def _in_order(self) -> "Looks":
        numbers, shares = self.looks, self.spend
        grow = 2 <= numbers[0] <= numbers[-1] <= MOST_SEEDS and numbers == sorted({*numbers})
        said = f"{quote(numbers)}: must be numbers of seeds that grow, the first 2 or more, the "
        need(grow, f"{said}last at most {MOST_SEEDS:,}", "looks")
        fit = len(shares) == len(numbers) and min(shares) > 0 and sum(shares) <= 1 + 1e-9
        said = f"{quote(shares)}: must be {len(numbers)} shares above 0, one for each look, that "
        need(fit or not shares, f"{said}sum to 1 at most", "spend")
        return self


class Experiment(Keys):
    """Content of an experiment file, validated."""

    name: str = Field(min_length=1, max_length=80)
    question: str = ""
    base: str = "llama2-tiny"
    model: Model = Model()
    variants: Variants = Variants()
    data: Data = Data()
    #: Several `data` sections, in place of `data`; each makes a separate table.
    texts: list[Data] = Field(default_factory=list, max_length=100)
    train: Train = Train()
    evaluation: Evaluation = Evaluation()
    #: Quantity that is equal in the runs of all variants: training tokens, or the bytes of text,
    #: FLOPs or measured seconds that the baseline spends on its tokens. Each of several budgets
    #: makes a separate table.
    budget: list[Budget] = Field(default=["tokens"])
    #: Tuning grid: keys of `train`, with the values of each that are tried for every variant.
    tune: dict[str, list[Any]] = Field(default_factory=dict)
    sizes: Sizes | None = None
    parallel: Parallel = Parallel()
    ray: RayTask = RayTask()
    controls: Controls = Controls()
    #: Number of seeds, a list of seeds, or numbers of seeds at looks.
    seeds: int | list[int] | Looks = 3
    #: Number of seeds on which tuned points are compared; they differ from the reported seeds. Then
    #: each variant runs at its best point only. If None, all points run with all seeds.
    race: int | None = Field(None, ge=1, le=10)
    #: Differences smaller than this are irrelevant: "0.01 nats".
    margin: str | None = None
    #: Loss whose training steps and seconds are compared, in the unit of the table.
    target: float | None = Field(None, gt=0)
    answer: AnswerKeys = AnswerKeys()
    hypotheses: list[Hypothesis] = Field(default_factory=list)
    #: Numbers in which no variant may be worse than the baseline.
    guard: list[Guard] = Field(default_factory=list)
    measure: list[Entry] = Field(default=["perplexity", "train_speed", "decode_speed", "kv_cache"])

    _metrics = field_validator("measure")(_without_repeats)

    @field_validator("seeds")
    @classmethod
    def _some_seeds(cls, seeds: int | list[int] | Looks) -> int | list[int] | Looks:
        few = not isinstance(seeds, int) or 0 < seeds <= MOST_SEEDS
        need(few, f"{seeds}: must be from 1 to {MOST_SEEDS:,}, or a list of seeds")
        small = not isinstance(seeds, list) or all(0 <= seed < 2**32 for seed in seeds)
        need(small, "a seed must be from 0 to 2^32 - 1")
        return _without_repeats(seeds) if isinstance(seeds, list) else seeds

    _margin = field_validator("margin", mode="before")(_with_unit)
    _one_guard = field_validator("guard", mode="before")(_listed)
    _one_budget = field_validator("budget", mode="before")(_listed)
    _budget_alone = field_validator("budget", mode="before")(_without_size)
    _no_repeats = field_validator("budget")(_without_repeats)

    @model_validator(mode="after")
    def _has_a_length(self) -> "Experiment":
        by_size = self.sizes and self.sizes.tokens_per_parameter
        said = "needs 'tokens' or 'steps', or 'sizes' needs 'tokens_per_parameter': how long a run "
        need(self.train.tokens or self.train.steps or by_size, f"{said}trains", "train")
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
        said = f"more than {MOST_VARIANTS:,} variants in all tables together; split the experiment"
        need(variants <= MOST_VARIANTS, said, "variants")
        part, ranks = self.train.batch // self.train.accumulate, self.parallel.data
        said = f"{ranks} processes cannot share {part} rows of a batch evenly"
        need(part % ranks == 0, said, "parallel", "data")
        said = "processes that share a batch take a whole GPU each"
        need(ranks == 1 or self.ray.gpus == 1, said, "ray", "gpus")
        points = math.prod(len(values) for values in self.tune.values())
        runs = variants * points * len(self.race_seeds + self.seed_list)
        said = f"more than {MOST_RUNS:,} runs: variants times tuned points times seeds; split the "
        key = "tune" if points > len(self.seed_list) else "seeds"
        need(runs <= MOST_RUNS, f"{said}experiment", key)
        return self

    @model_validator(mode="after")
    def _can_go_by_stages(self) -> "Experiment":
        said = "a race is between tuned points: it needs 'tune'"
        need(self.tune or not self.race, said, "race")
        said = f"the seeds from {RACE_SEED:,} on are those of the race, which are not reported"
        need(not set(self.race_seeds) & set(self.seed_list), said, "seeds")
        if isinstance(self.seeds, Looks):
            said = "looks need tuned points that are fixed before the first look: give 'race', "
            need(self.race or not self.tune, f"{said}such as race: 2", "seeds")
            design = "a ladder of sizes" if self.sizes else f"design '{self.variants.design}'"
            said = f"looks stop variants one by one, and {design} needs all of them with the same "
            is_free = not self.sizes and self.variants.design != "path"
            need(is_free, f"{said}seeds: give their number", "seeds")
        return self

    @property
    def seed_list(self) -> tuple[int, ...]:
        """Reported seeds; `seeds: 3` means 0, 1 and 2."""
        if isinstance(self.seeds, Looks):
            return tuple(range(self.seeds.first, self.seeds.first + self.seeds.looks[-1]))
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else tuple(self.seeds)

    @property
    def state_contexts(self) -> tuple[int, ...]:
        """Context lengths at which state bytes (KV cache, recurrent state) are reported.

        The training context is first, followed by the contexts in `kv_cache` and `match_context`.
        """
        options = [entry for entry in self.measure if isinstance(entry, dict)]
        asked_contexts = (
            option.get("context") for option in options if option["name"] == "kv_cache"
        )
        contexts = (self.model.context, *asked_contexts, self.variants.match_context)
        return tuple(dict.fromkeys(context for context in contexts if context))

    @property
    def race_seeds(self) -> tuple[int, ...]:
        """Seeds on which combinations of tuned values are compared; empty without `race`."""
        return tuple(range(RACE_SEED, RACE_SEED + (self.race or 0)))

    @property
    def looks(self) -> tuple[int, ...]:
        """Cumulative number of seeds at each look; by default, all seeds at a single look."""
        if isinstance(self.seeds, Looks):
            return tuple(self.seeds.looks)
        return (len(self.seed_list),)

    @property
    def spend(self) -> tuple[float, ...]:
        """Share of the type I error spent at each look; empty if not given."""
        return tuple(self.seeds.spend) if isinstance(self.seeds, Looks) else ()

    @property
    def is_staged(self) -> bool:
        """True if earlier results decide which planned runs are needed (races and looks)."""
        return self.race is not None or isinstance(self.seeds, Looks)

    @property
    def slug(self) -> str:
        """The name in a form that is valid as a folder's name."""
        return slug(self.name)
