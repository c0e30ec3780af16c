"""How steadily each variant trained: divergence, spikes, gradients, over all of its runs."""

import math

import pandas as pd

from llama_ablate.evidence.intervals import wilson
from llama_ablate.results import FINAL

_NUMBERS = ("loss_spike_share", "grad_norm_spike_share", "grad_norm_median", "grad_norm_max")


def steadiness(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each variant, over its finished runs at every tuned point.

    Columns: `label, runs, diverged, share, low, high`, and the means of the numbers that a run
    notes while it trains. Empty where no run noted any.
    """
    ended = frame[frame["outcome"].isin(FINAL)]
    known = [name for name in _NUMBERS if name in ended]
    if ended.empty or not known:
        return pd.DataFrame()
    rows = []
    for label, of in ended.groupby("label", sort=False):
        bad = int((of["outcome"] == "diverged").sum())
        low, high = wilson(bad, len(of))
        means = {name: float(of[name].mean()) if name in known else math.nan for name in _NUMBERS}
        rows.append({"label": label, "runs": len(of), "diverged": bad, "share": bad / len(of),
                     "low": low, "high": high, **means})  # fmt: skip
    return pd.DataFrame(rows)
