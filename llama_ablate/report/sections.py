"""Sections of a report, declared in reading order: tables with titles and notes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Generic, TypeVar

import pandas as pd

from llama_ablate.config.labels import shorten_labels
from llama_ablate.evidence.sequential import spending
from llama_ablate.evidence.written import interval, plain
from llama_ablate.findings import (
    controls,
    effects,
    heldout,
    hypotheses,
    outcomes,
    precision,
    tuning,
)
from llama_ablate.findings import sizes as by_sizes
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.effects import FactorRow
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import DIFFERENCE, Row, cells, explained, frame, grouped, leading
from llama_ablate.findings.sizes import LengthRow, RateRow, SizeRow
from llama_ablate.findings.warnings import warn_of_text
from llama_ablate.report import measurements
from llama_ablate.report.columns import RENAMED
from llama_ablate.report.contents import order_rows
from llama_ablate.report.rendering import write_block
from llama_ablate.results import protocol
from llama_ablate.results.plan_document import NATS
from llama_ablate.terminal import listed

#: Faults of a part of the report, which the page states in the part's place.
FAULTS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
#: Columns that are left out for a factorial design, in which factors are tested, not combinations.
_TESTED = (DIFFERENCE, "verdict", "p, corrected", "seeds to decide")
#: Combinations of a factorial design, and interactions, beyond which a section is folded.
_MAX_CELLS, _MAX_EFFECTS = 20, 10
_TRENDS = ("transfer", "sizes")  # sections over model sizes
Halved = TypeVar("Halved", ComparisonRow, FactorRow)


@dataclass(frozen=True)
class Section:
    """Section of a report: a table of formatted cells with title and note."""

    title: str
    cells: pd.DataFrame
    note: str
    #: All numbers behind the cells, for machines.
    frame: pd.DataFrame
    #: For each row its variant, and whether that is the baseline; empty if rows have no variants.
    variants: Sequence[str] = ()
    baseline: Sequence[bool] = ()
    key: str = ""
    #: Name of the comparison table; "" if the section covers all tables, or the only one.
    table: str = ""
    #: Whether the commands `run` and `report` print the section.
    printed: bool = True
    #: Whether the section is folded on the page.
    folded: bool = False
    #: Number of leading columns, from the left; 0 for all. Columns are in order of importance:
    #: a narrow terminal, and the page, show as many as fit.
    short: int = 0
    #: Summary in one line; if it is empty, the page counts verdicts or rows.
    answer: str = ""
    #: Descriptions of columns by their titles.
    about: Mapping[str, str] = field(default_factory=dict)
    #: Error that kept the section from being made; else "".
    error: str = ""


Kind = TypeVar("Kind", bound=Row)
#: Text or flag of a section: a constant, or a function of the data and the section's rows.
Text = str | Callable[[Frames, Sequence[Kind]], str]
Flag = bool | Callable[[Frames, Sequence[Kind]], bool]


@dataclass(frozen=True)
class SectionKind(Generic[Kind]):
    """Declaration of a kind of section; its note is a block of `notes.txt`."""

    title: Text[Kind]
    rows: Callable[[Frames], Sequence[Kind]]
    #: Function that formats the cells; by default each row is formatted by its own fields.
    cells: Callable[[Frames, Sequence[Kind]], pd.DataFrame] = lambda _, rows: cells(rows)
    every_table: bool = True
    printed: Flag[Kind] = True
    folded: Flag[Kind] = False
    answer: Text[Kind] = ""

    def make(self, frames: Frames, key: str) -> Section | None:
        """Make the section from a report's data; return None if there are no rows."""
        rows = self.rows(frames)
        if not rows:
            return None
        title, answer = (
            part if isinstance(part, str) else part(frames, rows)
            for part in (self.title, self.answer)
        )
        printed, folded = (
            flag if isinstance(flag, bool) else flag(frames, rows)
            for flag in (self.printed, self.folded)
        )
        table_cells, first = self.cells(frames, rows), leading(rows)
        aligned = rows if len(table_cells) == len(rows) else ()
        if "variant" in table_cells:
            names = [v.label for table in frames.plan.tables for v in table.variants]
            short = shorten_labels(dict.fromkeys(names))
            table_cells["variant"] = [short.get(name, name) for name in table_cells["variant"]]
        return Section(
            title,
            table_cells,
            write_block("notes.txt", key, _describe(frames, rows)),
            frame(rows).rename(columns=RENAMED),
            variants=[_name_row(row) for row in aligned],
            baseline=[bool(getattr(row, "baseline", False)) for row in aligned],
            key=key,
            printed=printed,
            folded=folded,
            short=sum(head in first for head in table_cells),
            answer=answer,
            about=explained(rows),
        )


