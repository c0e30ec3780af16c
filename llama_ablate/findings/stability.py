"""Stability of training: how runs count, rates of divergence and collapse, spikes, norms."""

import math
from collections.abc import Collection, Sequence
from typing import Literal

import pandas as pd

from llama_ablate.evidence import Ended
from llama_ablate.evidence.rates import share
from llama_ablate.results import FINAL
from llama_ablate.results.outcomes import Curves, milder_outcomes
from llama_ablate.results.plan import PlannedTable

#: Outcomes that count against a variant, the worst first: a run that ended so has no loss to
#: compare.
UNSTABLE: tuple[Literal["diverged", "collapsed"], ...] = ("diverged", "collapsed")
_NUMBERS = ("loss_spike_share", "grad_norm_spike_share", "grad_norm_median", "grad_norm_max")


def counted(runs: pd.DataFrame, curve: Curves, tables: Sequence[PlannedTable]) -> pd.DataFrame:
    """Return planned runs with `milder_outcomes`: as they count beside the others."""
    runs = runs.copy()
    for id_, (outcome, reason) in milder_outcomes(list(runs.itertuples()), curve, tables).items():
        own = runs["id"] == id_
        runs.loc[own, "outcome"], runs.loc[own, "reason"] = outcome, reason
        runs.loc[own, "too_short"] = outcome == "ok"
    return runs


def words(runs: pd.DataFrame) -> list[str]:
    """Return how runs ended in words: their outcomes, and `too short` where they are."""
    ended = zip(runs["outcome"], runs["too_short"], strict=True)
    return ["too short" if too_short else str(outcome) for outcome, too_short in ended]


def sides(runs: pd.DataFrame, own: Collection[str], base: Collection[str]) -> tuple[Ended, Ended]:
    """Count how the runs of variants ended and those of others, by id, over the seeds of both."""
    first, second = (runs[runs["variant"].isin(ids)] for ids in (own, base))
    shared = {*first["seed"]} & {*second["seed"]}
    first, second = (side[side["seed"].isin(shared)] for side in (first, second))
    return Ended.of(words(first)), Ended.of(words(second))


def stability(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each variant, over its finished runs at every tuned point.

    Columns: `label, runs`; for each outcome of `UNSTABLE` how many runs ended so, their share and
    the ends of its interval (`diverged, diverged_share, diverged_low, diverged_high` ...); and the
    means of the numbers that a run notes while it trains.
    """
    finished = runs[runs["outcome"].isin(FINAL)]
    rows = []
    for label, own in finished.groupby("label", sort=False):
        row = {"label": label, "runs": len(own)}
        for outcome in UNSTABLE:
            count = int((own["outcome"] == outcome).sum())
            low, high = share(count, len(own))
            row |= {
                outcome: count,
                f"{outcome}_share": count / len(own),
                f"{outcome}_low": low,
                f"{outcome}_high": high,
            }
        rows.append(row | {n: float(own[n].mean()) if n in own else math.nan for n in _NUMBERS})
    return pd.DataFrame(rows)
