"""The sections of a report: tables with what a reader must know to read them.

The page, Markdown, LaTeX, CSV and the terminal all show these.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pandas as pd

from llama_ablate.evidence.sequential import spending
from llama_ablate.evidence.written import interval, plain
from llama_ablate.findings import (
    comparison,
    contrasts,
    controls,
    heldout,
    hypotheses,
    ladder,
    lengths,
    outcomes,
    speed_up,
    tasks,
    tuning,
)
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.contrasts import FactorRow
from llama_ablate.findings.frames import Frames, TableFrames, spread
from llama_ablate.findings.ladder import RateRow
from llama_ablate.findings.lengths import LengthRow
from llama_ablate.findings.rows import DIFFERENCE, Row, frame, leading
from llama_ablate.findings.rows import cells as written
from llama_ablate.report import quantities
from llama_ablate.report.parts import Parts
from llama_ablate.results import protocol
from llama_ablate.terminal import plural


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


SECTIONS = Parts[Section]("section")
#: What the combinations of a factorial design are not tested for: its factors are.
_TESTED = (DIFFERENCE, "verdict", "bias", "p, corrected", "seeds to decide")
_MANY = 12  # variants beyond which a column for each is too wide

Halved = TypeVar("Halved", ComparisonRow, FactorRow)


def sections(frames: Frames) -> list[Section]:
    """Return every section that has something to show; a note stands where it is first needed."""
    noted: set[str] = set()
    every = []
    for made in SECTIONS.make(frames):
        section = made.part
        title = f"{section.title}: {made.table}" if made.table else section.title
        note = "" if section.note in noted else section.note
        noted.add(section.note)
        every.append(replace(section, title=title, key=made.name, table=made.table, note=note))
    return every


def _section(
    title: str,
    rows: Sequence[Row],
    note: str,
    *,
    cells: pd.DataFrame | None = None,
    printed: bool = True,
    folded: bool = False,
) -> Section | None:
    """Return a section, or None of no rows; its `cells` are those of the rows unless given.

    Its short form has the leading columns; without any it has all columns.
    """
    if not rows:
        return None
    shown = written(rows) if cells is None else cells
    aligned = rows if len(shown) == len(rows) else ()
    return Section(
        title,
        shown,
        " ".join(note.split()),
        frame(rows),
        variants=[row.variant for row in aligned],
        baseline=[row.is_baseline for row in aligned],
        printed=printed,
        folded=folded,
        short=sum(head in leading(rows) for head in shown),
    )


def _with_half(
    rows: Sequence[Halved], names: Sequence[str], table: TableFrames
) -> Sequence[Halved]:
    """Return rows with what half the length said of each, where runs have a branch there."""
    half = lengths.at_half(lengths.by_length(table))
    named = zip(rows, names, strict=True)
    return [replace(row, half=half.get(name, "")) for row, name in named] if half else rows


@SECTIONS.register("factors", every_table=True)
def _factors(frames: Frames) -> Section | None:
    rows = contrasts.factors(frames.table)
    if not rows:
        return None
    return _section(
        "Factors",
        _with_half(rows, [row.effect for row in rows], frames.table),
        f"""What each change does to the {frames.table.split_name} loss ({frames.table.unit.full};
        below 0 is better), on average over all settings of the other factors: every run counts in
        every row. A row of two factors is half of what one changes about the other's effect. The
        intervals hold for all rows at once (Bonferroni); verdict and p are read off them.
        {contrasts.confounding(frames.table)}""",
    )


@SECTIONS.register("comparison", every_table=True)
def _comparison(frames: Frames) -> Section | None:
    compared = frames.table.comparison
    rows = _with_half(compared, [row.label for row in compared], frames.table)
    of_split = frames.table.split_name
    costs = """Speeds are ratios to the baseline's, above 1 faster, with 95% intervals over
        processes; state bytes are what one sequence of the training context keeps, in 16-bit
        numbers."""
    if frames.table.plan.has_tokenizers:
        costs += (
            " Speeds are of text; bytes are of tokens, which hold another amount of it in each."
        )
    if contrasts.factors(frames.table):
        return _section(
            "Combinations",
            rows,
            f"""{of_split.capitalize()} loss in {frames.table.unit.full}, mean over seeds, and
            what each combination of the factors costs. Each rests on its own few runs: the factors
            above rest on all of them, and are what is tested. {costs}""",
            cells=written(rows).drop(columns=[*_TESTED], errors="ignore"),
        )
    margin = frames.plan.experiment.margin
    equivalent = f" equivalent where it lies within {margin} of 0," if margin else ""
    return _section(
        "Comparison",
        rows,
        f"""{of_split.capitalize()} loss in {frames.table.unit.full}, mean over seeds; lower is
        better. The difference is variant minus baseline over the n seeds that both finished: runs
        of one seed see the same batches and share the initial values of all weights that they have
        in common. All intervals of the table hold at once in 95% of tables
        (Student's t, Bonferroni over the rows; a control's holds alone). The verdict is read off
        the interval:{equivalent} better or worse where it leaves out 0, else inconclusive; the
        corrected p is below 0.05 just where the interval leaves out 0. {_ends(rows)}
        {_looks(frames)} {_expected(frames.table)} {costs}""",
    )


def _expected(table: TableFrames) -> str:
    """Say what of the noise was expected before any run, where that is part of the intervals."""
    expected = comparison.expected(table.plan).values()
    if not expected:
        return ""
    sds = sorted({f"{one.se:.2g}" for one in expected}, key=float)
    between = " to ".join(dict.fromkeys((sds[0], sds[-1])))
    return (
        "Before the first run, earlier experiments led to expect a deviation over seeds of "
        f"{between} nats; that counts like {next(iter(expected)).df:.1f} degrees of freedom of "
        "each row."
    )


def _ends(rows: Sequence[ComparisonRow]) -> str:
    """Say how rows are judged whose runs, or whose baseline's, were too short or lost."""
    said = ""
    if any(row.too_short for row in rows):
        said += """Too short: a run of the variant or of the baseline ended near or above the loss
            of token frequencies, and still fell; more training decides. """
    if any(row.lost for row in rows):
        said += """Where runs diverged or collapsed, the loss is the mean of those that trained, and
            the difference that of the seeds that both kept: it shows no arm to be better than its
            lost seeds let it be. The share of the lost has an exact interval, and an exact p
            against the baseline's, corrected for the rows: p below 0.05, or all of them and none of
            the baseline's, is the verdict."""
    return said


