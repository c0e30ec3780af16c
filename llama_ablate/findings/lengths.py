"""Comparisons over lengths of training: the same rows at each branch of the runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from llama_ablate.findings import contrasts
from llama_ablate.findings.contrasts import FactorRow
from llama_ablate.findings.frames import TableFrames
from llama_ablate.findings.rows import ComparisonRow, Row, column, shared

DECIDED = ("better", "worse", "equivalent", "lower together", "higher together", "add up")
CONTRARY = ({"better", "worse"}, {"lower together", "higher together"})
#: Shares of a run's length between which a branch counts as half of it.
MIN_HALF, MAX_HALF = 0.4, 0.6


@dataclass(frozen=True)
class LengthRow(Row):
    """A row of a table, or an effect of a factorial design, at one length of training."""

    name: str = column("label of the variant, or the effect in words")
    tokens: int = column("training tokens")
    end: bool = column("whether that is the whole length")
    difference: float = column("mean difference from the baseline; below 0 is better")
    low: float = column("lower end of its interval")
    high: float = column("upper end of it")
    verdict: str = column("what the interval says")


def by_length(table: TableFrames) -> list[LengthRow]:
    """List each row of a table, or each effect of a factorial design, at every length.

    A branch is the run cooled down early, so each is the same comparison after fewer tokens. The
    intervals of the branches hold at once over rows and lengths, without the text's error; those of
    the end are the table's. Empty where runs have no branches.
    """
    end = table.plan.tokens_per_run
    every = [*table.lengths.items(), (end, table)] if table.lengths else []
    return [row for tokens, view in every for row in effects(view, tokens, end=tokens == end)]


def at_half(rows: Sequence[LengthRow]) -> dict[str, str]:
    """Compare each row's verdict with that at half the length.

    `same`; `turned` where better was worse; `was` with the word for any other; `undecided` where
    half the length did not decide. Empty without a branch near half of the length.
    """
    last = {row.name: row.verdict for row in rows if row.end}
    whole = max((row.tokens for row in rows), default=0)
    near = [row for row in rows if not row.end and MIN_HALF <= row.tokens / whole <= MAX_HALF]
    half = max((row.tokens for row in near), default=0)
    return {
        row.name: _compare_verdicts(last[row.name], row.verdict)
        for row in near
        if row.tokens == half
    }


def contrary(rows: Sequence[LengthRow]) -> dict[str, int]:
    """Find the most tokens at which each decided row had the contrary verdict, by name."""
    last = {row.name: row.verdict for row in rows if row.end}
    found: dict[str, int] = {}
    for row in rows:
        if _compare_verdicts(last[row.name], row.verdict) == "turned":
            found[row.name] = max(row.tokens, found.get(row.name, 0))
    return found


def _compare_verdicts(now: str, then: str) -> str:
    if then not in DECIDED:
        return "undecided"
    if now == then:
        return "same"
    return "turned" if {now, then} in CONTRARY else f"was {then}"


def effects(table: TableFrames, tokens: int, *, end: bool) -> list[LengthRow]:
    """List the effects of a factorial design, or the rows of a table's variants."""
    compared = [row for row in table.comparison if not row.baseline and not row.role]
    return [
        LengthRow(name=name_of(row), tokens=tokens, end=end, **shared(LengthRow, row))
        for row in contrasts.factors(table) or compared
    ]


def name_of(row: FactorRow | ComparisonRow) -> str:
    """Name a row by its effect or its variant."""
    return row.effect if isinstance(row, FactorRow) else row.label
