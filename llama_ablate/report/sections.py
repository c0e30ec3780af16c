"""Sections of a report, declared in reading order: tables with titles and notes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.config.labels import shorten_labels
from llama_ablate.evidence.sequential import spending
from llama_ablate.evidence.written import interval, plain
from llama_ablate.findings import precision, sizes
from llama_ablate.findings.columns import iterate, list_rows, make_frame
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.controls import check_controls, describe_splits
from llama_ablate.findings.factors import (
    compare_axes,
    describe_confounding,
    describe_steps,
    estimate_factors,
)
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.hypotheses import judge_hypotheses
from llama_ablate.findings.others import compare_others
from llama_ablate.findings.outcomes import describe_stability
from llama_ablate.findings.stages import find_runs
from llama_ablate.findings.table import Table
from llama_ablate.findings.targets import compare_times
from llama_ablate.findings.tuning import describe_tuning
from llama_ablate.findings.warnings import warn_of_text
from llama_ablate.report import columns, measurements
from llama_ablate.report.contents import TableContents, order_rows
from llama_ablate.report.rendering import write_block
from llama_ablate.results import protocol
from llama_ablate.results.plan_document import NATS
from llama_ablate.terminal import listed

#: Faults of a part of the report, which the page states in the part's place.
FAULTS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
#: Columns that are left out for a factorial design, in which factors are tested, not combinations.
_TESTED = (columns.DIFFERENCE, "verdict", "seeds to decide")
_MAX_EFFECTS = 10  # most interactions that commands print
_TRENDS = ("transfer", "sizes")  # sections over model sizes
#: Titles of the comparison by the kind of the experimental design.
_COMPARISONS = {"factors": "Combinations", "path": "All steps so far", "plain": "Comparison"}


@dataclass(frozen=True)
class Section:
    """Section of a report: a table of formatted cells with title and note."""

    title: str
    cells: pd.DataFrame
    note: str
    #: All numbers behind the cells, for machines.
    frame: pd.DataFrame
    key: str
    #: Name of the comparison table; "" if the section covers all tables, or the only one.
    table: str = ""
    #: Whether the commands `run` and `report` print the section.
    printed: bool = True
    #: Number of leading columns, from the left; 0 for all. Columns are in order of importance:
    #: a narrow terminal, and the page, show as many as fit.
    short: int = 0
    #: Summary in one line; if it is empty, the page counts verdicts or rows.
    answer: str = ""
    #: Descriptions of columns by their titles.
    about: Mapping[str, str] = field(default_factory=dict)
    #: Error that kept the section from being made; else "".
    error: str = ""

    @property
    def rows(self) -> pd.DataFrame:
        """Rows of the frame behind each row of cells; empty if these are not the frame's rows."""
        return self.frame if len(self.frame) == len(self.cells) else self.frame.iloc[:0]


@dataclass(frozen=True)
class SectionKind:
    """Declaration of a kind of section; its note is a block of `notes.txt`."""

    title: str
    frame: Callable[[Frames], pd.DataFrame]
    #: Function that formats the cells; by default each row is formatted as `columns.yaml` declares.
    cells: Callable[[Frames, pd.DataFrame], pd.DataFrame] | None = None
    #: Section of `columns.yaml` with the columns, unless it is the section's key.
    columns: str = ""
    every_table: bool = True
    is_printed: Callable[[pd.DataFrame], bool] = lambda _: True
    answer: Callable[[pd.DataFrame], str] = lambda _: ""

    def make(self, frames: Frames, key: str) -> Section | None:
        """Make the section from a report's data; return None if there are no rows."""
        frame = self.frame(frames)
        if frame.empty:
            return None
        of = self.columns or key
        about = columns.describe(frame, of)
        cells = self.cells(frames, frame) if self.cells else columns.cells(frame, of)
        if "variant" in cells:
            names = [v.label for table in frames.plan.tables for v in table.variants]
            short = shorten_labels(dict.fromkeys(names))
            cells["variant"] = [short.get(name, name) for name in cells["variant"]]
        return Section(
            _COMPARISONS[_find_design(frames)] if key == "comparison" else self.title,
            cells,
            write_block("notes.txt", key, _describe(frames, frame)),
            frame.rename(columns=columns.RENAMED if "label" in frame else {}),
            key,
            printed=self.is_printed(frame),
            short=sum(title in about and about[title].first for title in cells),
            answer=self.answer(frame),
            about={title: column.about for title, column in about.items()},
        )


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
            fault, nothing = f"{type(error).__name__}: {error}", pd.DataFrame()
            part = Section(key, nothing, "", nothing, key, error=fault, printed=False)
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


