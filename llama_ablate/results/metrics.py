"""A measured value as a row: metric, name, coordinates, value, unit; and how rows are stored."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter

from llama_ablate.config.registry import Entry
from llama_ablate.files.fields import Number, Word, typed

#: What a coordinate may be: a split, a context, a batch size, a position, a layer ...
Coordinate = str | Annotated[int, Field(ge=-(10**18), le=10**18)] | Number


@dataclass(frozen=True)
class Value:
    """One measured number of a metric."""

    __pydantic_config__ = ConfigDict(extra="forbid")
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

    __pydantic_config__ = ConfigDict(extra="forbid")
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
