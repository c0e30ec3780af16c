"""The sections of a report: tables with what a reader must know to read them.

The page, Markdown, LaTeX, CSV and the terminal all show these.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd

from llama_ablate.evidence.sequential import spending
from llama_ablate.report import (
    cells,
    comparison,
    contrasts,
    heldout,
    hypotheses,
    quantities,
    scaling,
    speed_up,
    stability,
    transfer,
    tuning,
)
from llama_ablate.report.frames import Frames, TableFrames, spread
from llama_ablate.report.parts import Parts
from llama_ablate.results import protocol


@dataclass(frozen=True)
class Section:
    """A table with its title, and what a reader must know to read it."""

    title: str
    cells: pd.DataFrame
    note: str
    #: All numbers behind the cells, for machines.
    frame: pd.DataFrame
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
    frame: pd.DataFrame,
    write: Callable[[pd.DataFrame], pd.DataFrame],
    note: str,
    *,
    printed: bool = True,
    folded: bool = False,
) -> Section | None:
    """Return a section, or None where its frame is empty."""
    if frame.empty:
        return None
    note = " ".join(note.split())
    return Section(title, write(frame), note, frame, printed=printed, folded=folded)


@SECTIONS.register("factors", every_table=True)
def _factors(frames: Frames) -> Section | None:
    frame = contrasts.factors(frames.table)
    if frame.empty:
        return None
    return _section(
        "Factors",
        frame,
        cells.factors,
        f"""What each change does to the {frames.table.split} loss in nats per token, on average
        over all settings of the other factors: every run counts for every row. A row of two is half
        of what one changes about the other's effect, which is by that much more with the other, and
        less without. The intervals hold for all rows at once (Bonferroni), and the verdicts are
        read off them. All rows share the noise that is left after cells and seeds; one that varies
        more over seeds than the others keeps its own.
        {contrasts.confounding(frames.table)}""",
    )


@SECTIONS.register("comparison", every_table=True)
def _comparison(frames: Frames) -> Section | None:
    if len(contrasts.factors(frames.table)):
        return _section(
            "Combinations",
            frames.table.comparison,
            cells.combinations,
            f"""{frames.table.split.capitalize()} loss in nats per token, mean over seeds, and what
            each combination of the factors costs. One alone rests on its own few runs; the factors
            above rest on all of them, and are what is tested. Speeds are ratios to the baseline
            from one interleaved pass; KV bytes and those of the state of one sequence of the
            training context are for 16-bit numbers.""",
        )
    margin = frames.plan.experiment.margin
    equivalent = f" equivalent where it lies within {margin}," if margin else ""
    return _section(
        "Comparison",
        frames.table.comparison,
        cells.comparison,
        f"""{frames.table.split.capitalize()} loss in nats per token, mean over seeds. The
        difference is variant minus baseline, paired by seed: both saw the same batches and share
        every weight they have in common. The intervals hold all at once in 95% of tables (Student's
        t, Bonferroni over the rows; a control's holds alone), and the verdict is read off the one
        that is printed:{equivalent} better or worse where it leaves out 0, else inconclusive.
        {_looks(frames)} Where the variance
        is pooled, that of the other rows counts for two degrees of freedom; a row that is much
        noisier than they are keeps its own. The text's part is what other held-out documents would
        change. r is the correlation over seeds, and beside it how many times the runs an unpaired
        design would need. Speeds are ratios to the baseline from one interleaved pass over several
        processes, with 95% intervals over these; KV bytes and those of the state of one sequence of
        the training context are for 16-bit numbers.""",
    )


def _looks(frames: Frames) -> str:
    """Say how seeds come: by looks that were planned, or how many more would decide."""
    experiment = frames.plan.experiment
    if len(experiment.looks) == 1:
        return """An inconclusive row of five seeds or more says how many would decide it, four
        times in five; seeds added after a look at the results cost error that no interval has,
        unless they are planned from the start (seeds: {looks: [3, 6, 12]})."""
    shares = experiment.spend or spending(experiment.looks)
    planned = ", ".join(
        f"{share:.0%} at {seeds}" for share, seeds in zip(shares, experiment.looks, strict=True)
    )
    return f"""Seeds come in looks: a variant stops at the first that decides it, and each look
    spends a share of the 5%, fixed before the first run ({planned} seeds); a row's interval is that
    of its look, and it is pending while it is to have another."""


@SECTIONS.register("winners")
def _winners(frames: Frames) -> Section | None:
    return _section(
        "Who wins where",
        comparison.winners({table.plan.name: table.comparison for table in frames.tables}),
        cells.winners,
        """The lowest mean loss of each table, with the interval of its table. A winner that is
        inconclusive against the baseline is only the lowest number seen; where the winner flips,
        the budget decides the answer.""",
    )


@SECTIONS.register("hypotheses")
def _hypotheses(frames: Frames) -> Section | None:
    return _section(
        "Hypotheses",
        hypotheses.results(frames),
        cells.hypotheses,
        f"""{_when(frames)} Supported where the whole interval lies inside what was stated, refuted
        where it lies outside, else undecided. A hypothesis about a row of a table is decided by
        that row's interval; all other comparisons that the file asks for share 5% among them
        (Bonferroni). Shares of runs that diverged or collapsed are over all finished runs,
        before tuning, with an exact interval. Where no arm has learned the task, or all have
        solved it, nothing can be decided; where a control fails, there is no verdict.""",
    )


def _when(frames: Frames) -> str:
    """Say when the hypotheses were stated, as far as that is known."""
    versions, experiment = frames.protocol, frames.plan.experiment
    if not versions or versions[0].after_runs:
        return "Whether they were stated before the runs is not known."
    changed = [c for c in protocol.changes(versions, experiment) if c.key.startswith("hypothesis")]
    if not changed:
        return "Stated in the file before the first run had finished."
    return f"Changed {changed[0].when}: see the warnings."


@SECTIONS.register("controls", every_table=True)
def _controls(frames: Frames) -> Section | None:
    rows = [
        (kind, "holds" if check.holds else "fails", check.why)
        for kind, check in (*frames.table.controls.items(), *frames.table.speed_controls.items())
    ]
    return _section(
        "Controls",
        pd.DataFrame(rows, columns=["control", "result", "why"]),
        lambda frame: frame,
        """An A/A arm is the baseline once more, with other weights or another order of the
        text: it must be equivalent within the margin. The positive control is known to harm: it
        must be worse, and by no more than ten margins. The speeds of an A/A arm must be the
        baseline's within 5%: else no speed tells anything apart.""",
    )