def _looks(frames: Frames) -> str:
    """Say how seeds come: by looks that were planned, or how many more would decide."""
    experiment = frames.plan.experiment
    if len(experiment.looks) == 1:
        return """Seeds that are added after a look at the results make false verdicts more likely,
        unless they are planned from the start (seeds: {looks: [3, 6, 12]})."""
    shares = experiment.spend or spending(experiment.looks)
    planned = ", ".join(
        f"{share:.0%} at {seeds}" for share, seeds in zip(shares, experiment.looks, strict=True)
    )
    return f"""Seeds come in looks: a variant stops at the first that decides it, so n differs. Each
    look spends a share of the 5%, fixed before the first run ({planned} seeds); a row is pending
    until it is decided or has had its last look."""


@SECTIONS.register("lengths", every_table=True)
def _lengths(frames: Frames) -> Section | None:
    rows = lengths.by_length(frames.table)
    return _section(
        "By length of training",
        rows,
        """The same rows after fewer tokens: a branch is the run cooled down early. The intervals of
        the branches hold at once over all rows and lengths (Bonferroni), without the error between
        held-out texts; those of the last length are the table's. Beside them stands whether half
        the length gave the same verdict (`turned` is better for worse), and which rows were surely
        the contrary at some length: they reverse.""",
        cells=_by_length(rows),
    )


@SECTIONS.register("winners")
def _winners(frames: Frames) -> Section | None:
    return _section(
        "Who wins where",
        comparison.winners({table.plan.name: table.comparison for table in frames.tables}),
        """The variant of the lowest loss in each table, with its row's interval. One that is
        inconclusive against the baseline is only the lowest number seen. Flips: it is not the first
        table's.""",
    )


