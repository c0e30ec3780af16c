"""What a launch decides for its runs, and what a finished one leaves."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from llama_ablate.config.registry import Entry
from llama_ablate.config.section_keys import Reading
from llama_ablate.errors import ConfigError
from llama_ablate.files.fields import (
    LARGEST,
    Count,
    Id,
    MetricName,
    Number,
    Options,
    Text,
    Word,
    typed,
)

#: What a coordinate may be: a split, a context, a batch size, a position, a layer ...
Coordinate = str | Annotated[int, Field(ge=-(10**18), le=10**18)] | Number


@dataclass(frozen=True)
class Value:
    """One measured number of a metric."""

    __pydantic_config__ = ConfigDict(extra="ignore")
    #: Unique within a run or variant: what hypotheses and the columns of a CSV name it by.
    name: Word
    value: Number
    #: What was measured, whatever the coordinates: "loss", "decode_speed". The name where it has
    #: no coordinates.
    quantity: Word = ""
    unit: Word = ""
    #: Where it was measured: {"split": "test"}, {"layer": 3}, {"batch": 8, "context": 512}.
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
    #: Of a timed metric: the value of every round, whose median `value` is.
    samples: tuple[Number, ...] = ()
    #: Of a timed metric: how many of the samples each process took, in order; all of them one
    #: process where this is empty.
    turns: tuple[int, ...] = ()

    @property
    def by_process(self) -> tuple[tuple[float, ...], ...]:
        """The samples of each process; the value itself where there are none."""
        samples, ends = self.samples or (self.value,), accumulate(self.turns)
        starts = (0, *accumulate(self.turns))
        return tuple(samples[a:b] for a, b in zip(starts, ends, strict=False)) or (samples,)


@dataclass(frozen=True)
class Measurement:
    """What a metric measured of a run or a variant, or why it failed."""

    __pydantic_config__ = ConfigDict(extra="ignore")
    rows: tuple[Value, ...] = ()
    error: str = ""
    #: What one would write in YAML to take it again, without defaults; older versions kept none.
    entry: Entry = ""
    #: Of a per-variant metric: a digest of what it depends on, the compute, and where it ran.
    circumstances: str = ""
    compute: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[str, float]:
        """The values by name."""
        return {row.name: row.value for row in self.rows}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without what is empty."""
        rows = [_without_defaults(asdict(value)) for value in self.rows]
        return {"rows": rows, **_without_defaults({**vars(self), "rows": ()})}

    @classmethod
    def from_dict(cls, stored: object, where: object = "") -> "Measurement":
        """Make the measurement that `to_dict` wrote. Raises ConfigError for anything else."""
        return typed(_MEASUREMENT, stored, where)


_MEASUREMENT = TypeAdapter(Measurement)


def row(
    name: str, value: float, unit: str = "", quantity: str = "", **coordinates: Coordinate
) -> Value:
    """Return a measured value: `row("test_loss_nats", 1.9, "nats", "loss", split="test")`.

    Scalars of torch and numpy become Python's, which JSON can hold.
    """
    where = {key: scalar(coordinate) for key, coordinate in coordinates.items()}
    return Value(name, float(scalar(value)), quantity or name, unit, where)


def scalar(value: Any) -> Any:
    """Convert a scalar of torch or numpy to Python's; return anything else as it is."""
    return value.item() if hasattr(value, "item") else value


def _without_defaults(stored: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in stored.items() if value not in ("", (), {})}


Outcome = Literal["ok", "diverged", "collapsed", "oom", "timeout", "error", "cancelled"]
#: Outcomes that say something about the variant; the others are tried again by the next `run`.
FINAL = ("ok", "diverged", "collapsed")
#: The metric of what every run notes while it trains.
TRAINING = "training"
#: Tokens of the validation split that the losses of a learning curve are taken from.
CURVE_TOKENS = 8_192
CURVE = ("step", "tokens", "lr", "train_loss_nats", "grad_norm", "validation_loss_nats", "train_s")


def _with_torch(packages: dict[str, str | None]) -> dict[str, str | None]:
    if "torch" not in packages:
        raise ValueError("it lacks torch")
    return packages