def _name_row(row: Row) -> str:
    """Return the name of a row: its variant, effect or path step, or ""."""
    names = (getattr(row, name, "") for name in ("variant", "label", "effect", "step"))
    return next((str(name) for name in names if name), "")


def sections(frames: Frames, *, strict: bool = True) -> list[Section]:
    """Return every section that has rows; repeated notes are kept only once.

    Unless `strict`, a section that cannot be made is replaced by its error.
    """
    noted: set[str] = set()
    every = []
    for key, table, only in _arrange(frames):
        try:
            part = SECTIONS[key].make(only, key)
        except FAULTS as error:
            if strict:
                raise
            fault = f"{type(error).__name__}: {error}"
            part = Section(
                key,
                pd.DataFrame(),
                "",
                pd.DataFrame(),
                key=key,
                error=fault,
                printed=False,
                folded=True,
            )
        if part:
            title = f"{part.title}: {table}" if table else part.title
            note = "" if part.note in noted else part.note
            noted.add(part.note)
            every.append(replace(part, title=title, table=table, note=note))
    return every


def _arrange(frames: Frames) -> Iterator[tuple[str, str, Frames]]:
    """Yield key, table name and frames of each section to be made, in reading order.

    Consecutive sections of single tables are ordered by table. With several model sizes the trends
    come first.
    """
    keys = list(dict.fromkeys((*(_TRENDS if len(frames.rungs) > 1 else ()), *SECTIONS)))
    for every_table, group in groupby(keys, lambda key: SECTIONS[key].every_table):
        names = list(group)
        for only in map(frames.only, frames.tables) if every_table else [frames]:
            for key in names:
                yield key, only.table.plan.name if every_table else "", only


# ---- notes