@SECTIONS.register("tasks", every_table=True)
def _tasks(frames: Frames) -> Section | None:
    return _section(
        "Tasks",
        tasks.accuracies(frames.table),
        """Share of a task's items that are answered right, 0 to 1, mean over seeds; higher is
        better. The difference is variant minus baseline over the n seeds that both finished, paired
        by seed and item; its interval has the error of the seeds and that of the items (between
        groups of items, such as those of one template, where they have such), and holds for all
        rows of this table at once (Bonferroni; a control's alone). The verdict is read off it. Near
        chance no variant has learned the task. Items that are cut are longer than the model's
        context, and lose their beginning.""",
    )


@SECTIONS.register("hypotheses")
def _hypotheses(frames: Frames) -> Section | None:
    return _section(
        "Hypotheses",
        hypotheses.results(frames),
        f"""{_when(frames)} Supported: the whole interval lies inside what was stated; refuted: it
        lies outside; else undecided. A hypothesis about a row of a table has that row's interval;
        all other comparisons of the file share 5% among them (Bonferroni). Where a control fails
        there is no verdict; where a run was too short, no variant has learned the task, or all have
        solved it, a difference of losses is undecidable. In differences of losses a run that
        diverged counts with the loss of chance. Shares of runs that diverged or collapsed are over
        all finished runs, at every tuned point, with an exact interval.""",
    )


def _when(frames: Frames) -> str:
    """Say when the hypotheses were stated, as far as that is known."""
    versions, experiment = frames.protocol, frames.plan.experiment
    if not versions or versions[0].after_runs:
        return "It is not known whether they were stated before the runs."
    changed = [c for c in protocol.changes(versions, experiment) if c.key.startswith("hypothesis")]
    if not changed:
        return "Stated in the file before the first run had finished."
    return f"Changed {changed[0].when}: see the warnings."


@SECTIONS.register("guards", every_table=True)
def _guards(frames: Frames) -> Section | None:
    return _section(
        "Guards",
        frames.table.guards,
        """Numbers in which no variant may be worse by more than the file allows, whatever its loss:
        variant minus baseline, paired by seed (by process for a speed). Worse: the whole interval
        lies beyond what is allowed; holds: it lies within; else undecided; too short as in the
        comparison. The intervals hold for all rows at once (Bonferroni).""",
    )


@SECTIONS.register("controls", every_table=True)
def _controls(frames: Frames) -> Section | None:
    table = frames.table
    return _section(
        "Controls",
        controls.told(table.plan, table.comparison, table.margin),
        """Bias: the baseline repeated under another name with nothing changed must be equal bit for
        bit; then no fault sets all other arms apart. Positive: a change of known harm must be seen,
        its interval above 0 and its mean at most ten margins; "equivalent", "not worse" and
        "undecided" rest on it, a difference that was seen does not. Calibration: the baseline with
        other draws shows noise; of 20 such intervals one leaves out 0. All speeds' intervals are
        widened by that of an A/A arm's speed.""",
    )


@SECTIONS.register("heldout")
def _heldout(frames: Frames) -> Section | None:
    of_text: dict[tuple[str, str], list[TableFrames]] = {}
    for table in frames.tables:
        of_text.setdefault(table.plan.text.identity, []).append(table)
    rows = [
        row
        for of in of_text.values()
        for row in heldout.splits(
            of[0].plan,
            of[0].metrics,
            [row for table in of for row in table.comparison],
            of[0].split,
            of[0].plan.name if len(of_text) > 1 else "",
        )
    ]
    return _section(
        "Held-out text",
        rows,
        """Other held-out documents would give another difference: the intervals contain that error
        too. It is computed between documents, or between blocks of a text that has few.""",
        printed=False,
    )


@SECTIONS.register("steps", every_table=True)
def _steps(frames: Frames) -> Section | None:
    return _section(
        "Steps",
        contrasts.steps(frames.table),
        """What each step changes against the step before it, over the n seeds that both finished,
        and all steps so far against the baseline. The intervals of the steps hold for all steps at
        once (Bonferroni); verdict and p are read off them.""",
    )


