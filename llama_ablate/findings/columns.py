"""Columns of all frames: their names, types and descriptions, from `columns.yaml`."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import pandas as pd
import yaml


@dataclass(frozen=True)
class Column:
    """Declaration of a column; the head of `columns.yaml` describes the fields."""

    type: str
    about: str
    title: str = ""
    form: str = ""
    write: str = ""
    first: bool = False
    optional: bool = False
    when: str = ""
    mean: bool = False


def _read_columns() -> dict[str, dict[str, Column]]:
    text = resources.files("llama_ablate.findings").joinpath("columns.yaml").read_text("utf-8")
    sections = yaml.safe_load(text)
    return {
        section: {name: Column(**declared) for name, declared in columns.items()}
        for section, columns in sections.items()
    }


#: Columns of each section of a report by name, in the order of its frame.
COLUMNS: Mapping[str, Mapping[str, Column]] = _read_columns()


def make_frame(rows: Iterable[Mapping[str, Any]] | pd.DataFrame, section: str) -> pd.DataFrame:
    """Return rows as a frame with exactly the columns of a section, in their order and types.

    A missing number is NaN, and a missing text empty. Further values of the rows are left out.
    """
    given = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame([*rows])
    given = given.reset_index(drop=True)
    missing = pd.Series(math.nan, given.index, dtype=object)
    return pd.DataFrame(
        {
            name: _convert(given.get(name, missing), column)
            for name, column in COLUMNS[section].items()
        }
    )


def _convert(values: "pd.Series[Any]", column: Column) -> "pd.Series[Any]":
    """Return the values of a column in its type; integers with missing values are floats."""
    is_known = values.notna()
    if column.type == "str":
        return values.astype(object).where(is_known, "").astype("str")
    kind: Any = column.type if is_known.all() else float
    return values.astype(kind)


def list_means(section: str) -> list[str]:
    """Return the columns of a section that are means over runs of the number of the same name."""
    return [name for name, column in COLUMNS[section].items() if column.mean]


def list_shown(section: str) -> Iterator[tuple[str, Column]]:
    """Yield the columns of a report's table, the columns of narrow tables first."""
    titled = [(name, column) for name, column in COLUMNS[section].items() if column.title]
    yield from sorted(titled, key=lambda named: not named[1].first)


def list_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as dictionaries by column."""
    rows: list[Any] = frame.to_dict("records")
    return rows


def iterate(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows of a frame as named tuples."""
    yield from frame.itertuples(index=False)


def index_rows(frame: pd.DataFrame, column: str = "") -> dict[Any, dict[str, Any]]:
    """Return the rows of a frame as dictionaries, by the values of a column, or of its index."""
    indexed: Any = frame.set_index(column, drop=False) if column else frame
    rows: dict[Any, dict[str, Any]] = indexed.to_dict("index")
    return rows