@with_config(ConfigDict(extra="allow"))
class Environment(TypedDict):
    """What a run was made with: more keys than these may be there."""

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
    """What a finished run leaves behind, apart from its curve, weights and metrics."""

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
        """Return plain values."""
        metrics = {name: metric.to_dict() for name, metric in self.metrics.items()}
        return {**asdict(replace(self, metrics={})), "metrics": metrics}

    @classmethod
    def from_dict(cls, values: object, where: object = "") -> "Record":
        """Make the record that `to_dict` wrote. Raises ConfigError for anything else."""
        return typed(_RECORD, values, where)

    @property
    def ok(self) -> bool:
        """Whether the run went to its end."""
        return self.outcome == "ok"

    @property
    def too_short(self) -> bool:
        """Whether it ended near or above the loss of token frequencies, and still fell.

        What it would have come to is not known: it is not compared. Of a run that ended `ok` there
        is a reason to give just then.
        """
        return self.ok and bool(self.reason)

    def read(self, behind: str = "") -> dict[str, Measurement]:
        """Return the metrics of one way of reading held-out text, by what is behind their names."""
        ends = [f".{way}" for way in get_args(Reading)]
        found = {name: next((e for e in ends if name.endswith(e)), "") for name in self.metrics}
        own = (name for name, end in found.items() if end == behind)
        return {name.removesuffix(behind): self.metrics[name] for name in own}

    @property
    def numbers(self) -> dict[str, float]:
        """All measured numbers of the run, by name; of several ways of reading, of the first."""
        return {k: v for metric in self.read().values() for k, v in metric.numbers.items()}

    @property
    def unmeasured(self) -> dict[str, str]:
        """Why a metric failed, by metric."""
        return {name: metric.error for name, metric in self.metrics.items() if metric.error}


_RECORD = TypeAdapter(Record)
_ENDING = TypeAdapter(tuple[Outcome, str])


def ending(values: Mapping[str, Any], where: object) -> tuple[Outcome, str]:
    """Return the outcome and its reason. Raises ConfigError where they are none."""
    return typed(_ENDING, (values.get("outcome"), values.get("reason")), where)


#: The points of a learning curve: a number for each column.
Points = Iterable[Mapping[str, float]]


class Curve(NamedTuple):
    """A learning curve: the names of its columns, and its numbers (points, columns)."""

    columns: tuple[str, ...]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, columns: Iterable[str], rows: Iterable[Sequence[Any]], where: object) -> "Curve":
        """Make a curve of what was stored; NaN where a number was not taken.

        Raises ConfigError where a row is shorter than another, or holds anything but numbers.
        """
        names = tuple(columns)
        try:
            values = np.array([[float(cell) for cell in row] for row in rows])
            curve = cls(names, values.reshape(len(values), len(names)))
        except (TypeError, ValueError, OverflowError) as error:
            raise ConfigError(f"{where}: damaged, it is no learning curve ({error})") from None
        if len(curve.values) and ({*CURVE} - {*names} or curve._is_beyond):
            raise ConfigError(f"{where}: damaged, a learning curve has other columns or numbers")
        return curve

    @property
    def _is_beyond(self) -> bool:
        """Whether a step is no number, or another is too large."""
        finite = np.isfinite(self.values)
        steps = [self.columns.index(key) for key in ("step", "tokens")]
        return not finite[:, steps].all() or bool((abs(self.values[finite]) > LARGEST).any())

    @property
    def points(self) -> list[dict[str, float]]:
        """Its points, a number for each column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.values.tolist()]


@dataclass(frozen=True)
class ComputeSettings:
    """How a machine computes: device, threads, precision and attention kernel."""

    device: str = "cpu"
    threads: int = 1
    precision: str = "float32"
    kernel: str = "fused"
    #: Processes that share the batches of one run.
    ranks: int = 1
    #: The precision in which held-out text is predicted.
    evaluation: str = "float32"
    #: FLOP/s of a training step of one layer, where a forecast took it.
    flops_per_s: float = 0.0
    #: Median seconds of that step for every pair of precision and kernel that was timed.
    tried_s: tuple[tuple[str, float], ...] = ()

    #: Whether training steps are compiled.
    compiled: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; of speed and compiling only where there are any."""
        values = asdict(self)
        if not self.compiled:
            del values["compiled"]
        if not self.flops_per_s:
            del values["flops_per_s"], values["tried_s"]
        return values


@dataclass(frozen=True)
class Memory:
    """The most memory that a worker is predicted to take, and the label of the run's variant."""

    bytes: int
    variant: str


@dataclass(frozen=True)
class Settings:
    """What a launch decides for all runs and no number depends on; part of the plan."""

    #: Of finished runs: none, those of each variant's best run in every table, or all.
    keep_weights: Literal["none", "best", "all"] = "all"
    checkpoint_s: float = 30.0
    #: What was loaded to register components: files and their SHA-256, packages and their versions.
    plugins: Mapping[str, str] = field(default_factory=dict)