@SECTIONS.register("tuning", every_table=True)
def _tuning(frames: Frames) -> Section | None:
    return _section(
        "Tuning",
        tuning.trials(frames.table.runs, frames.table.loss),
        f"""Every variant is tried at the same points{_race(frames)}; the other tables report the
        one with the lowest validation loss. LR sensitivity is the mean loss over the grid of
        learning rates, less its minimum (Wortsman et al. 2023, arXiv:2309.14322).""",
    )


def _race(frames: Frames) -> str:
    """Say on which seeds points were chosen, where they are not those that are reported."""
    race = frames.plan.experiment.race
    return f", on {race} {plural(race, 'seed')} that no table reports" if race else ""


@SECTIONS.register("stability", every_table=True)
def _stability(frames: Frames) -> Section | None:
    rows = outcomes.stability(frames.table.runs)
    return _section(
        "Stability",
        rows,
        """Over all finished runs of a variant, at every tuned point. A run diverged if its loss or
        gradient was not finite, or its training loss ended above chance and above where it began;
        it collapsed if its held-out loss stopped near or above that of token frequencies. One that
        still fell there counts as too short, and so does one whose loss another run of its seed,
        that did not end so, never went below. Shares have exact intervals. A spike is a step
        seven deviations above the hundred before.""",
        printed=any(row.diverged or row.collapsed for row in rows),
    )


@SECTIONS.register("diagnostics", every_table=True)
def _diagnostics(frames: Frames) -> Section | None:
    if contrasts.factors(frames.table):
        more = """Where the variance is pooled, it is what is left in all cells after cells and
        seeds; an effect that varies more over seeds than the others keeps its own."""
    else:
        more = """Where the variance is pooled, that of the other rows counts for two degrees of
        freedom; a row much noisier than they are keeps its own. r is the correlation over seeds of
        variant and baseline; beside it, how many times the runs an unpaired design would need:
        rough figures, shown from five pairs on."""
    return _section(
        "Diagnostics",
        contrasts.diagnostics(frames.table),
        f"""What each interval is made of: its standard errors, over seeds and over held-out text,
        its degrees of freedom, and the level at which it holds alone. {more}""",
        printed=False,
        folded=True,
    )


@SECTIONS.register("speed_up")
def _speed_up(frames: Frames) -> Section | None:
    return _section(
        "Effective speed-up",
        speed_up.speed_ups(frames),
        """How many times the variant's tokens, training FLOPs or training seconds the baseline
        needs for the same loss (Hernandez & Brown 2020, arXiv:2005.04305): above 1 the variant is
        cheaper. The curve of the better one, through the mean losses at the ends of its runs or
        branches whose schedule ended there, is read where the worse one ends; the interval is that
        of the table's difference in loss, read the same way. No curve is extended: a multiple
        beyond the runs is above or below the bound that they show. Each inner length is also left
        out and read off the others: within how much the worst is found stands beside, and widens
        the interval; with three lengths the form is unchecked. FLOPs use the ratio of FLOPs per
        token, seconds that of measured training speeds.""",
    )


@SECTIONS.register("ladder")
def _ladder(frames: Frames) -> Section | None:
    return _section(
        "Ladder",
        ladder.laws(frames),
        """Loss = floor + scale / size^exponent, fitted to the means over seeds, with profile
        intervals; 'at most' and 'at least' where the losses bound a number on one side. It takes
        four sizes, or three where the floor is known; with fewer the exponent is that of a power
        law without a floor over these sizes alone. As a check, the law through all other sizes
        predicts the largest; where that cannot be done, or fails, nothing is projected. The trend
        is that of the paired gap to the baseline per tenfold parameters, in intervals that hold for
        all variants at once. Where its slope leaves out 0, the gap reverses if it is surely on
        opposite sides of 0 at the smallest and the largest size, grows or closes if it is surely
        other than 0 at the end that is farther from it, and else moves; it holds where the slope
        lies within the margin, else undecided. What is projected beyond the largest size was not
        measured.""",
    )


