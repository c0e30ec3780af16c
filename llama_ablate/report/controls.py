"""Controls of an experiment: arms that must not differ, and one that must be worse."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from llama_ablate.report.stability import UNSTABLE
from llama_ablate.results.plan import PlannedTable

Kind = Literal["aa", "positive"]


@dataclass(frozen=True)
class Check:
    """Whether a control holds, and why."""

    holds: bool
    why: str


def check(table: PlannedTable, comparison: pd.DataFrame) -> dict[Kind, Check]:
    """Return for each kind of control that a table has whether all of that kind hold.

    An A/A arm holds where it is not told apart from the baseline (one that changes nothing, where
    it is equal bit for bit); the positive control where it is worse, diverged or collapsed.
    """
    checks: dict[Kind, list[Check]] = {}
    for variant, (_, row) in zip(table.variants, comparison.iterrows(), strict=True):
        if variant.role:
            one = _check(row, variant.role, unchanged=variant.reseed == "none")
            named = Check(one.holds, f"{variant.label} {one.why}")
            checks.setdefault(variant.role, []).append(named)
    return {
        kind: Check(all(one.holds for one in of_kind), "; ".join(one.why for one in of_kind))
        for kind, of_kind in checks.items()
    }


def all_hold(checks: Mapping[Kind, Check]) -> Check:
    """Return whether all controls of a table hold, and why."""
    why = "; ".join(one.why for one in checks.values())
    return Check(all(one.holds for one in checks.values()), why)


def _check(row: "pd.Series[float]", role: Kind, *, unchanged: bool) -> Check:
    verdict = str(row["verdict"])
    if verdict == "failed":
        return Check(holds=False, why="failed")
    if math.isnan(row["difference_nats"]) and verdict not in UNSTABLE:
        return Check(holds=False, why="has not finished")
    if role == "positive":
        return Check(verdict in ("worse", *UNSTABLE), f"is {verdict}")
    if unchanged:
        same = row["difference_nats"] == row["low_nats"] == row["high_nats"] == 0
        return Check(
            same, "is equal bit for bit" if same else "differs, though nothing was changed"
        )
    same = verdict in ("inconclusive", "equivalent")
    return Check(same, "is not told apart" if same else f"is {verdict}, by chance or by a fault")
