"""What an experiment file may say: keys, types, defaults and allowed values."""

import itertools
import math
from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from llama_ablate.config import margins
from llama_ablate.config.registry import Entry
from llama_ablate.config.section_keys import Data, Model, Reading, Train
from llama_ablate.config.validation import Keys, at, shown
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
    names = Counter(str(one.get("name") if isinstance(one, dict) else one) for one in values)
    name, times = names.most_common(1)[0]
    if times > 1:
        raise ValueError(f"{shown(values)} names '{name}' twice")
    return values


def _each_once(values: list[Any]) -> list[Any]:
    return _without_repeats(values) if values else values


def _without_size(value: object) -> object:
    if any(isinstance(one, dict) for one in _listed(value)):
        raise ValueError(
            f"{shown(value)} is not accepted: a budget is tokens, bytes, flops or seconds, "
            "without a number; the number is train.tokens or train.steps, of the "
            "baseline"
        )
    return value


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
        """How many variants the design makes, without making them."""
        levels = [len(values) for values in self.axes.values()]
        return {
            "one-at-a-time": 1 + sum(levels),
            "path": 1 + sum(levels),
            "product": math.prod(levels),
            "fraction": 1 << max(len(levels) - 1, 0),
            "list": len(self.entries),
        }[self.design]


def _with_unit(value: object) -> object:
    if value is not None and margins.of_loss(value) is None:
        raise ValueError(
            f"{shown(str(value))}: must be a number above 0 and its unit, as '0.01 nats'"
        )
    return value


def _of_hypothesis(value: object) -> object:
    if value is not None and margins.read(value)[1] in ("", "%"):
        raise ValueError(
            f"{shown(str(value))}: must be a number in the metric's unit: '0.01 nats', or "
            "'0.1 points' of what has none"
        )
    return value


def _with_some_unit(value: object) -> object:
    if value is not None and not margins.read(value)[1]:
        raise ValueError(
            f"{shown(str(value))}: must be a number and its unit: '0.01 nats', '5%' "
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

    _margin = field_validator("margin", mode="before")(_of_hypothesis)

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
        """Whether what is allowed is a share of the baseline's number."""
        return margins.read(self.worse_by)[1] == "%"


class Size(Keys):
    """One rung of a ladder of model sizes: what it changes of `model`."""

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
        """What it says."""
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
    """How one run is spread over devices."""

    #: Processes, each with its own device, that share every batch.
    data: int = Field(1, gt=0, le=1024)


def _whole_above_1(amount: float) -> float:
    if amount > 1 and amount % 1:
        raise at("a number above 1 must be whole")
    return amount


#: How much of a resource of Ray.
Amount = Annotated[float, Field(ge=0.01, le=1e6), AfterValidator(_whole_above_1)]


class RayTask(Keys):
    """What each run asks of Ray."""

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
        if own := {*named} & {"CPU", "GPU", "memory", "object_store_memory"}:
            raise at(f"{min(own)} is no custom resource: cpus, gpus and memory_gb are", min(own))
        return named


class Evaluation(Keys):
    """What all variants of a table are evaluated on, whatever each was trained on."""

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

    _one = field_validator("aa", mode="before")(_listed)
    _no_repeats = field_validator("aa")(_each_once)


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
                f"{shown(numbers)}: must be numbers of seeds that grow, the first 2 or more, the "
                f"last at most {MOST_SEEDS:,}",
                "looks",
            )
        if self.spend and (
            len(self.spend) != len(numbers) or min(self.spend) <= 0 or sum(self.spend) > 1 + 1e-9
        ):
            raise at(
                f"{shown(self.spend)}: must be {len(numbers)} shares above 0, one for each look, "
                "that sum to 1 at most",
                "spend",
            )
        return self


class Terms(Keys):
    """The `judge` section: what every candidate of a ledger is held to."""

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
    rule: Literal["lord", "family-wise", "e-lond"] = "lord"

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
    hypotheses: list[Hypothesis] = Field(default_factory=list)
    #: Numbers in which no variant may be worse.
    guard: list[Guard] = Field(default_factory=list)
    #: What is expected of the noise before anything has run: of the shipped memory, `none`, or that
    #: of a folder of results.
    noise: str | None = Field(None, min_length=1, max_length=1000)
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
            whole = "a ladder of sizes" if self.sizes else f"design '{self.variants.design}'"
            if self.sizes or self.variants.design == "path":
                raise at(
                    f"looks stop variants one by one, and {whole} needs all of them with the same "
                    "seeds: give their number",
                    "seeds",
                )
        return self

    @property
    def seed_list(self) -> tuple[int, ...]:
        """The seeds that are reported: `seeds: 3` stands for 0, 1, 2."""
        if isinstance(self.seeds, Looks):
            return tuple(range(self.seeds.first, self.seeds.first + self.seeds.looks[-1]))
        return tuple(range(self.seeds)) if isinstance(self.seeds, int) else tuple(self.seeds)

    @property
    def state_contexts(self) -> tuple[int, ...]:
        """Contexts whose state bytes are reported: the training context, then those asked for."""
        options = [entry for entry in self.measure if isinstance(entry, dict)]
        asked = (own.get("context") for own in options if own["name"] == "kv_cache")
        contexts = (self.model.context, *asked, self.variants.match_context)
        return tuple(dict.fromkeys(context for context in contexts if context))

    @property
    def race_seeds(self) -> tuple[int, ...]:
        """The seeds on which tuned points are tried, where that is done apart."""
        return tuple(range(RACE_SEED, RACE_SEED + (self.race or 0)))

    @property
    def looks(self) -> tuple[int, ...]:
        """How many of the seeds there are at each look; without looks, all at the only one."""
        if isinstance(self.seeds, Looks):
            return tuple(self.seeds.looks)
        return (len(self.seed_list),)

    @property
    def spend(self) -> tuple[float, ...]:
        """The share of the error that each look may spend, where the file states it."""
        return tuple(self.seeds.spend) if isinstance(self.seeds, Looks) else ()

    @property
    def is_staged(self) -> bool:
        """Whether earlier runs decide which of the planned runs are needed."""
        return self.race is not None or isinstance(self.seeds, Looks)

    @property
    def slug(self) -> str:
        """The name as a folder can bear it."""
        return slug(self.name)