@SECTIONS.register("heldout")
def _heldout(frames: Frames) -> Section | None:
    of_text: dict[str, list[TableFrames]] = {}
    for table in frames.tables:
        of_text.setdefault(table.plan.text.fingerprint, []).append(table)
    splits = [
        heldout.splits(of[0].plan, of[0].metrics, pd.concat([table.comparison for table in of]))
        for of in of_text.values()
    ]
    names = [of[0].plan.name if len(of_text) > 1 else "" for of in of_text.values()]
    if all(frame.empty for frame in splits):
        return None
    return _section(
        "Held-out text",
        pd.concat(splits, keys=names, names=["text", None]).reset_index("text"),
        cells.heldout,
        """What other documents of the same kind would change of a difference is part of its
        interval: its error is computed between documents, or between blocks of a text that has
        few.""",
        printed=False,
    )


@SECTIONS.register("steps", every_table=True)
def _steps(frames: Frames) -> Section | None:
    return _section(
        "Steps",
        contrasts.steps(frames.table),
        cells.steps,
        """What each step of the path changes against the step before it, and all steps so far
        against the baseline. The intervals of the steps hold for all steps at once (Bonferroni) and
        decide their verdicts.""",
    )


@SECTIONS.register("tuning", every_table=True)
def _tuning(frames: Frames) -> Section | None:
    return _section(
        "Tuning",
        tuning.trials(frames.table.runs, frames.table.split),
        cells.tuning,
        f"""Every variant is tried at the same points{_race(frames)}; the best by validation loss is
        the one that the other tables report. Sensitivity is the mean loss over the grid of
        learning rates above its minimum (Wortsman et al. 2023, arXiv:2309.14322).""",
    )


def _race(frames: Frames) -> str:
    """Say on which seeds points were chosen, where they are not those that are reported."""
    race = frames.plan.experiment.race
    return f", on {race} seed{'s'[: race > 1]} that no table reports" if race else ""


