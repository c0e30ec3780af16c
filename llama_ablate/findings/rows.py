"""Rows of tables: frozen dataclasses, whose fields and cells say how every rendering shows them.

A field made by `column` is a column of the table as data: of its data frame, its CSV and
`docs/python.md`. With a `head` it is a column of the table as people read it too, on the page, in
Markdown, LaTeX and terminals; `cell` makes one of a method, for what is written of several fields.
Columns stand in the order of the class, those that lead before the others.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from string import Formatter
from typing import Any, TypeVar

import pandas as pd

from llama_ablate.evidence.written import number

Method = TypeVar("Method", bound=Callable[..., str])
#: What is written of a difference: its intervals hold for all rows of a table at once.
DIFFERENCE = "difference [95%]"
_NOTHING = ("", "-")  # cells that show nothing
_KEY = "column"
_places = itertools.count()


@dataclass(frozen=True)
class Column:
    """How a field, or a method, of a row is shown."""

    #: What it holds, for the documentation.
    about: str = ""
    #: What stands above its cells, in which the name of a field in braces stands for its value.
    head: str = ""
    #: How its numbers are formatted.
    form: str = ""
    #: Whether it stands before those that do not lead, and in short renderings.
    leading: bool = False
    #: Whether it is left out where no row has anything to show.
    optional: bool = False
    #: It is left out unless this holds of a row.
    when: Callable[..., bool] | None = None
    #: Where it stands among the others: in the order of declaration.
    place: int = field(default_factory=_places.__next__)


def column(
    about: str,
    head: str = "",
    form: str = "",
    *,
    leading: bool = False,
    optional: bool = False,
    when: Callable[..., bool] | None = None,
    default: object = MISSING,
) -> Any:
    """Declare a field as a column of its table: see `Column`.

    As with `dataclasses.field`, what is returned stands for a value of the field's type.
    """
    stated = Column(about, head, form, leading, optional, when)
    return field(default=default, metadata={_KEY: stated}, kw_only=True)


def cell(
    head: str,
    *,
    leading: bool = False,
    optional: bool = False,
    when: Callable[..., bool] | None = None,
) -> Callable[[Method], Method]:
    """Declare that a method writes a column of the table that people read (a decorator)."""
    stated = Column(head=head, leading=leading, optional=optional, when=when)

    def enter(method: Method) -> Method:
        vars(method)[_KEY] = stated
        return method

    return enter


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    @property
    def variant(self) -> str:
        """The label of the variant that the row is about; empty where it is about no single one."""
        return str(getattr(self, "label", ""))

    @property
    def is_baseline(self) -> bool:
        """Whether that is the baseline."""
        return bool(getattr(self, "baseline", False))


def columns(kind: type[Row]) -> dict[str, str]:
    """Return what the columns of a table as data hold, by their names."""
    return {one.name: one.metadata[_KEY].about for one in fields(kind) if _KEY in one.metadata}


def frame(rows: Sequence[Row], kind: type[Row] = Row) -> pd.DataFrame:
    """Return rows as a data frame; of none, an empty one with the columns of a `kind` of row.

    A column that is None in all rows is left out. A named tuple has a column for each of its
    fields: the first one's is called as the tuple.
    """
    known: dict[str, list[object]] = {}
    for name in columns(_kind(rows, kind)):
        values = [getattr(row, name) for row in rows]
        if rows and isinstance(values[0], tuple):
            _, *ends = getattr(values[0], "_fields")  # noqa: B009 - of a named tuple
            parts = [name, *(f"{name}_{end}" for end in ends)]
            known |= dict(zip(parts, map(list, zip(*values, strict=True)), strict=True))
        elif not rows or any(value is not None for value in values):
            known[name] = values
    return pd.DataFrame(known)


def cells(rows: Sequence[Row], kind: type[Row] = Row) -> pd.DataFrame:
    """Return rows with their numbers written as people read them, the leading columns first."""
    shown: list[tuple[bool, str, list[str]]] = []
    for name, stated in _shown(_kind(rows, kind)).items():
        if stated.when and not any(map(stated.when, rows)):
            continue
        written = [_written(getattr(row, name), stated.form) for row in rows]
        if not stated.optional or any(text not in _NOTHING for text in written):
            shown.append((not stated.leading, _head(stated, rows), written))
    return pd.DataFrame({head: written for _, head, written in sorted(shown, key=lambda s: s[0])})


def leading(rows: Sequence[Row]) -> list[str]:
    """Return the heads of the columns that lead the others."""
    return [_head(one, rows) for one in _shown(_kind(rows, Row)).values() if one.leading]


def _kind(rows: Sequence[Row], kind: type[Row]) -> type[Row]:
    return type(rows[0]) if rows else kind


def _shown(kind: type[Row]) -> dict[str, Column]:
    """Return the columns that people read by the field or method that writes each, in order."""
    stated = {one.name: one.metadata.get(_KEY) for one in fields(kind)}
    stated |= {name: vars(of).get(_KEY) for name, of in vars(kind).items() if callable(of)}
    found = {name: one for name, one in stated.items() if one and one.head}
    return dict(sorted(found.items(), key=lambda entry: entry[1].place))


def _head(stated: Column, rows: Sequence[Row]) -> str:
    """Return a head with what the first row has of the fields that it names."""
    named = [name for _, name, _, _ in Formatter().parse(stated.head) if name]
    return stated.head.format_map({name: getattr(rows[0], name) for name in named})


def _written(value: object, form: str) -> str:
    """Write a field, or what a method returns."""
    if callable(value):
        value = value()
    if value is None:
        return ""
    return number(value, form) if form and isinstance(value, float) else format(value, form)
