"""Table rows: frozen dataclasses whose fields declare the columns of data frames and pages.

A field made by `column` is a data column: it is part of the data frame, the CSV file and
`docs/python.md`. A data column with a `head` is also a column of the formatted table on the page,
in Markdown, LaTeX and terminals. The decorator `cell` makes a formatted column of a method that
combines several fields. Columns follow the row's `ORDER`, with leading columns first.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from string import Formatter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from llama_ablate.evidence.written import interval, number

if TYPE_CHECKING:
    import pandas as pd

Method = TypeVar("Method", bound=Callable[..., str])
Filled = TypeVar("Filled", bound="Row")
Thing = TypeVar("Thing")
Key = TypeVar("Key", bound=Hashable)
_NO_DEFAULT: Any = MISSING
#: Head of the column of differences, whose intervals are simultaneous over a table's rows.
DIFFERENCE = "difference [95%]"
#: Columns of a difference: three data columns, and one formatted column.
ENDS = ("difference", "low", "high", "show_difference")
_EMPTY_CELLS = ("", "-")
_KEY, _KEYS = "column", "keys"


@dataclass(frozen=True)
class Column:
    """Declaration of a table column, for a field or a method of a row."""

    #: Description of the content, for the documentation.
    about: str = ""
    #: Text above the cells; the name of a field in braces is replaced by the field's value.
    head: str = ""
    #: Format specification of its numbers.
    form: str = ""
    #: Whether the column comes before other columns, and is part of short renderings.
    leading: bool = False
    #: Whether the column is left out if all its cells are empty.
    optional: bool = False
    #: Condition on a row: the column is left out unless some row meets it.
    when: Callable[..., bool] | None = None


def column(
    about: str,
    head: str = "",
    form: str = "",
    *,
    leading: bool = False,
    optional: bool = False,
    when: Callable[..., bool] | None = None,
    default: Thing = _NO_DEFAULT,
) -> Thing:
    """Declare a field as a column of its table; `Column` describes the arguments.

    As with `dataclasses.field`, the return value has the field's type for type checkers.
    """
    declared = Column(about, head, form, leading, optional, when)
    return field(default=default, metadata={_KEY: declared}, kw_only=True)


def cell(
    head: str,
    *,
    leading: bool = False,
    optional: bool = False,
    when: Callable[..., bool] | None = None,
) -> Callable[[Method], Method]:
    """Declare a method as the writer of a formatted column (a decorator).

    The description of the column is the method's docstring without its first word, `Write`.
    """

    def enter(method: Method) -> Method:
        about = " ".join((method.__doc__ or "").split()).removeprefix("Write ").rstrip(".")
        vars(method)[_KEY] = Column(about, head, "", leading, optional, when)
        return method

    return enter


def keys() -> dict[str, Key]:
    """Declare a mapping field whose keys are columns, such as metric names or coordinates."""
    return field(default_factory=dict, metadata={_KEYS: True}, kw_only=True)


@dataclass(frozen=True, slots=True)
class Row:
    """Base class of table rows; the field `label` or `variant`, if any, names a variant."""

    #: Names of fields and cells in the order of the columns; all others follow.
    ORDER: ClassVar[Sequence[str]] = ()


@dataclass(frozen=True)
class DifferenceRow(Row):
    """Row with a difference, its interval and its verdict."""

    difference: float = column(
        "mean difference from the baseline, paired by seed; below 0 is better"
    )
    low: float = column("lower end of its interval, which holds for all rows at once")
    high: float = column("upper end of its interval")
    verdict: str = column("what the interval says", "verdict", leading=True)

    @cell(DIFFERENCE, leading=True)
    def show_difference(self) -> str:
        """Write the difference with its interval."""
        is_known = not math.isnan(self.difference)
        return interval(self.difference, self.low, self.high) if is_known else ""


def columns(kind: type[Row]) -> dict[str, str]:
    """Return the descriptions of a row class's data columns, by column name.

    A field that is a named tuple has one column for each part, named `FIELD_PART`; a part named
    `value` has the name of the field.
    """
    abouts = {
        column_field.name: column_field.metadata[_KEY].about
        for column_field in _in_order(kind)
        if _KEY in column_field.metadata
    }
    types = {field.name: field.type for field in fields(kind)}
    return {
        part: about if part == name else f"{about}: {part.removeprefix(f'{name}_')}"
        for name, about in abouts.items()
        for part in _parts(name, types[name])
    }


def _parts(name: str, kind: object) -> list[str]:
    """Return a field's column names: one for each part of a named tuple."""
    parts: Sequence[str] = getattr(kind, "_fields", ("value",))
    return [name if part == "value" else f"{name}_{part}" for part in parts]


def _in_order(kind: type[Row]) -> "list[Field[Any]]":
    """Return the fields of a row in the order of its columns."""
    by_name = {field.name: field for field in fields(kind)}
    first = [name for name in kind.ORDER if name in by_name]
    return [by_name[name] for name in dict.fromkeys((*first, *by_name))]