def _describe(frames: Frames, frame: pd.DataFrame) -> dict[str, Any]:
    """Return the values of the templates of notes; functions compute what few notes have."""
    table, experiment = frames.table, frames.plan.experiment
    shares = experiment.spend or spending(experiment.looks)
    return {
        "rows": list_rows(frame),
        "split": table.split_name,
        "unit": table.unit.full,
        "design": _find_design(frames),
        "margin": experiment.margin,
        "race": experiment.race,
        "has_tokenizers": table.plan.has_tokenizers,
        "shares": dict(zip(experiment.looks, shares, strict=True)),
        "text_notes": lambda: " ".join(warn_of_text(table.plan, experiment)),
        "expected": lambda: _write_expected(frames),
        "confounding": lambda: describe_confounding(table),
        "stated": lambda: _date_hypotheses(frames),
        "missing": lambda: measurements.list_missing(frames),
    }


def _write_expected(frames: Frames) -> str:
    """Describe the expected and the actual half widths of intervals, or return ""."""
    table, margin = frames.table, frames.table.margin
    rows = compare_variants(table)
    halves = (rows["high"] - rows["difference"])[rows["high"] > rows["low"]]
    if margin is None or table.unit != NATS or not np.isfinite(halves.min()):
        return ""
    expected = precision.expect(frames.plan, None, margin)
    low, high = (plain(expected[name], 2) for name in ("half_low", "half_high"))
    return (
        f"Expected half width before the first run: {low} to {high} nats; half widths of the "
        f"rows: {plain(halves.min(), 2)} to {plain(halves.max(), 2)}."
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


# ---- frames and cells that depend on the experiment


def _find_design(frames: Frames) -> str:
    """Return the kind of experimental design: `factors`, `path`, or `plain`."""
    if len(estimate_factors(frames.table)):
        return "factors"
    return "path" if frames.plan.experiment.variants.design == "path" else "plain"


def _add_half(frame: pd.DataFrame, name: str, table: Table) -> pd.DataFrame:
    """Compare each row's verdict with the verdict at half the training length.

    The column `half` stays empty if the runs have no branches at half the length (copies of a run
    whose learning rate decays early).
    """
    half = sizes.compare_half(sizes.compare_lengths(table))
    return frame.assign(half=[half.get(row, "") for row in frame[name]])


def _find_factors(frames: Frames, *, of_two: bool) -> pd.DataFrame:
    frame = estimate_factors(frames.table)
    frame = frame[frame["changed"].ne("").eq(of_two)]
    return _add_half(frame, "effect", frames.table)


def _find_axes(frames: Frames) -> pd.DataFrame:
    """Return the rows of axes, if any has more than two levels: else factors tell the same."""
    frame = compare_axes(frames.table)
    return frame if frame["levels"].gt(2).any() else frame.iloc[:0]


def _find_comparison(frames: Frames) -> pd.DataFrame:
    table = frames.table
    return _add_half(order_rows(table, compare_variants(table)), "label", table)


def _show_comparison(frames: Frames, frame: pd.DataFrame) -> pd.DataFrame:
    cells, design = columns.cells(frame, "comparison"), _find_design(frames)
    if design == "factors":
        return cells.drop(columns=[*_TESTED], errors="ignore")
    if design == "path":
        is_step = ~frame["baseline"] & frame["role"].eq("")
        cells["variant"] = frame["label"].mask(is_step, "up to " + frame["label"]).to_numpy()
    return cells


def _spread(frame: pd.DataFrame, texts: Sequence[str], name: str, by: str) -> pd.DataFrame:
    """Return texts with a row for each value of `name`, and a column for each value of `by`."""
    wide = frame.assign(text=texts).pivot_table("text", name, by, aggfunc="first").fillna("")
    return wide.reindex(frame[name].unique())[frame[by].unique()].rename_axis(None, axis=1)


def _write_differences(frame: pd.DataFrame) -> list[str]:
    """Return each row's difference with its interval and verdict; "" without a difference."""
    return [
        ""
        if np.isnan(row.difference)
        else f"{interval(row.difference, row.low, row.high)} {row.verdict}"
        for row in iterate(frame)
    ]


def _show_lengths(_frames: Frames, frame: pd.DataFrame) -> pd.DataFrame:
    """Format differences with a column per training length, and verdicts at half the length."""
    cells = _spread(frame, _write_differences(frame), "name", "tokens")
    cells.columns = [f"{plain(tokens / 1e6, 3)}M tokens" for tokens in frame["tokens"].unique()]
    names = cells.index
    if half := sizes.compare_half(frame):
        cells["at half the length"] = [half.get(name, "") for name in names]
    if contrary := sizes.find_contrary(frame):
        cells["with length"] = ["reverses" if name in contrary else "" for name in names]
    return cells.rename_axis("row").reset_index()


def _answer_lengths(frame: pd.DataFrame) -> str:
    return f"Reversed with length: {listed([*sizes.find_contrary(frame)]) or 'none'}."


def _find_times(frames: Frames) -> pd.DataFrame:
    """Compare the times to the target loss; empty unless the experiment states a target."""
    contents, target = TableContents(frames, frames.table), frames.plan.experiment.target
    if target is None:
        return make_frame([], "target")
    curves = contents.curves.rename(columns={"validation": "loss"}).dropna(subset="loss")
    return compare_times(curves, [*contents.ranked["variant"]], target, ["step", "train_s"])


def _find_splits(frames: Frames) -> pd.DataFrame:
    by_text: dict[Any, list[Table]] = {}
    for table in frames.tables:
        by_text.setdefault(table.plan.evaluated_on, []).append(table)
    names = (tables[0].plan.name * (len(by_text) > 1) for tables in by_text.values())
    return pd.concat(map(describe_splits, by_text.values(), names), ignore_index=True)


def _answer_stability(frame: pd.DataFrame) -> str:
    none = f"None of {frame['runs'].sum()} runs diverged or collapsed."
    return "" if _has_lost(frame) else none


def _has_lost(frame: pd.DataFrame) -> bool:
    return bool((frame["diverged"] + frame["collapsed"]).any())


def _show_sizes(_frames: Frames, frame: pd.DataFrame) -> pd.DataFrame:
    """Format differences with a column per model size, followed by the trend."""
    cells = _spread(frame, _write_differences(frame), "label", "rung")
    trends = frame.drop_duplicates("label")
    if trends["trend"].ne("").any():
        cells["gap"] = [*trends["trend"]]
        cells["per tenfold size"] = [
            "" if np.isnan(row.slope) else interval(row.slope, row.slope_low, row.slope_high)
            for row in iterate(trends)
        ]
    return cells.rename_axis("variant").reset_index()


def _show_rates(_frames: Frames, frame: pd.DataFrame) -> pd.DataFrame:
    """Format the best learning rates with a column per model size.

    In brackets is the shift from the first size in grid points; * marks the end of the grid.
    """
    texts = [f"{row.lr:g}{'*' * row.edge} ({row.moved:+d})" for row in iterate(frame)]
    return _spread(frame, texts, "label", "rung").rename_axis("variant").reset_index()


#: Declarations of all sections by key, in reading order.
SECTIONS: dict[str, SectionKind] = {
    "steps": SectionKind("Steps", lambda frames: describe_steps(frames.table)),
    "axes": SectionKind("Which axis matters", _find_axes),
    "factors": SectionKind("Factors", lambda frames: _find_factors(frames, of_two=False)),
    "interactions": SectionKind(
        "Interactions",
        lambda frames: _find_factors(frames, of_two=True),
        columns="factors",
        is_printed=lambda frame: len(frame) <= _MAX_EFFECTS,
    ),
    "comparison": SectionKind("Comparison", _find_comparison, _show_comparison),
    "lengths": SectionKind(
        "By length of training",
        lambda frames: sizes.compare_lengths(frames.table),
        _show_lengths,
        answer=_answer_lengths,
    ),
    "target": SectionKind("To the target loss", _find_times),
    "other_metrics": SectionKind("Other metrics", lambda frames: compare_others(frames.table)),
    "hypotheses": SectionKind("Hypotheses", judge_hypotheses, every_table=False),
    "controls": SectionKind("Controls", lambda frames: check_controls(frames.table)),
    "heldout": SectionKind(
        "Held-out text", _find_splits, every_table=False, is_printed=lambda _: False
    ),
    "tuning": SectionKind(
        "Tuning", lambda frames: describe_tuning(frames.table, find_runs(frames.table))
    ),
    "stability": SectionKind(
        "Stability",
        lambda frames: describe_stability(find_runs(frames.table)),
        is_printed=_has_lost,
        answer=_answer_stability,
    ),
    "sizes": SectionKind("By size", sizes.compare_sizes, _show_sizes, every_table=False),
    "transfer": SectionKind(
        "Best learning rate by size", sizes.find_optima, _show_rates, every_table=False
    ),
    "metrics": SectionKind(
        "Metrics",
        measurements.find_measured,
        lambda frames, _frame: measurements.average(frames),
        every_table=False,
        is_printed=lambda _: False,
    ),
}