def _describe(frames: Frames, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the values of the templates of notes; functions compute what few notes have."""
    table, experiment = frames.table, frames.plan.experiment
    shares = experiment.spend or spending(experiment.looks)
    return {
        "rows": rows,
        "split": table.split_name,
        "unit": table.unit.full,
        "design": _design(frames),
        "margin": experiment.margin,
        "race": experiment.race,
        "has_tokenizers": table.plan.has_tokenizers,
        "shares": dict(zip(experiment.looks, shares, strict=True)),
        "text_notes": lambda: " ".join(warn_of_text(table.plan, experiment)),
        "expected": lambda: _write_expected(frames),
        "confounding": lambda: effects.confounding(table),
        "stated": lambda: _date_hypotheses(frames),
        "missing": lambda: measurements.list_missing(frames),
    }


def _write_expected(frames: Frames) -> str:
    """Describe the expected and the actual half widths of intervals, or return ""."""
    table, margin = frames.table, frames.table.margin
    halves = [row.high - row.difference for row in table.comparison if row.high > row.low]
    if margin is None or table.unit != NATS or not halves or min(halves) == math.inf:
        return ""
    expected = precision.expect(frames.plan, None, margin)
    low, high = (plain(expected[name], 2) for name in ("half_low", "half_high"))
    return (
        f"Expected half width before the first run: {low} to {high} nats; half widths of the "
        f"rows: {plain(min(halves), 2)} to {plain(max(halves), 2)}."
    )


def _date_hypotheses(frames: Frames) -> str:
    """Describe when the hypotheses were stated relative to the runs, as far as known."""
    versions, experiment = frames.protocol, frames.plan.experiment
    if not versions or versions[0].after_runs:
        return "It is not known whether they were stated before the runs."
    for change in protocol.changes(versions, experiment):
        if any(protocol.HYPOTHESIS in line for line in change.lines):
            return f"Changed {change.when}: see the warnings."
    return "Stated in the file before the first run had finished."


# ---- rows and cells that depend on the experiment


def _with_half(rows: Sequence[Halved], table: TableFrames) -> Sequence[Halved]:
    """Compare each row's verdict with the verdict at half the training length.

    Returns the rows with this comparison added. Rows are unchanged if the runs have no branches at
    half the length (copies of a run whose learning rate decays early).
    """
    half = by_sizes.at_half(by_sizes.by_length(table))
    if not half:
        return rows
    return [replace(row, half=half.get(by_sizes.name_of(row), "")) for row in rows]


def _factors(frames: Frames, *, of_two: bool) -> Sequence[FactorRow]:
    rows = [row for row in effects.factors(frames.table) if bool(row.changed) == of_two]
    return _with_half(rows, frames.table)


def _axes(frames: Frames) -> Sequence[Row]:
    """Return the rows of axes, if any has more than two levels: else factors tell the same."""
    rows = effects.axes(frames.table)
    return rows if any(row.levels > 2 for row in rows) else ()


def _design(frames: Frames) -> str:
    """Return the kind of experimental design: `factors`, `path`, or `plain`."""
    if effects.factors(frames.table):
        return "factors"
    return "path" if frames.plan.experiment.variants.design == "path" else "plain"


def _title_comparison(frames: Frames, _rows: Sequence[Row]) -> str:
    titles = {"factors": "Combinations", "path": "All steps so far", "plain": "Comparison"}
    return titles[_design(frames)]


def _show_comparison(frames: Frames, rows: Sequence[ComparisonRow]) -> pd.DataFrame:
    table_cells, design = cells(rows), _design(frames)
    if design == "factors":
        return table_cells.drop(columns=[*_TESTED], errors="ignore")
    if design == "path":
        table_cells["variant"] = [
            row.label if row.baseline or row.role else f"up to {row.label}" for row in rows
        ]
    return table_cells


def _show_lengths(_frames: Frames, rows: Sequence[LengthRow]) -> pd.DataFrame:
    """Format differences with a column per training length, and verdicts at half the length."""
    order = list(dict.fromkeys(row.name for row in rows))
    columns = {"row": order}
    for tokens in sorted({row.tokens for row in rows}):
        by_length = {
            row.name: f"{interval(row.difference, row.low, row.high)} {row.verdict}"
            for row in rows
            if row.tokens == tokens and not math.isnan(row.difference)
        }
        columns[f"{plain(tokens / 1e6, 3)}M tokens"] = [by_length.get(name, "") for name in order]
    if half := by_sizes.at_half(rows):
        columns["at half the length"] = [half.get(name, "") for name in order]
    if contrary := by_sizes.contrary(rows):
        columns["with length"] = ["reverses" if name in contrary else "" for name in order]
    return pd.DataFrame(columns)


def _answer_lengths(_frames: Frames, rows: Sequence[LengthRow]) -> str:
    return f"Reversed with length: {listed([*by_sizes.contrary(rows)]) or 'none'}."


def _splits(frames: Frames) -> Sequence[Row]:
    by_text = grouped(frames.tables, lambda table: table.plan.evaluated_on)
    return [
        row
        for tables in by_text.values()
        for row in heldout.splits(tables, tables[0].plan.name if len(by_text) > 1 else "")
    ]


def _trials(frames: Frames) -> Sequence[Row]:
    table = frames.table
    return tuning.trials(table.runs, table.plan.repeated, table.loss)


def _count_lost(rows: Sequence[outcomes.StabilityRow]) -> int:
    return round(sum(row.diverged.value + row.collapsed.value for row in rows))


def _answer_stability(_frames: Frames, rows: Sequence[outcomes.StabilityRow]) -> str:
    none = f"None of {sum(row.runs for row in rows)} runs diverged or collapsed."
    return "" if _count_lost(rows) else none


def _show_sizes(_frames: Frames, rows: Sequence[SizeRow]) -> pd.DataFrame:
    """Format differences with a column per model size, followed by the trend."""
    by_label = grouped(rows, lambda row: row.label)
    columns: dict[str, list[str]] = {"variant": [*by_label]}
    for rung in dict.fromkeys(row.rung for row in rows):
        values = {
            row.label: f"{interval(row.difference, row.low, row.high)} {row.verdict}"
            for row in rows
            if row.rung == rung
        }
        columns[rung] = [values.get(label, "") for label in by_label]
    if any(row.trend for row in rows):
        columns["gap"] = [rows[0].trend for rows in by_label.values()]
        columns["per tenfold size"] = [str(rows[0].slope) for rows in by_label.values()]
    return pd.DataFrame(columns)


def _show_rates(_frames: Frames, rows: Sequence[RateRow]) -> pd.DataFrame:
    """Format the best learning rates with a column per model size.

    In brackets is the shift from the first size in grid points; * marks the end of the grid.
    """
    by_label: dict[str, dict[str, str]] = {}
    for row in rows:
        columns = by_label.setdefault(row.label, {"variant": row.label})
        columns[row.rung] = f"{row.lr:g}{'*' if row.edge else ''} ({row.moved:+d})"
    return pd.DataFrame(by_label.values())


#: Declarations of all sections by key, in reading order.
SECTIONS: dict[str, SectionKind[Any]] = {
    "steps": SectionKind("Steps", lambda frames: effects.steps(frames.table)),
    "axes": SectionKind("Which axis matters", _axes),
    "factors": SectionKind("Factors", lambda frames: _factors(frames, of_two=False)),
    "interactions": SectionKind(
        "Interactions",
        lambda frames: _factors(frames, of_two=True),
        printed=lambda _, rows: len(rows) <= _MAX_EFFECTS,
        folded=lambda _, rows: len(rows) > _MAX_EFFECTS,
    ),
    "comparison": SectionKind(
        _title_comparison,
        lambda frames: _with_half(order_rows(frames.table), frames.table),
        _show_comparison,
        folded=lambda frames, rows: _design(frames) == "factors" and len(rows) > _MAX_CELLS,
    ),
    "lengths": SectionKind(
        "By length of training",
        lambda frames: by_sizes.by_length(frames.table),
        _show_lengths,
        answer=_answer_lengths,
    ),
    "other_metrics": SectionKind("Other metrics", lambda frames: frames.table.secondary),
    "hypotheses": SectionKind(
        "Hypotheses",
        lambda frames: [*hypotheses.results(frames), *hypotheses.unjudged(frames)],
        every_table=False,
    ),
    "controls": SectionKind("Controls", lambda frames: controls.check_controls(frames.table)),
    "heldout": SectionKind("Held-out text", _splits, every_table=False, printed=False),
    "tuning": SectionKind("Tuning", _trials),
    "stability": SectionKind(
        "Stability",
        lambda frames: outcomes.stability(frames.table.runs),
        printed=lambda _, rows: _count_lost(rows) > 0,
        answer=_answer_stability,
    ),
    "sizes": SectionKind("By size", by_sizes.by_size, _show_sizes, every_table=False),
    "transfer": SectionKind(
        "Best learning rate by size", by_sizes.optima, _show_rates, every_table=False
    ),
    "metrics": SectionKind(
        "Metrics",
        measurements.find_measured,
        lambda frames, _rows: measurements.average(frames),
        every_table=False,
        printed=False,
        folded=True,
    ),
}
