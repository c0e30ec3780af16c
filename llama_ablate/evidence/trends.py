"""Trends of differences over model sizes, and sensitivity of losses to the learning rate."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.evidence.intervals import simultaneous


def fit_gaps(
    differences: Mapping[str, Mapping[float, Sequence[float]]], margin: float | None = None
) -> pd.DataFrame:
    """Fit each variant's gap to the baseline as a line in log model size.

    `differences` holds each variant's paired differences by size, one for each seed, with the same
    seeds at all sizes. Each seed yields a least-squares line in log10 of size. The intervals of the
    slopes, and of the lines' values at the smallest and the largest size, are simultaneous over all
    variants (`simultaneous`). Returns a row for each variant: its `trend`, and its `slope`, the
    change of the gap in nats for ten times the size, with `slope_low` and `slope_high`.

    A gap `holds` if the slope's interval lies within the margin, and is `undecided` if the slope's
    interval includes 0. Otherwise the trend follows from the line's intervals at the smallest and
    the largest size. The gap `reverses` if the two intervals exclude 0 on opposite sides. The gap
    `grows` or `closes` if both ends of the line have one sign and the interval at the end with the
    larger gap excludes 0. In any other case the gap `moves`. Raises ValueError for fewer than two
    sizes.
    """
    if any(len(difference) < 2 for difference in differences.values()):
        raise ValueError("a trend needs two sizes or more")
    lines: list[dict[str, Sequence[float]]] = [{}, {}, {}]  # slopes, first and last values
    for name, gaps in differences.items():
        logs = np.log10([*gaps])
        slope, start = np.polyfit(logs - logs.min(), np.array([*gaps.values()], float), 1)
        values = slope, start, start + slope * (logs.max() - logs.min())
        for of, value in zip(lines, values, strict=True):
            of[name] = value.tolist()
    if not differences:
        return pd.DataFrame(columns=["trend", "slope", "slope_low", "slope_high"])
    rows = [simultaneous(pd.DataFrame.from_dict(of, orient="index")) for of in lines]
    each = zip(*(of.to_dict("records") for of in rows), strict=True)
    slopes = rows[0].rename(columns={"mean": "slope", "low": "slope_low", "high": "slope_high"})
    trends = [name_trend(slope, first, last, margin) for slope, first, last in each]
    return slopes[["slope", "slope_low", "slope_high"]].assign(trend=trends)


def name_trend(
    slope: Mapping[str, Any],
    first: Mapping[str, Any],
    last: Mapping[str, Any],
    margin: float | None,
) -> str:
    """Return the trend of a line from its slope and its values at both ends."""
    if margin and -margin < slope["low"] and slope["high"] < margin:
        return "holds"
    if slope["low"] <= 0 <= slope["high"]:
        return "undecided"
    if slope["high"] < 0:  # mirrored, a falling line is a rising one
        first, last = (
            {"mean": -of["mean"], "low": -of["high"], "high": -of["low"]} for of in (first, last)
        )
    if first["high"] < 0 < last["low"]:
        return "reverses"
    if first["mean"] > 0 and last["low"] > 0:
        return "grows"
    return "closes" if first["high"] < 0 and last["mean"] < 0 else "moves"


def sensitivity(losses: Sequence[float]) -> float:
    """Return the learning-rate sensitivity: the mean excess over the lowest loss, in nats.

    It is the expected excess loss if the learning rate is drawn from the grid (Wortsman et al.
    2023, arXiv:2309.14322, where the grid is even in the logarithm). The caller has capped the
    losses at the untrained model's loss. Return NaN for fewer than three learning rates.
    """
    values = np.asarray(losses, float)
    return float((values - values.min()).mean()) if len(values) > 2 else math.nan
