"""A section of a report: a table with what a reader must know to read it.

The page, Markdown, LaTeX, CSV and the terminal all show these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pandas as pd

from llama_ablate.findings import sizes
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.effects import FactorRow
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import Row, explained, frame, leading
from llama_ablate.findings.rows import cells as written
from llama_ablate.report.columns import OWN
from llama_ablate.report.parts import Parts


@dataclass(frozen=True)
class Section:
    """A table with its title, and what a reader must know to read it."""

    title: str
    cells: pd.DataFrame
    note: str
    #: All numbers behind the cells, for machines.
    frame: pd.DataFrame
    #: Of each row its variant, and whether that is the baseline; empty where rows are about none.
    variants: Sequence[str] = ()
    baseline: Sequence[bool] = ()
    key: str = ""
    #: Of which of the experiment's tables; empty where it is about all of them, or the only one.
    table: str = ""
    #: Whether `run` and `report` print it.
    printed: bool = True
    #: Whether it is folded away on the page.
    folded: bool = False
    #: How many columns, from the left, the page shows before a reader chooses more; 0: all. Columns
    #: stand in order of importance: a narrow terminal prints as many as it has room for.
    short: int = 0
    #: What it shows, in a line; where it is empty, its verdicts or its rows are counted.
    answer: str = ""
    #: What columns hold, by their heads.
    about: Mapping[str, str] = field(default_factory=dict)


SECTIONS = Parts[Section]("section")
Halved = TypeVar("Halved", ComparisonRow, FactorRow)


def sections(frames: Frames) -> list[Section]:
    """Return every section that has something to show; a note stands where it is first needed."""
    noted: set[str] = set()
    every = []
    for made in SECTIONS.make(frames):
        part = made.part
        title = f"{part.title}: {made.table}" if made.table else part.title
        note = "" if part.note in noted else part.note
        noted.add(part.note)
        every.append(replace(part, title=title, key=made.name, table=made.table, note=note))
    return every


def section(
    title: str,
    rows: Sequence[Row],
    note: str,
    *,
    cells: pd.DataFrame | None = None,
    printed: bool = True,
    folded: bool = False,
    answer: str = "",
) -> Section | None:
    """Return a section, or None of no rows; its `cells` are those of the rows unless given.

    Its short form has the leading columns; without any it has all columns.
    """
    if not rows:
        return None
    shown, first = written(rows) if cells is None else cells, leading(rows)
    aligned = rows if len(shown) == len(rows) else ()
    return Section(
        title,
        shown,
        " ".join(note.split()),
        frame(rows).rename(columns=OWN),
        variants=[str(getattr(row, "variant", getattr(row, "label", ""))) for row in aligned],
        baseline=[bool(getattr(row, "baseline", False)) for row in aligned],
        printed=printed,
        folded=folded,
        short=sum(head in first for head in shown),
        answer=answer,
        about=explained(rows),
    )


def with_half(rows: Sequence[Halved], table: TableFrames) -> Sequence[Halved]:
    """Return rows with how their verdicts at half the length compare, where runs branch there."""
    half = sizes.at_half(sizes.by_length(table))
    if not half:
        return rows
    return [replace(row, half=half.get(sizes.name_of(row), "")) for row in rows]
