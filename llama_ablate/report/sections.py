"""The tables of a report, in reading order: the same for the page, for Markdown and a terminal."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pandas as pd

from llama_ablate.report import (
    frames,
    hypothesized,
    scaled,
    steadied,
    tables,
    tested,
    tuned,
)
from llama_ablate.results import Store


@dataclass(frozen=True)
class Section:
    """A table with its title, and what a reader must know to read it."""

    title: str
    cells: pd.DataFrame
    note: str
    #: All numbers behind the cells, for machines.
    frame: pd.DataFrame
    key: str
    #: Of which of the experiment's tables; empty where it is about all of them, or the only one.
    table: str = ""


_COMPARISON = """{split} loss in nats per token, mean over seeds. The difference is variant
minus baseline, paired by seed: both saw the same batches and share every weight they have in
common. The interval is Student's t over the paired differences, for each row alone; the verdict
is corrected for the number of rows (Holm, 5% for the table; controls are judged apart). An
inconclusive row says how many seeds would show {what}, four times in five. r is the correlation
over seeds, and beside it how many times the runs an unpaired design would need. Speeds are
ratios to the baseline from one interleaved pass; KV bytes are for a 16-bit cache."""
_WINNERS = """The lowest mean loss of each table. A winner that is inconclusive against the
baseline is only the lowest number seen; where the winner flips, the budget decides the answer."""
_HYPOTHESES = """Stated in the file before the runs. Supported and refuted are one-sided t tests
over paired seeds (or turns, of a speed), corrected over the list (Holm); what neither shows is
undecided. Where a control fails, there is no verdict."""
_CONTROLS = """An A/A arm is the baseline once more, with other weights or another order of the
text: it must not differ. The positive control is known to harm: it must."""
_FACTORS = """What a factor does to the loss on average over all others, and what two do
together: half of what one changes about the other's effect. Student's t over seeds; p is
corrected for all rows."""
_STEPS = """What each step of the path changes against the step before it, and all steps so far
against the start. p is that of the step, corrected for all steps."""
_TUNING = """Every variant is tried at the same points; the best by validation loss is the one
that the other tables report. Sensitivity is the mean loss over the grid of learning rates above
its minimum (Wortsman et al. 2023, arXiv:2309.14322)."""
_LADDER = """Loss = floor + scale / size^exponent, with bootstrap intervals over seeds; three
sizes or more. The trend is that of the paired gap to the baseline per tenfold parameters: it
grows or closes where its interval leaves out zero, holds where it lies within the stated
margin, else undecided. What lies beyond the largest size is a projection of these lines and no
measurement."""
_SURFACE = """Loss = E + A / parameters^alpha + B / tokens^beta (Hoffmann et al. 2022, equation 2),
through the means over seeds of all rungs and of what their runs reached on the way."""
_STEADY = """Over all finished runs of a variant, at every point that was tuned. A run diverged if
its loss or gradient was not finite, or ended above chance; it collapsed if it learned no more than
the frequencies of its text's tokens. Shares have Wilson's interval. Spikes are steps seven
deviations above the hundred before."""


def sections(store: Store) -> list[Section]:
    """Return every table that the results have something to say in."""
    every = store.tables
    found = [
        _of(
            "comparison",
            "Comparison",
            frames.comparison(table),
            tables.comparison_cells,
            _about(table),
            table,
        )
        for table in every
    ]
    found += [
        _of("winners", "Who wins where", tested.winners(store), tables.winner_cells, _WINNERS),
        _of(
            "hypotheses",
            "Hypotheses",
            hypothesized.hypotheses(store),
            tables.hypothesis_cells,
            _HYPOTHESES,
        ),
    ]
    for table in every:
        frame = frames.runs(table)
        ledger = tuned.ledger(frame, frames.reported_split(frame))
        found += [
            _of("controls", "Controls", _controls(table), lambda f: f, _CONTROLS, table),
            _of("factors", "Factors", tested.factors(table), tables.factor_cells, _FACTORS, table),
            _of("steps", "Steps", tested.steps(table), tables.step_cells, _STEPS, table),
            _of("tuning", "Tuning", ledger, tables.tuning_cells, _TUNING, table),
            _of(
                "steadiness",
                "Stability",
                steadied.steadiness(frame),
                tables.steadiness_cells,
                _STEADY,
                table,
            ),
        ]
    found += [
        _of("ladder", "Ladder", scaled.laws(store), tables.law_cells, _LADDER),
        _of("surface", "Surface", scaled.surface(store), tables.surface_cells, _SURFACE),
    ]
    return _said_once([section for section in found if section is not None])


def _said_once(found: list[Section]) -> list[Section]:
    """Leave a note that has been read out of the sections of its kind that follow."""
    told: set[str] = set()
    kept = []
    for section in found:
        kept.append(replace(section, note="") if section.note in told else section)
        told.add(section.note)
    return kept


def _about(table: Store) -> str:
    margin = table.plan["experiment"].get("margin")
    return _COMPARISON.format(
        split=frames.reported_split(frames.runs(table)).capitalize(),
        what=f"the margin of {margin}" if margin else "a difference as large as the one seen",
    )


def _controls(table: Store) -> pd.DataFrame:
    rows = [
        (kind, "holds" if holds else "fails", why)
        for kind, (holds, why) in tested.controls(table).items()
    ]
    return pd.DataFrame(rows, columns=["control", "finding", "why"])


def _of(
    key: str,
    title: str,
    frame: pd.DataFrame,
    cells: Callable[[pd.DataFrame], pd.DataFrame],
    note: str,
    table: Store | None = None,
) -> Section | None:
    """Return a section, or None where there is nothing to show."""
    if frame.empty:
        return None
    name = str(table.plan.get("table", "")) if table else ""
    titled = f"{title}: {name}" if name else title
    return Section(titled, cells(frame), " ".join(note.split()), frame, key, name)
