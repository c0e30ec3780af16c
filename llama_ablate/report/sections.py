"""Sections of a report, declared in reading order: tables with titles and notes."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from llama_ablate.findings.diagnostics import diagnostics
from llama_ablate.findings.effects import FactorRow
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import DIFFERENCE, Row, cells, explained, frame, grouped, leading
from llama_ablate.findings.sizes import LengthRow, RateRow, SizeRow
from llama_ablate.findings.winners import find_winners
from llama_ablate.report import measurements
from llama_ablate.report.columns import RENAMED
from llama_ablate.report.parts import arrange
from llama_ablate.report.picture import FIGURES
from llama_ablate.report.pictures import MAX_EFFECTS, has_ranges, order_rows
from llama_ablate.report.warnings import warn_of_text
from llama_ablate.results import protocol
from llama_ablate.results.plan_document import NATS
from llama_ablate.terminal import listed, plural

__all__ = ["FIGURES", "SECTIONS", "Section", "SectionKind", "sections"]

#: Columns that are left out for a factorial design, in which factors are tested, not combinations.
_TESTED = (DIFFERENCE, "verdict", "p, corrected", "seeds to decide")
_MANY_CELLS = 20  # combinations of a factorial design beyond which their section is folded
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


Kind = TypeVar("Kind", bound=Row)
#: Text or flag of a section: a constant, or a function of the data and the section's rows.
Text = str | Callable[[Frames, Sequence[Kind]], str]
Flag = bool | Callable[[Frames, Sequence[Kind]], bool]


@dataclass(frozen=True)
class SectionKind(Generic[Kind]):
    """Declaration of a kind of section: functions for its title, rows, note and cells."""

    title: Text[Kind]
    rows: Callable[[Frames], Sequence[Kind]]
    note: Text[Kind]
    #: Function that formats the cells; by default each row is formatted by its own fields.
    cells: Callable[[Frames, Sequence[Kind]], pd.DataFrame] = lambda _, rows: cells(rows)
    every_table: bool = False
    printed: Flag[Kind] = True
    folded: Flag[Kind] = False
    answer: Text[Kind] = ""

    def make(self, frames: Frames) -> Section | None:
        """Make the section from a report's data; return None if there are no rows."""
        rows = self.rows(frames)
        if not rows:
            return None
        title, note, answer = (
            part if isinstance(part, str) else part(frames, rows)
            for part in (self.title, self.note, self.answer)
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
            " ".join(note.split()),
            frame(rows).rename(columns=RENAMED),
            variants=[_name_row(row) for row in aligned],
            baseline=[bool(getattr(row, "baseline", False)) for row in aligned],
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


def sections(frames: Frames) -> list[Section]:
    """Return every section that has rows; repeated notes are kept only once."""
    noted: set[str] = set()
    every = []
    # With several model sizes the trends come first.
    keys = list(dict.fromkeys((*(_TRENDS if len(frames.rungs) > 1 else ()), *SECTIONS)))
    for key, table, only in arrange({key: SECTIONS[key].every_table for key in keys}, frames):
        if part := SECTIONS[key].make(only):
            title = f"{part.title}: {table}" if table else part.title
            note = "" if part.note in noted else part.note
            noted.add(part.note)
            every.append(replace(part, title=title, key=key, table=table, note=note))
    return every


# ---- notes and cells that depend on the experiment


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


def _note_comparison(frames: Frames, rows: Sequence[ComparisonRow]) -> str:
    table, design = frames.table, _design(frames)
    loss = f"{table.split_name.capitalize()} loss in {table.unit.full}, mean over seeds"
    costs = """Speed: ratio to the baseline's, above 1 is faster; `*` if its interval excludes 1,
        `~` if it is the speed of the runs, without an interval. State bytes: memory for a sequence
        of N tokens, in 16-bit numbers; bytes/token: memory that one further token adds there."""
    if table.plan.has_tokenizers:
        costs += " Speeds are in text per second; bytes are per token of each tokenizer."
    costs = " ".join([*warn_of_text(table.plan, frames.plan.experiment), costs])
    if design == "factors":
        return f"""{loss}, and the cost of each combination. Each row has few runs of its own; the
            factors above use all runs and are what is tested. {costs}"""
    if design == "path":
        return f"""{loss}, of the model with this step and all before it. The difference is from the
            start of the path, over the n seeds that both finished; the table above has each step
            alone. The intervals hold for all rows at once. {_note_ends(rows)} {costs}"""
    margin = frames.plan.experiment.margin
    equivalent = f" equivalent if it lies within {margin} of 0;" if margin else ""
    return f"""{loss}; lower is better. The difference is variant minus baseline over the n seeds
        that both finished: runs of a seed see the same batches and start with the same values of
        all weights that they share. In 95% of tables all intervals hold at once (Student's t,
        Bonferroni over the rows; a control's interval holds alone). Verdicts from the interval:
        {equivalent} better or worse if it excludes 0; otherwise inconclusive. The corrected p is
        below 0.05 exactly if the interval excludes 0. {_note_ends(rows)}
        {_note_looks(frames)} {_note_expected(frames)} {costs}"""


def _note_expected(frames: Frames) -> str:
    """Describe the expected and the actual half widths of intervals, or return ""."""
    table, margin = frames.table, frames.table.margin
    halves = [row.high - row.difference for row in table.comparison if row.high > row.low]
    if margin is None or table.unit != NATS or not halves or min(halves) == math.inf:
        return ""
    expected = precision.expect(frames.plan, None, margin)
    low, high = (plain(expected[name], 2) for name in ("half_low", "half_high"))
    return f"""Expected half width before the first run: {low} to {high} nats; half widths of the
        rows: {plain(min(halves), 2)} to {plain(max(halves), 2)}."""


def _note_ends(rows: Sequence[ComparisonRow]) -> str:
    """Explain the verdicts of rows with too short, diverged or collapsed runs."""
    said = ""
    if any(row.too_short for row in rows):
        said += """Too short: a run of the variant or of the baseline ended near or above the loss
            of token frequencies, and still fell: train longer. """
    if any(row.lost for row in rows):
        said += """If runs diverged or collapsed, loss and difference are those of the surviving
            runs, which cannot show a variant that lost runs to be better. A variant is called
            diverged or collapsed if all of its runs were lost and none of the baseline's, or if
            its share of lost runs is larger (Fisher's exact test, corrected for the rows)."""
    return said


def _note_looks(frames: Frames) -> str:
    """Describe the planned interim analyses ("looks"), or warn of adding seeds without a plan."""
    experiment = frames.plan.experiment
    if len(experiment.looks) == 1:
        return """Adding seeds after seeing results makes false verdicts more likely, unless it is
        planned from the start (seeds: {looks: [3, 6, 12]})."""
    shares = experiment.spend or spending(experiment.looks)
    planned = ", ".join(
        f"{share:.0%} at {seeds}" for share, seeds in zip(shares, experiment.looks, strict=True)
    )
    return f"""Seeds were added in planned looks: a variant stops at the first look that decides it,
    so n differs. Each look spends a share of the 5%, fixed before the first run ({planned} seeds).
    A row is pending until it is decided or has had its last look."""


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


def _note_other_metrics(frames: Frames, _rows: Sequence[Row]) -> str:
    rows = frames.table.secondary
    tasks = """Tasks: share of items answered right; higher is better. Near chance no variant has
        learned the task. Cut items are longer than the model's context and lose their
        beginning."""
    guards = """Guards: worse if the whole interval lies beyond what the file allows, holds if it
        lies within, otherwise undecided."""
    return f"""The difference is variant minus baseline over the n seeds that both finished (for a
        speed: over processes); answers to tasks are paired by item too. The intervals include the
        error of the items or of the text, and hold for all rows of this table at once (Bonferroni;
        a control's interval holds alone). {tasks * any(row.task for row in rows)}
        {guards * any(row.result for row in rows)}"""


def _note_hypotheses(frames: Frames, _rows: Sequence[Row]) -> str:
    return f"""{_date_hypotheses(frames)} Supported: the whole interval lies inside what was stated.
        Refuted: it lies outside. Otherwise undecided. A hypothesis about a row of a table has that
        row's interval; all other hypotheses share 5% (Bonferroni). A difference of losses is
        undecidable if a run was too short, no variant has learned the task, or all have solved it.
        A variant that lost more runs is worse (Fisher's exact test). Shares of diverged or
        collapsed runs are over all finished runs, at every tuned point, with exact intervals."""


def _date_hypotheses(frames: Frames) -> str:
    """Describe when the hypotheses were stated relative to the runs, as far as known."""
    versions, experiment = frames.protocol, frames.plan.experiment
    if not versions or versions[0].after_runs:
        return "It is not known whether they were stated before the runs."
    changed = [
        change
        for change in protocol.changes(versions, experiment)
        if any(protocol.HYPOTHESIS in line for line in change.lines)
    ]
    if not changed:
        return "Stated in the file before the first run had finished."
    return f"Changed {changed[0].when}: see the warnings."


def _note_diagnostics(frames: Frames, _rows: Sequence[Row]) -> str:
    if effects.factors(frames.table):
        more = """A pooled variance is the residual over all cells, after the effects of cells and
        seeds; a factor whose effect varies over seeds has a variance of its own."""
    else:
        more = """Each row's variance is estimated from its own seeds and, with the weight of about
        three more, from the other rows (pooled; less for a row much noisier than they are). r is
        the correlation between variant and baseline over seeds; the column beside it says how many
        times more runs an unpaired design would need. Both are rough, and need five pairs."""
    return f"""Parts of each interval: standard errors over seeds and over held-out text, degrees of
        freedom, and the level at which the interval holds alone. {more}"""


def _splits(frames: Frames) -> Sequence[Row]:
    by_text = grouped(frames.tables, lambda table: table.plan.evaluated_on)
    return [
        row
        for tables in by_text.values()
        for row in heldout.splits(tables, tables[0].plan.name if len(by_text) > 1 else "")
    ]


def _note_tuning(frames: Frames, _rows: Sequence[Row]) -> str:
    race = frames.plan.experiment.race
    seeds = f", on {race} {plural(race, 'seed')} that no table reports" if race else ""
    return f"""Every variant is tried at the same points{seeds}; the other tables report the
        one with the lowest validation loss. LR sensitivity is the mean loss over the grid of
        learning rates, less its minimum (Wortsman et al. 2023, arXiv:2309.14322)."""


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


def _note_axes(frames: Frames, _rows: Sequence[Row]) -> str:
    table = frames.table
    return f"""Range of an axis: the highest minus the lowest {table.split_name} loss
        ({table.unit.full}) of its levels, averaged over the settings of the other axes. The
        intervals hold for all axes at once. If the intervals of two axes do not overlap, one
        matters more."""


def _note_factors(frames: Frames, _rows: Sequence[Row]) -> str:
    table = frames.table
    return f"""What each change does to the {table.split_name} loss ({table.unit.full}; below 0 is
        better), averaged over all settings of the other factors: every run counts in every row.
        The intervals of all rows and of all interactions hold at once (Bonferroni).
        {effects.confounding(table)}"""


#: Declarations of all sections by key, in reading order.
SECTIONS: dict[str, SectionKind[Any]] = {
    "steps": SectionKind(
        "Steps",
        lambda frames: effects.steps(frames.table),
        """Difference of each step from the step before it, and of all steps so far from the
        baseline, over the n seeds that both finished. The intervals of the steps hold for all steps
        at once (Bonferroni).""",
        every_table=True,
    ),
    "axes": SectionKind(
        "Which axis matters",
        lambda frames: effects.axes(frames.table) if has_ranges(frames.table) else (),
        _note_axes,
        every_table=True,
    ),
    "factors": SectionKind(
        "Factors", lambda frames: _factors(frames, of_two=False), _note_factors, every_table=True
    ),
    "interactions": SectionKind(
        "Interactions",
        lambda frames: _factors(frames, of_two=True),
        """How the second change alters the effect of the first: the difference of the two
        differences. It is 0 if effects add up.""",
        every_table=True,
        printed=lambda _, rows: len(rows) <= MAX_EFFECTS,
        folded=lambda _, rows: len(rows) > MAX_EFFECTS,
    ),
    "comparison": SectionKind(
        _title_comparison,
        lambda frames: _with_half(order_rows(frames.table), frames.table),
        _note_comparison,
        _show_comparison,
        every_table=True,
        folded=lambda frames, rows: _design(frames) == "factors" and len(rows) > _MANY_CELLS,
    ),
    "lengths": SectionKind(
        "By length of training",
        lambda frames: by_sizes.by_length(frames.table),
        """The same rows after fewer tokens: a branch is a copy of the run, cooled down early. The
        intervals of branches hold for all rows and lengths at once (Bonferroni), without the error
        of the held-out text; the last length has the table's intervals. `turned`: half the length
        gave the opposite verdict. A row reverses if it was surely the opposite at some length.""",
        _show_lengths,
        every_table=True,
        answer=_answer_lengths,
    ),
    "winners": SectionKind(
        "Who wins where",
        lambda frames: find_winners({t.plan.name: t.comparison for t in frames.tables}),
        """The variant with the lowest loss in each table, and its interval. No winner: that
        interval contains 0. Flips: the winner differs from that of the tables before.""",
    ),
    "other_metrics": SectionKind(
        "Other metrics",
        lambda frames: frames.table.secondary,
        _note_other_metrics,
        every_table=True,
    ),
    "hypotheses": SectionKind(
        "Hypotheses",
        lambda frames: [*hypotheses.results(frames), *hypotheses.unjudged(frames)],
        _note_hypotheses,
    ),
    "controls": SectionKind(
        "Controls",
        lambda frames: controls.check_controls(frames.table),
        """Repeat: the baseline trained again, unchanged. If it is equal bit for bit, the harness
        adds no difference between arms; if not, every interval is wider by the repeat's. Positive:
        a change of known harm; unless it is seen, "no difference" proves nothing. Redraw: the
        baseline with other random draws; 1 in 20 such intervals is wrong by chance.""",
        every_table=True,
    ),
    "heldout": SectionKind(
        "Held-out text",
        _splits,
        """Other held-out documents would give another difference; the intervals include this error.
        It is estimated from the spread between documents, or between blocks of text if there are
        few documents.""",
        printed=False,
    ),
    "tuning": SectionKind(
        "Tuning",
        lambda frames: tuning.trials(
            frames.table.runs, frames.table.plan.repeated, frames.table.loss
        ),
        _note_tuning,
        every_table=True,
    ),
    "stability": SectionKind(
        "Stability",
        lambda frames: outcomes.stability(frames.table.runs),
        """Over all finished runs of a variant, at every tuned point. A run diverged if its loss or
        gradient was not finite, or its training loss ended above chance and above where it began;
        it collapsed if its held-out loss stopped near or above that of token frequencies. A run
        whose loss still fell there is too short; so is a lost run if a run of the same seed that
        was not lost never had a lower loss. Shares have exact intervals. A spike is a step seven
        standard deviations above the hundred before.""",
        every_table=True,
        printed=lambda _, rows: _count_lost(rows) > 0,
        answer=_answer_stability,
    ),
    "diagnostics": SectionKind(
        "Diagnostics",
        lambda frames: diagnostics(frames.table),
        _note_diagnostics,
        every_table=True,
        printed=False,
        folded=True,
    ),
    "sizes": SectionKind(
        "By size",
        by_sizes.by_size,
        """Differences from the baseline at each size, and their slope: the change for ten times the
        non-embedding parameters, from a line for each seed, with intervals that hold for all
        variants at once. If the slope's interval excludes 0, the gap reverses (surely on opposite
        sides of 0 at the smallest and the largest size), grows or closes (surely not 0 at the end
        that is farther from 0), or moves. It holds if the slope lies within the margin; otherwise
        it is undecided. Scaling laws: analysis/scaling_laws.py.""",
        _show_sizes,
    ),
    "transfer": SectionKind(
        "Best learning rate by size",
        by_sizes.optima,
        """The rate with the lowest mean validation loss at each size; in brackets, its distance in
        grid points from the best rate of the first size. At an end of the grid (*) the best may lie
        beyond it. A rate that stays can be tuned at the smallest size (Yang et al. 2022,
        arXiv:2203.03466).""",
        _show_rates,
    ),
    "metrics": SectionKind(
        "Metrics",
        measurements.find_measured,
        measurements.note_unmeasured,
        lambda frames, _rows: measurements.average(frames),
        printed=False,
        folded=True,
    ),
}
