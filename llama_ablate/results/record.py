"""Records of runs: launch settings, measurements, outcomes and learning curves."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Annotated, Any, Literal, NotRequired, get_args

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from llama_ablate.config.registry import Entry
from llama_ablate.config.schema import Reading
from llama_ablate.files.fields import (
    Count,
    Id,
    MetricName,
    Number,
    Numbers,
    Options,
    Text,
    Word,
    typed,
)

#: Type of a coordinate: a split, a context, a batch size, a position, a layer ...
Coordinate = str | Annotated[int, Field(ge=-(10**18), le=10**18)] | Number


@dataclass(frozen=True)
class Value:
    """Measured number of a metric."""

    __pydantic_config__ = ConfigDict(extra="ignore")
    #: Name in hypotheses and CSV columns, unique within a run or variant.
    name: Word
    value: Number
    #: Measured quantity without its coordinates: "loss", "decode_speed". Equal to the name where
    #: there are no coordinates.
    quantity: Word = ""
    unit: Word = ""
    #: Conditions of the measurement: {"split": "test"}, {"layer": 3}, {"batch": 8, "context": 512}.
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    #: Values by round of a timed metric, whose median is `value`; for other metrics, values by
    #: document, item or group.
    samples: Numbers = ()
    #: For a timed metric: the number of samples from each process, in order; empty where one
    #: process took all samples.
    turns: tuple[int, ...] = ()

    @property
    def by_process(self) -> tuple[tuple[float, ...], ...]:
        """Samples of each process; without samples, the value itself."""
        samples, ends = self.samples or (self.value,), accumulate(self.turns)
        starts = (0, *accumulate(self.turns))
        return tuple(samples[a:b] for a, b in zip(starts, ends, strict=False)) or (samples,)


@dataclass(frozen=True)
class Measurement:
    """Values of a metric for a run or variant, or the error of a failure."""

    __pydantic_config__ = ConfigDict(extra="ignore")
    rows: tuple[Value, ...] = ()
    error: str = ""
    #: YAML entry of the metric, without default options; empty in files of older versions.
    entry: Entry = ""
    #: For a per-variant metric: a digest of its inputs, the compute settings, and the environment.
    circumstances: str = ""
    compute: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[str, float]:
        """Measured values by name."""
        return {row.name: row.value for row in self.rows}

    def to_dict(self) -> dict[str, Any]:
        """Return the measurement as a dictionary of plain values, without empty fields."""
        rows = [_without_defaults(asdict(value)) for value in self.rows]
        return {"rows": rows, **_without_defaults({**vars(self), "rows": ()})}

    @classmethod
    def from_dict(cls, stored: object, where: object = "") -> "Measurement":
        """Create a measurement from `to_dict` output. Raises ConfigError for invalid values."""
        return typed(_MEASUREMENT, stored, where)


_MEASUREMENT = TypeAdapter(Measurement)


def row(
    name: str, value: float, unit: str = "", quantity: str = "", **coordinates: Coordinate
) -> Value:
    """Return a measured value: `row("test_loss_nats", 1.9, "nats", "loss", split="test")`.

    Scalars of torch and numpy are converted to Python numbers, which JSON can represent.
    """
    where = {key: scalar(coordinate) for key, coordinate in coordinates.items()}
    return Value(name, float(scalar(value)), quantity or name, unit, where)


def scalar(value: Any) -> Any:
    """Convert a torch or numpy scalar to a Python number; return any other value unchanged."""
    return value.item() if hasattr(value, "item") else value


def _without_defaults(stored: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in stored.items() if value not in ("", (), {})}


Outcome = Literal["ok", "diverged", "collapsed", "oom", "timeout", "error", "cancelled"]
#: Outcomes that depend on the variant; runs with other outcomes are retried by the next `run`.
FINAL = ("ok", "diverged", "collapsed")
#: Name of the metric that every run records during training.
TRAINING = "training"
#: Number of validation tokens for the losses of a learning curve.
CURVE_TOKENS = 8_192
CURVE = ("step", "tokens", "lr", "train_loss_nats", "grad_norm", "validation_loss_nats", "train_s")


def _with_torch(packages: dict[str, str | None]) -> dict[str, str | None]:
    if "torch" not in packages:
        raise ValueError("it lacks torch")
    return packages


@with_config(ConfigDict(extra="allow"))
class Environment(TypedDict):
    """Software and hardware of a run; further keys are allowed."""

    packages: Annotated[dict[str, str | None], AfterValidator(_with_torch)]
    code: str | None
    processor: str
    gpu: str | None
    plugins: NotRequired[dict[str, str]]
    python: NotRequired[str]
    system: NotRequired[str]
    cores: NotRequired[int]


@dataclass(frozen=True)
class Record:
    """Record of a finished run: outcome, configuration, environment and metrics.

    The curve, the weights and each metric are stored in other files of the run's folder.
    """

    __pydantic_config__ = ConfigDict(extra="ignore")
    id: Id
    label: Text
    variant: Id
    seed: Count
    outcome: Outcome
    reason: Text
    steps_done: Count
    tokens_done: Count
    train_s: Number
    peak_memory_bytes: Count
    model: Options
    train: Options
    data: str
    compute: dict[str, Any]
    environment: Environment
    metrics: dict[MetricName, Measurement] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a dictionary of plain values."""
        metrics = {name: metric.to_dict() for name, metric in self.metrics.items()}
        return {**asdict(replace(self, metrics={})), "metrics": metrics}

    @classmethod
    def from_dict(cls, values: object, where: object = "") -> "Record":
        """Create a record from `to_dict` output. Raises ConfigError for invalid values."""
        return typed(_RECORD, values, where)

    @property
    def ok(self) -> bool:
        """Completion status: true for the outcome `ok`."""
        return self.outcome == "ok"

    @property
    def too_short(self) -> bool:
        """Undertraining status: true if an `ok` run ended near or above the unigram loss.

        The loss was still falling at the end. The final loss is therefore unknown, and the run is
        not compared. An `ok` run has a `reason` only in this case.
        """
        return self.ok and bool(self.reason)

    def read(self, behind: str = "") -> dict[str, Measurement]:
        """Return the metrics of one document mode, by name without the mode's suffix.

        `behind` is the suffix of the document mode; "" for the first mode.
        """
        ends = [f".{way}" for way in get_args(Reading)]
        endings = {name: next((e for e in ends if name.endswith(e)), "") for name in self.metrics}
        names = (name for name, end in endings.items() if end == behind)
        return {name.removesuffix(behind): self.metrics[name] for name in names}

    @property
    def numbers(self) -> dict[str, float]:
        """Measured numbers of the run by name, in the first document mode."""
        return {k: v for metric in self.read().values() for k, v in metric.numbers.items()}

    @property
    def unmeasured(self) -> dict[str, str]:
        """Error messages of failed metrics, by metric name."""
        return {name: metric.error for name, metric in self.metrics.items() if metric.error}


