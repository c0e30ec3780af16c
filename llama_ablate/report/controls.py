"""Controls of an experiment: arms that must not differ, and one that must be worse."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from llama_ablate.report.stability import UNSTABLE
from llama_ablate.report.tables import interval, times
from llama_ablate.results.plan import PlannedTable

Kind = Literal["aa", "positive"]
_MOST_MARGINS = 10  # of harm that still is like a difference of the margin's size
_SPEED = 1.05  # the most that one of two speeds of the same code may be of the other
_TOO_STRONG = "it shows that a catastrophe is seen, not a difference of the margin's size"


@dataclass(frozen=True)
class Check:
    """Whether a control holds, and why."""

    holds: bool
    why: str


def check(table: PlannedTable, comparison: pd.DataFrame, margin: float | None) -> dict[Kind, Check]:
    """Return for each kind of control that a table has whether all of that kind hold.

    An A/A arm holds where it is equivalent to the baseline within the margin (one that changes
    nothing, where it is equal bit for bit); the positive control where it is worse, by no more
    than ten margins. Each is judged by its own 95% interval.
    """
    checks: dict[Kind, list[Check]] = {}
    for variant, row in zip(table.variants, comparison.itertuples(), strict=True):
        if variant.role:
            one = judge(row, variant.role, margin, unchanged=variant.reseed == "none")
            named = Check(one.holds, f"{variant.label} {one.why}")
            checks.setdefault(variant.role, []).append(named)
    return {
        kind: Check(all(one.holds for one in of_kind), "; ".join(one.why for one in of_kind))
        for kind, of_kind in checks.items()
    }


def check_speeds(comparison: pd.DataFrame) -> dict[str, Check]:
    """Return for each speed of an A/A arm, by what it is of, whether it is the baseline's.

    It is where the interval of the ratio, over processes, holds 1 and lies within 5% of it. Where
    it does not, these timings tell nothing apart; losses are another matter. Empty where no speed
    was measured.
    """
    arms = comparison[comparison["role"] == "aa"].set_index("label")
    checks: dict[str, Check] = {}
    for speed in ("train", "decode"):
        columns = [f"{speed}_speed_{end}" for end in ("ratio", "low", "high")]
        measured = list(arms[columns].dropna(subset=columns[0]).itertuples(name=None))
        same = [1 / _SPEED <= low <= 1 <= high <= _SPEED for _, _, low, high in measured]
        why = "; ".join(f"{label} {_ratio(*ratio)}" for label, *ratio in measured)
        checks |= {f"aa, {speed} speed": Check(all(same), why)} if measured else {}
    return checks


def _ratio(ratio: float, low: float, high: float) -> str:
    """Write a speed's ratio; one without an interval cannot show that it is the baseline's."""
    return times(ratio, low, high) + (" of one process: no interval" if math.isnan(low) else "")


def all_hold(checks: Mapping[Any, Check]) -> Check:
    """Return whether all controls of a table hold, and why; of those that fail, why they do."""
    failing = [one for one in checks.values() if not one.holds]
    why = "; ".join(one.why for one in failing or checks.values())
    return Check(not failing, why)


def judge(row: Any, role: Kind, margin: float | None, *, unchanged: bool) -> Check:
    """Return whether one control holds, from its row of a comparison.

    Read are the row's `verdict`, `unit`, `difference`, `low` and `high`.
    """
    if why := _without_loss(row, role):
        return Check(holds=False, why=why)
    if unchanged:
        same = row.difference == row.low == row.high == 0
        return Check(
            same, "is equal bit for bit" if same else "differs, though nothing was changed"
        )
    if row.verdict == "too short":
        return Check(holds=False, why="is too short")
    if margin is None:
        return Check(holds=False, why="is held to no margin: the experiment states none")
    return _equivalent(row, margin) if role == "aa" else _worse(row, margin)


def _without_loss(row: Any, role: Kind) -> str:
    if row.verdict in UNSTABLE:
        return f"{row.verdict}: {_TOO_STRONG}" if role == "positive" else row.verdict
    if row.verdict == "failed":
        return "failed"
    return "has not finished" if math.isnan(row.difference) else ""


def _equivalent(row: Any, margin: float) -> Check:
    if row.verdict == "equivalent":
        return Check(holds=True, why=f"is equivalent within {margin:g} {row.unit}")
    measured = interval(row.difference, row.low, row.high)
    why = f"is not shown to be equivalent within {margin:g} {row.unit}: {measured}"
    return Check(holds=False, why=why)


def _worse(row: Any, margin: float) -> Check:
    margins = row.difference / margin
    harm = f"{row.difference:.2g} {row.unit}, {margins:.2g} margins"
    if row.verdict != "worse":
        return Check(holds=False, why=f"is {row.verdict}")
    if margins > _MOST_MARGINS:
        return Check(holds=False, why=f"harms by {harm}: {_TOO_STRONG}")
    return Check(holds=True, why=f"is worse by {harm}")
