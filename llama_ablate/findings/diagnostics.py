"""Diagnostics of a table's confidence intervals: errors, degrees of freedom, levels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llama_ablate.evidence.written import number
from llama_ablate.findings.effects import factors
from llama_ablate.findings.frames import TableFrames
from llama_ablate.findings.rows import Row, cell, column, shared

_MAX_SAVED = 10  # a few seeds do not determine a larger factor


@dataclass(frozen=True)
class DiagnosticRow(Row):
    """Table row with interval diagnostics of a variant's difference or a factorial effect."""

    ORDER = (
        *("label", "effect", "n", "seed_se", "text_se", "df", "show_variance", "show_level"),
        *("show_look", "correlation", "saved", "aliases"),
    )

    label: str | None = column("label of the variant", "variant", optional=True, default=None)
    effect: str | None = column("the effect in words", "effect", optional=True, default=None)
    n: int | None = column("number of pairs", "n", optional=True, default=None)
    sd: float | None = column("standard deviation of the loss over seeds", default=None)
    seed_se: float = column("standard error over seeds", "error of seeds", ".2g")

    text_se: float = column(
        "standard error over held-out texts",
        "error of the text",
        ".2g",
        when=lambda row: row.text_se > 0,
    )
    df: float = column("degrees of freedom", "degrees of freedom", ".1f")
    alpha: float = column("error that the interval spends")
    pooled: bool = column("whether the variance is estimated with the other rows'")

    @cell("variance")
    def show_variance(self) -> str:
        """Write whether the variance is the row's own or pooled with other rows."""
        return "" if math.isnan(self.df) else "pooled" if self.pooled else "own"

    @cell("level")
    def show_level(self) -> str:
        """Write the confidence level of the row's interval alone, not of all intervals together."""
        return number(100 * (1 - self.alpha), ".4g", "%")

    look: float | None = column("which of the looks the row is from", default=None)
    looks: int | None = column("how many are planned", default=None)

    @cell("look", when=lambda row: (row.looks or 1) > 1)
    def show_look(self) -> str:
        """Write the row's look (interim analysis), and the number of planned looks."""
        return "" if self.look is None else number(self.look, ".0f", f" of {self.looks}")

    def _has_pairs(self) -> bool:
        return not math.isnan(self.correlation or 0.0) and self.correlation is not None

    correlation: float | None = column(
        "correlation over seeds with the baseline",
        "r over seeds",
        ".2f",
        when=_has_pairs,
        default=None,
    )
    pairing_saves: float | None = column(
        "how many times the runs an unpaired design would need", default=None
    )

    @cell("runs that pairing saves", when=_has_pairs)
    def saved(self) -> str:
        """Write by what factor an unpaired design would need more runs, approximately."""
        times = self.pairing_saves or math.nan
        return f"over {_MAX_SAVED}x" if times > _MAX_SAVED else number(times, ".1f", "x")

    aliases: str | None = column(
        "effects that the cells cannot tell from it", "confounded with", optional=True, default=None
    )


def diagnostics(table: TableFrames) -> list[DiagnosticRow]:
    """List the interval diagnostics of a table: one row for each difference.

    The differences are the effects of a factorial design, or else the variants' from the baseline.
    """
    rows: Sequence[Row] = factors(table) or [r for r in table.comparison if not r.baseline]
    return [DiagnosticRow(**shared(DiagnosticRow, row)) for row in rows]