_RECORD = TypeAdapter(Record)

#: Points of a learning curve, each with a number for every column.
Points = Iterable[Mapping[str, float]]


@dataclass(frozen=True)
class ComputeSettings:
    """Compute settings of a machine: device, threads, precision and attention kernel."""

    device: str = "cpu"
    threads: int = 1
    precision: str = "float32"
    kernel: str = "fused"
    #: Number of processes that share the batches of one run.
    ranks: int = 1
    #: Precision of predictions on held-out text.
    evaluation: str = "float32"
    #: FLOP/s of a one-layer training step, where a forecast measured it; 0 otherwise.
    flops_per_s: float = 0.0
    #: Median seconds of that step for every timed pair of precision and kernel.
    tried_s: tuple[tuple[str, float], ...] = ()

    #: Whether training steps are compiled.
    compiled: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dictionary, without an unset speed or compilation."""
        values = asdict(self)
        if not self.compiled:
            del values["compiled"]
        if not self.flops_per_s:
            del values["flops_per_s"], values["tried_s"]
        return values


@dataclass(frozen=True)
class Memory:
    """Largest predicted memory of a worker in bytes, and the label of its variant."""

    bytes: int
    variant: str


@dataclass(frozen=True)
class Settings:
    """Launch settings of all runs, stored in the plan; no measured number depends on them."""

    #: Weights to keep: none, those from each variant's best run in every table, or all.
    keep_weights: Literal["none", "best", "all"] = "all"
    checkpoint_s: float = 30.0
    #: Loaded plug-ins: files with their SHA-256, packages with their versions.
    plugins: Mapping[str, str] = field(default_factory=dict)
    #: Names of the sinks that get the runs' curves and metrics.
    track: tuple[str, ...] = ()
