"""Differences by length of training: at the branches of runs, and at their ends."""

from collections.abc import Sequence
from dataclasses import dataclass

from llama_ablate.findings import contrasts
from llama_ablate.findings.contrasts import FactorRow
from llama_ablate.findings.frames import TableFrames
from llama_ablate.findings.rows import ComparisonRow, Row, column

_DECIDED = ("better", "worse", "equivalent", "lower together", "higher together", "add up")
_CONTRARY = ({"better", "worse"}, {"lower together", "higher together"})
#: Shares of a run's length between which a branch is half of it.
_LEAST, _MOST = 0.4, 0.6


@dataclass(frozen=True)
class LengthRow(Row):
    """What a row of a table, or an effect of a factorial design, is after so many tokens."""

    name: str = column("label of the variant, or the effect in words")
    tokens: int = column("training tokens")
    end: bool = column("whether that is the whole length")
    difference: float = column("mean difference from the baseline; below 0 is better")
    low: float = column("lower end of its interval")
    high: float = column("upper end of it")
    verdict: str = column("what the interval says")


def by_length(table: TableFrames) -> list[LengthRow]:
    """Return what each row of a table, or each effect of a factorial design, is at every length.

    A branch is the run cooled down early, so each is the same comparison after fewer tokens. The
    intervals of the branches hold at once over rows and lengths, without the text's error; those of
    the end are the table's. None where runs have no branches.
    """
    end = table.plan.tokens_per_run
    every = [*table.lengths.items(), (end, table)] if table.lengths else []
    return [row for tokens, view in every for row in effects(view, tokens, end=tokens == end)]


def at_half(rows: Sequence[LengthRow]) -> dict[str, str]:
    """Say of each row by length whether half the length gave the same verdict.

    `same`; `turned` where better was worse; `was` with the word for any other; `undecided` where
    half the length did not decide. Empty without a branch near half of the length.
    """
    last = {row.name: row.verdict for row in rows if row.end}
    whole = max((row.tokens for row in rows), default=0)
    near = [row for row in rows if not row.end and _LEAST <= row.tokens / whole <= _MOST]
    half = max((row.tokens for row in near), default=0)
    return {row.name: _word(last[row.name], row.verdict) for row in near if row.tokens == half}


def turned(rows: Sequence[LengthRow]) -> dict[str, int]:
    """Return up to how many tokens a decided row had the contrary verdict, by its name."""
    last = {row.name: row.verdict for row in rows if row.end}
    found: dict[str, int] = {}
    for row in rows:
        if _word(last[row.name], row.verdict) == "turned":
            found[row.name] = max(row.tokens, found.get(row.name, 0))
    return found


def _word(now: str, then: str) -> str:
    if then not in _DECIDED:
        return "undecided"
    if now == then:
        return "same"
    return "turned" if {now, then} in _CONTRARY else f"was {then}"


def effects(table: TableFrames, tokens: int, *, end: bool) -> list[LengthRow]:
    """Return the effects of a factorial design, or the rows of a table's variants."""
    named: list[tuple[str, FactorRow | ComparisonRow]] = [
        (row.effect, row) for row in contrasts.factors(table)
    ]
    named = named or [
        (row.label, row) for row in table.comparison if not row.baseline and not row.role
    ]
    return [
        LengthRow(
            name=name,
            tokens=tokens,
            end=end,
            difference=row.difference,
            low=row.low,
            high=row.high,
            verdict=row.verdict,
        )
        for name, row in named
    ]