@SECTIONS.register("transfer")
def _transfer(frames: Frames) -> Section | None:
    rows = ladder.optima(frames)
    return _section(
        "Best learning rate by size",
        rows,
        """The rate with the lowest mean validation loss at each size, and in brackets by how many
        points of the grid it lies above (+) or below (-) that of the first size. At an end of the
        grid (*) the best may lie beyond it. A rate that stays can be tuned at the smallest size
        (Yang et al. 2022, arXiv:2203.03466).""",
        cells=_by_size(rows),
    )


@SECTIONS.register("surface")
def _surface(frames: Frames) -> Section | None:
    return _section(
        "Surface",
        ladder.surface(frames),
        """Loss = E + A / parameters^alpha + B / tokens^beta (Hoffmann et al. 2022, equation 2),
        fitted to the means over seeds of all sizes and of the branches of their runs; intervals are
        of a bootstrap over seeds. With a compute of 6 x parameters x tokens, the lowest loss takes
        parameters in proportion to compute^(beta / (alpha + beta)), and tokens to the rest.""",
    )


def _by_length(rows: Sequence[LengthRow]) -> pd.DataFrame:
    """Return differences by length, a column a length, and what half of it says."""
    order = list(dict.fromkeys(row.name for row in rows))
    shown = {"row": order}
    for tokens in sorted({row.tokens for row in rows}):
        own = {
            row.name: f"{interval(row.difference, row.low, row.high)} {row.verdict}"
            for row in rows
            if row.tokens == tokens and not math.isnan(row.difference)
        }
        shown[f"{plain(tokens / 1e6, 3)}M tokens"] = [own.get(name, "") for name in order]
    if half := lengths.at_half(rows):
        shown["at half the length"] = [half.get(name, "") for name in order]
    if contrary := lengths.turned(rows):
        shown["with length"] = ["reverses" if name in contrary else "" for name in order]
    return pd.DataFrame(shown)


def _by_size(rows: Sequence[RateRow]) -> pd.DataFrame:
    """Return best rates, a column a size, with how far each moves."""
    of_label: dict[str, dict[str, str]] = {}
    for row in rows:
        shown = of_label.setdefault(row.label, {"variant": row.label})
        shown[row.rung] = f"{row.lr:g}{'*' if row.edge else ''} ({row.moved:+d})"
    return pd.DataFrame(of_label.values())


@SECTIONS.register("metrics")
def metrics(frames: Frames) -> Section | None:
    """Return every measured value: each is a row of the CSV, the cells are means by variant."""
    values = frames.metrics
    if values.empty:
        return None
    means = pd.concat([quantities.of_reported(table) for table in frames.tables])
    missing = dict.fromkeys(why for table in frames.tables for why in quantities.reasons(table))
    note = f"""Everything that was measured, as the mean over a variant's reported runs that ended
        ok. The values of each run are in tables/metrics.csv.
        {"Not measured: " * bool(missing)}{" ".join(missing)}"""
    return Section(
        "Metrics",
        means_of(means),
        " ".join(note.split()),
        spread(values),
        printed=False,
        folded=True,
    )


def means_of(values: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over runs of each measured value, one row a value, one column a variant.

    Of more than twelve variants the first, the lowest and the highest are shown.
    """
    keys = ["table", "metric", "name"]
    means = values.dropna(subset="value").pivot_table("value", keys, "label", sort=False)
    shown = means.index.to_frame(index=False)
    if not shown["table"].any():
        shown = shown.drop(columns="table")
    if len(means.columns) <= _MANY:
        columns = {str(label): [plain(v, 5) for v in means[label]] for label in means}
    else:
        first = str(means.columns[0])
        columns = {first: [plain(v, 5) for v in means[first]]}
        for title, ends, labels in (
            ("lowest", means.min(axis=1), means.idxmin(axis=1)),
            ("highest", means.max(axis=1), means.idxmax(axis=1)),
        ):
            columns[title] = [f"{plain(v, 5)} ({at})" for v, at in zip(ends, labels, strict=True)]
    for title, texts in columns.items():
        shown[f"{title} (variant)" if title in shown else title] = texts
    return shown
