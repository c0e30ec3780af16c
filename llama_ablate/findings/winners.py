"""Winners: the variant with the lowest loss in each of several tables."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.rows import ENDS, DifferenceRow, cell, column, shared

_NO_WINNER = "no winner"


@dataclass(frozen=True)
class WinnerRow(DifferenceRow):
    """Table row for the winner of a table: the variant with the lowest loss."""

    ORDER = ("table", "winner", *ENDS, "verdict", "flipped")

    table: str = column("name of the table", "table")
    winner: str = column("label of the variant; `no winner` where none is better", "winner")
    flips: bool = column("whether it is not the first table's winner")

    @cell("flips")
    def flipped(self) -> str:
        """Write whether the winner differs from the first table's."""
        return "flips" if self.flips else ""


def find_winners(tables: Mapping[str, Sequence[ComparisonRow]]) -> list[WinnerRow]:
    """Return one row with the winner of each table; [] for a single table.

    `tables` maps table names to comparison rows. The winner has the lowest paired difference from
    the baseline among the variants that are not controls, have all seeds of the experiment or of
    their look, and have no lost or too short run. There is no winner if the interval of the lowest
    difference includes 0. The baseline wins only if the intervals of all other differences lie
    above 0.
    """
    winners: list[WinnerRow] = []
    for name, rows in tables.items() if len(tables) > 1 else ():
        most = max((row.n for row in rows if row.baseline), default=0)
        # With looks, a decided variant has fewer seeds than the baseline, and all that it needs.
        fair = [
            row
            for row in rows
            if not (row.role or row.lost or row.too_short or math.isnan(row.difference))
            and (row.n == most or row.looks > 1)
            and row.verdict not in ("too short", "pending")
        ]
        if fair:
            best = min(fair, key=lambda row: row.difference)
            others = [row for row in fair if not row.baseline]
            wins = all(row.low > 0 for row in others) if best.baseline else best.high < 0
            first = next(
                (winner_row.winner for winner_row in winners if winner_row.winner != _NO_WINNER),
                None,
            )
            winners.append(
                WinnerRow(
                    table=name,
                    winner=best.label if wins else _NO_WINNER,
                    **shared(DifferenceRow, best),
                    flips=wins and first is not None and best.label != first,
                )
            )
    return winners
