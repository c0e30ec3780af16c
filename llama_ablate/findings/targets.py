"""Steps and seconds that runs need to reach a target loss, compared with the baseline's.

A run that never reaches the target has no such number, and a mean over the other runs would favour
variants whose slow runs are missing (`results/reference/simulations.md`). Ratios are therefore
formed only if every run of both variants reaches the target. Otherwise the shares of runs that
reach it are compared.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.evidence.intervals import ALPHA, Array, simultaneous
from llama_ablate.evidence.rates import compare_rates
from llama_ablate.evidence.verdicts import verdict
from llama_ablate.findings.columns import list_rows, make_frame

#: A curve is averaged over its points divided by this number, since a loss of one batch is noisy.
_PARTS = 15
_RATIO = {"ratio": "mean", "low": "low", "high": "high"}


def find_crossing(at: Array, losses: Array, target: float) -> float:
    """Return the place at which a smoothed curve first reaches a target; NaN if it never does.

    `at` holds the steps or seconds of the losses, in order. Losses that are not finite end the
    curve. The place is interpolated between the two points around the target; it is 0 if the first
    point lies below the target already.
    """
    ends = np.flatnonzero(~np.isfinite(losses))
    losses = losses[: ends[0]] if len(ends) else losses
    window = max(1, len(losses) // _PARTS)
    smooth = pd.Series(losses).rolling(window, center=True, min_periods=1).mean().to_numpy()
    reached = np.flatnonzero(smooth <= target)
    if not len(reached):
        return math.nan
    after = int(reached[0])
    if not after:
        return 0.0
    share = (smooth[after - 1] - target) / (smooth[after - 1] - smooth[after])
    return float(at[after - 1] + share * (at[after] - at[after - 1]))


def compare_times(
    curves: pd.DataFrame, variants: Sequence[str], target: float, along: Sequence[str]
) -> pd.DataFrame:
    """Compare the times to a target loss with the first variant's.

    `curves` has a row for each point of a run, with the columns `variant`, `seed`, `loss` and those
    named in `along`. Ratios are of runs with the same seed; the intervals of a column hold for all
    variants at once. Returns the columns of the section `target`.
    """
    rows: list[dict[str, Any]] = []
    for name in along:
        points = curves.sort_values(name, kind="stable")
        runs = [
            {
                "variant": variant,
                "seed": seed,
                "at": find_crossing(run[name].to_numpy(float), run["loss"].to_numpy(float), target),
            }
            for (variant, seed), run in points.groupby(["variant", "seed"], sort=False)
        ]
        rows += _compare_along(name, pd.DataFrame(runs), variants)
    return make_frame(rows, "target")


def _compare_along(name: str, runs: pd.DataFrame, variants: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of all variants for one column of times, the first variant's first."""
    base, *others = variants
    times = runs.pivot_table("at", "variant", "seed", dropna=False).reindex([*variants])
    ended = {variant: int(runs["variant"].eq(variant).sum()) for variant in variants}
    reached = {variant: len(times.loc[variant].dropna()) for variant in variants}
    logs = times.where(times > 0).map(math.log, na_action="ignore")
    timed = {variant: len(logs.loc[variant].dropna()) for variant in variants}
    timed_variants = [variant for variant in variants if 0 < ended[variant] == timed[variant]]
    logs.loc[[v for v in others if not {v, base} <= {*timed_variants}]] = math.nan
    compared = dict(
        zip(others, list_rows(simultaneous(logs.loc[others] - logs.loc[base])), strict=True)
    )
    rows: list[dict[str, Any]] = []
    for variant in variants:
        counts = {"runs": ended[variant], "reached": reached[variant]}
        row = {"variant": variant, "along": name, **counts, "median": times.loc[variant].median()}
        if variant == base:
            rows.append({**row, "verdict": "baseline"})
            continue
        interval = compared[variant]
        row |= {new: math.exp(interval[old]) for new, old in _RATIO.items()}
        if not {variant, base} <= {*timed_variants}:
            first, second = ((reached[of], ended[of]) for of in (variant, base))
            share = compare_rates(first, second, ALPHA / len(others))
            interval = {"low": -share["high"], "high": -share["low"]}
            row["share"] = share["mean"]
        rows.append({**row, "verdict": verdict(interval["low"], interval["high"])})
    return rows
