"""A measured value as a row: metric, name, coordinates, value, unit."""

from collections.abc import Mapping
from dataclasses import dataclass, field

#: What a coordinate may be: a split, a context, a batch size, a position, a layer ...
Coordinate = str | int | float


@dataclass(frozen=True)
class Value:
    """One measured number of a metric."""

    #: Unique within a run or variant: what hypotheses and the columns of a CSV name it by.
    name: str
    value: float
    #: What was measured, whatever the coordinates: "loss", "decode_speed". The name where it has
    #: no coordinates.
    quantity: str = ""
    unit: str = ""
    #: Where it was measured: {"split": "test"}, {"layer": 3}, {"batch": 8, "context": 512}.
    coordinates: Mapping[str, Coordinate] = field(default_factory=dict)
