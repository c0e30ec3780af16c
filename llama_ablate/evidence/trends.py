"""Trends of differences over model sizes, and sensitivity of losses to the learning rate."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llama_ablate.evidence.intervals import Interval, simultaneous

Trend = Literal["grows", "closes", "reverses", "moves", "holds", "undecided"]


@dataclass(frozen=True)
class Gap:
    """Trend of a variant's gap to the baseline over the logarithm of model size."""

    trend: Trend
    #: Change of the gap in nats per tenfold model size.
    slope: Interval


def fit_gaps(
    differences: Mapping[str, Mapping[float, Sequence[float]]], margin: float | None = None
) -> dict[str, Gap]:
    """Fit each variant's gap to the baseline as a line in log model size.

    `differences` holds each variant's paired differences by size, one for each seed, with the same
    seeds at all sizes. Each seed yields a least-squares line in log10 of size. The intervals of the
    slopes, and of the lines' values at the smallest and the largest size, are simultaneous over all
    variants (`simultaneous`).

    A gap `holds` if the slope's interval lies within the margin, and is `undecided` if the slope's
    interval includes 0. Otherwise the trend follows from the line's intervals at the smallest and
    the largest size. The gap `reverses` if the two intervals exclude 0 on opposite sides. The gap
    `grows` or `closes` if both ends of the line have one sign and the interval at the end with the
    larger gap excludes 0. In any other case the gap `moves`. Raises ValueError for fewer than two
    sizes.
    """
    if any(len(difference) < 2 for difference in differences.values()):
        raise ValueError("a trend needs two sizes or more")
    slopes: dict[str, list[float]] = {}
    firsts: dict[str, list[float]] = {}
    lasts: dict[str, list[float]] = {}
    for name, gaps in differences.items():
        logs = np.log10([*gaps])
        slope, start = np.polyfit(logs - logs.min(), np.array([*gaps.values()], float), 1)
        slopes[name] = slope.tolist()
        firsts[name] = start.tolist()
        lasts[name] = (start + slope * (logs.max() - logs.min())).tolist()
    slope_intervals, first_intervals, last_intervals = map(simultaneous, (slopes, firsts, lasts))
    return {
        name: Gap(
            name_trend(slope_intervals[name], first_intervals[name], last_intervals[name], margin),
            slope_intervals[name],
        )
        for name in differences
    }


def name_trend(slope: Interval, first: Interval, last: Interval, margin: float | None) -> Trend:
    """Return the trend of a line from its slope and its values at both ends."""
    if margin and slope.inside(-margin, margin):
        return "holds"
    if slope.low <= 0 <= slope.high:
        return "undecided"
    if slope.high < 0:  # mirrored, a falling line is a rising one
        first, last = -first, -last
    if first.high < 0 < last.low:
        return "reverses"
    if first.mean > 0 and last.low > 0:
        return "grows"
    return "closes" if first.high < 0 and last.mean < 0 else "moves"


def sensitivity(losses: Sequence[float]) -> float:
    """Return the learning-rate sensitivity: the mean excess over the lowest loss, in nats.

    It is the expected excess loss if the learning rate is drawn from the grid (Wortsman et al.
    2023, arXiv:2309.14322, where the grid is even in the logarithm). The caller has capped the
    losses at the untrained model's loss. Return NaN for fewer than three learning rates.
    """
    values = np.asarray(losses, float)
    return float((values - values.min()).mean()) if len(values) > 2 else math.nan