@SECTIONS.register("stability", every_table=True)
def _stability(frames: Frames) -> Section | None:
    frame = stability.stability(frames.table.runs)
    unstable = bool(len(frame)) and bool(frame[list(stability.UNSTABLE)].any(axis=None))
    return _section(
        "Stability",
        frame,
        cells.stability,
        """Over all finished runs of a variant, at every point that was tuned. A run diverged if
        its loss or gradient was not finite, or ended above chance; it collapsed if it learned no
        more than the frequencies of its text's tokens. Shares have Wilson's interval. Spikes are
        steps seven deviations above the hundred before.""",
        printed=unstable,
    )


@SECTIONS.register("speed_up")
def _speed_up(frames: Frames) -> Section | None:
    return _section(
        "Effective speed-up",
        speed_up.speed_ups(frames),
        cells.speed_ups,
        """How many times a variant's own tokens, training FLOPs and training seconds the baseline
        needs for the same loss: above 1 the variant is cheaper. The loss is the higher one of both
        longest runs, for each seed; the lengths that reach it are read off the curves of loss
        against length, through runs (or their branches) whose schedule ended there. No curve is
        extended: beyond its runs a multiple is a bound. FLOPs are the tokens' multiple times the
        ratio of FLOPs per token, seconds times the ratio of measured training speeds. Intervals
        are of logarithms, at the level of the table's differences in loss, of seeds and held-out
        texts. (Hernandez & Brown 2020, arXiv:2005.04305.)""",
    )


@SECTIONS.register("ladder")
def _ladder(frames: Frames) -> Section | None:
    return _section(
        "Ladder",
        scaling.laws(frames),
        cells.laws,
        """Loss = floor + scale / size^exponent through the means over seeds, with profile
        intervals: a number that the losses bound on one side alone is a one-sided statement. Three
        constants are fitted to four sizes or more, two (a known floor) to three; with fewer there
        is no law, and the exponent is that of a power law without a floor over these sizes alone.
        Before anything is projected, the law through all sizes but the largest predicts that one,
        beside what was measured; where that cannot be done, nothing is projected. The trend is that
        of the paired gap to the baseline per tenfold parameters: it grows or closes where its
        interval leaves out zero, holds where it lies within the stated margin, else undecided. What
        lies beyond the largest size is a projection of these lines and no measurement.""",
    )


@SECTIONS.register("transfer")
def _transfer(frames: Frames) -> Section | None:
    return _section(
        "Best learning rate by size",
        transfer.optima(frames),
        cells.transfer,
        """The rate of each size's lowest mean validation loss over the seeds, and by how many
        points of the grid it stands above (+) or below (-) that of the first size. At an end of the
        grid (*) the best may lie beyond it. Rates that stay need to be tuned at the smallest size
        alone (Yang et al. 2022, arXiv:2203.03466).""",
    )


@SECTIONS.register("surface")
def _surface(frames: Frames) -> Section | None:
    return _section(
        "Surface",
        scaling.surface(frames),
        cells.surface,
        """Loss = E + A / parameters^alpha + B / tokens^beta (Hoffmann et al. 2022, equation 2),
        through the means over seeds of all rungs and of what their runs reached on the way;
        intervals are of a bootstrap over seeds. Of a compute of 6 x parameters x tokens the lowest
        loss takes parameters in proportion to compute^(beta / (alpha + beta)), and tokens in
        proportion to compute to the rest of 1.""",
    )


@SECTIONS.register("metrics")
def metrics(frames: Frames) -> Section | None:
    """Return every measured value: each is a row of the CSV, the cells are means by variant."""
    means = pd.concat([quantities.of_reported(table) for table in frames.tables])
    missing = dict.fromkeys(why for table in frames.tables for why in quantities.reasons(table))
    return _section(
        "Metrics",
        spread(frames.metrics),
        lambda _values: cells.metrics(means),
        f"""Everything that was measured: the mean over a variant's runs that ended ok at its chosen
        point. Each run's own values stand in tables/metrics.csv.
        {"Not measured: " * bool(missing)}{" ".join(missing)}""",
        printed=False,
        folded=True,
    )