def shared(kind: type[Row], other: object) -> dict[str, Any]:
    """Return those attributes of an object whose names are fields of a row class."""
    return {
        field.name: getattr(other, field.name)
        for field in fields(kind)
        if hasattr(other, field.name)
    }


def means(kind: type[Row]) -> list[str]:
    """Return the names of the columns that are filled with means over runs.

    A column of this kind has the default NaN, and the name of the number to average.
    """
    named = [(field.name, field.default) for field in fields(kind) if _KEY in field.metadata]
    return [name for name, value in named if isinstance(value, float) and math.isnan(value)]


def filled(row: Filled, known: Mapping[str, float]) -> Filled:
    """Fill a row's `means` columns from a mapping of values by column name."""
    common: dict[str, Any] = {name: known[name] for name in means(type(row)) if name in known}
    return replace(row, **common)


def frame(rows: Sequence[Row], kind: type[Row] = Row) -> "pd.DataFrame":
    """Return rows as a data frame; without rows, an empty frame for class `kind`.

    Columns follow `ORDER` and are named as in `columns`. A column that is None in all rows is left
    out. Each key of a `keys` field is a column, with an underscore appended if another column has
    its name.
    """
    import pandas as pd  # commands that only count runs do not need it

    by_column: dict[str, list[object]] = {}
    kind = type(rows[0]) if rows else kind
    for column_field in _in_order(kind):
        if column_field.metadata.get(_KEYS):
            each: list[Mapping[str, object]] = [getattr(row, column_field.name) for row in rows]
            unlike = {id(mapping): mapping for mapping in each}.values()  # rows may share a mapping
            for key in dict.fromkeys(key for mapping in unlike for key in mapping):
                name = f"{key}_" if key in columns(kind) else key
                by_column[name] = [mapping.get(key, math.nan) for mapping in each]
        elif _KEY in column_field.metadata:
            values = [getattr(row, column_field.name) for row in rows]
            names = _parts(column_field.name, column_field.type)
            if rows and len(names) > 1:
                by_column |= dict(zip(names, map(list, zip(*values, strict=True)), strict=True))
            elif not rows or any(value is not None for value in values):
                by_column[column_field.name] = values
    with pd.option_context("mode.string_storage", "python"):  # equal texts share an object
        return pd.DataFrame(by_column)


def grouped(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, list[Thing]]:
    """Group items by a key, in order of first appearance."""
    groups: dict[Key, list[Thing]] = {}
    for item in things:
        groups.setdefault(key(item), []).append(item)
    return groups


def mean(values: Iterable[float]) -> float:
    """Compute the mean of the values that are not NaN; NaN without any."""
    array = np.array([*values], float)
    count = np.count_nonzero(~np.isnan(array))
    return float(np.nansum(array) / count) if count else math.nan


def cells(rows: Sequence[Row], kind: type[Row] = Row) -> "pd.DataFrame":
    """Return rows as a data frame of formatted texts, with leading columns first."""
    import pandas as pd

    columns_shown: list[tuple[bool, str, list[str]]] = []
    for name, declared in _list_columns(rows, kind).items():
        texts = [_write(getattr(row, name), declared.form) for row in rows]
        if not declared.optional or any(text not in _EMPTY_CELLS for text in texts):
            columns_shown.append((not declared.leading, _head(declared, rows), texts))
    return pd.DataFrame(
        {head: texts for _, head, texts in sorted(columns_shown, key=lambda s: s[0])}
    )


def leading(rows: Sequence[Row]) -> list[str]:
    """Return the headers of the leading columns."""
    return [_head(declared, rows) for declared in _list_columns(rows).values() if declared.leading]


def explained(rows: Sequence[Row]) -> dict[str, str]:
    """Return the descriptions of the formatted columns, by column header."""
    return {_head(declared, rows): declared.about for declared in _list_columns(rows).values()}


def _list_columns(rows: Sequence[Row], kind: type[Row] = Row) -> dict[str, Column]:
    """Return the formatted columns in order, by the name of their field or method.

    A column is left out if its condition `when` is true for no row.
    """
    kind = type(rows[0]) if rows else kind
    declared = {field.name: field.metadata.get(_KEY) for field in fields(kind)}
    for base in reversed(kind.__mro__):
        declared_by_base = {
            name: getattr(of, "__dict__", {}).get(_KEY) for name, of in vars(base).items()
        }
        declared |= {
            name: declaration for name, declaration in declared_by_base.items() if declaration
        }
    names = dict.fromkeys((*kind.ORDER, *declared))
    return {
        name: declaration
        for name in names
        if (declaration := declared[name])
        and declaration.head
        and (declaration.when is None or any(map(declaration.when, rows)))
    }


def _head(stated: Column, rows: Sequence[Row]) -> str:
    """Return a column's header, with field names in braces replaced by the first row's values."""
    named = [name for _, name, _, _ in Formatter().parse(stated.head) if name]
    return stated.head.format_map({name: getattr(rows[0], name) for name in named})


def _write(value: object, form: str) -> str:
    """Format the value of a field, or the result of a cell's method."""
    if callable(value):
        value = value()
    if value is None:
        return ""
    return number(value, form) if form and isinstance(value, float) else format(value, form)
