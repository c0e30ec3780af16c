"""How steadily each variant trained: outcomes, spikes, gradients, over all of its runs."""

import math

import pandas as pd

from llama_ablate.evidence import Ruling, Verdict
from llama_ablate.evidence.intervals import wilson
from llama_ablate.results import FINAL

#: Outcomes that count against a variant: a run that ended so has no loss to compare.
UNSTABLE: tuple[Verdict, ...] = ("diverged", "collapsed")
_NUMBERS = ("loss_spike_share", "grad_norm_spike_share", "grad_norm_median", "grad_norm_max")


def steadiness(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each variant, over its finished runs at every tuned point.

    Columns: `label, runs`; for each outcome of `UNSTABLE` how many runs ended so, their share and
    the ends of its interval (`diverged, diverged_share, diverged_low, diverged_high` ...); and the
    means of the numbers that a run notes while it trains.
    """
    ended = frame[frame["outcome"].isin(FINAL)]
    rows = []
    for label, of in ended.groupby("label", sort=False):
        row = {"label": label, "runs": len(of)}
        for outcome in UNSTABLE:
            count = int((of["outcome"] == outcome).sum())
            low, high = wilson(count, len(of))
            row |= {
                outcome: count,
                f"{outcome}_share": count / len(of),
                f"{outcome}_low": low,
                f"{outcome}_high": high,
            }
        rows.append(row | {n: float(of[n].mean()) if n in of else math.nan for n in _NUMBERS})
    return pd.DataFrame(rows)


def verdict(
    ruling: Ruling | None, shown: set[str], every: set[str], of_base: set[str], *, paired: bool
) -> Verdict:
    """Return a variant's verdict: what its runs came to, else what their losses say.

    `shown`, `every` and `of_base` are the outcomes of its reported runs, of all its runs and of all
    the baseline's. Failed and unfinished runs are a verdict where no seed is `paired`.
    """
    if ruling is None:
        return "baseline"
    for outcome in UNSTABLE:
        if outcome in shown:
            return outcome
    if not paired and every - {*FINAL, "pending"}:
        return "failed"
    if not paired and (every | of_base) - {*FINAL}:
        return "pending"
    return ruling.verdict
