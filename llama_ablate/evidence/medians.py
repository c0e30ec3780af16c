"""Medians of timings from several processes, with confidence intervals over processes.

Suffixes of array names state their axes: M for rows of a column, P for processes.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from statistics import median, quantiles
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llama_ablate.evidence.intervals import ALPHA
from llama_ablate.evidence.student import f_quantile, quantile

Row = TypeVar("Row", bound=Hashable)
_FEW = 3  # fewest turns with an interquartile range
#: Level of the F test for a row that varies more than the other rows.
_LEVEL = 0.05
#: Half width of an interval, as a share of a speed, above which a further process measures it.
WANTED_HALF_WIDTH = 0.05
#: Timed values by process, and by turn within the process.
Turns = Sequence[Sequence[float]]


#: Columns of a typical time, or of a ratio of times: its value, the ends of its 95% interval over
#: processes, the numbers of processes and of all their turns, and the interquartile range of the
#: turns divided by their median. The ends are NaN for a single process, since the variance between
#: processes is then unknown.
UNMEASURED: Mapping[str, Any] = {
    "value": math.nan,
    "low": math.nan,
    "high": math.nan,
    "processes": 0,
    "turns": 0,
    "spread": math.nan,
}


def summarize_turns(turns: Turns) -> dict[str, Any]:
    """Compute the typical value of positive timings, with processes as observations.

    A turn is one timed measurement. Turns of one process share the process' memory layout and the
    minutes in which it ran, so the variance of turns does not predict a later measurement (Kalibera
    and Jones 2013, "Rigorous benchmarking in reasonable time"). The value is the geometric mean of
    the process medians; its interval is Student's t interval over the logarithms of these medians.
    Returns the columns of `UNMEASURED`. Raises ValueError without processes, and for a process
    without turns.
    """
    if not turns or not all(turns):
        raise ValueError("a timing needs a process, and a turn in each")
    (mean,), (half,) = estimate_column([_logs(turns)])
    return _summarize(turns, mean, half)


def _logs(turns: Turns) -> list[float]:
    return [math.log(median(turn)) for turn in turns]


def _summarize(turns: Turns, mean: float, half: float) -> dict[str, Any]:
    """Return the row of a mean of logarithms and its half width."""
    ends = {"value": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)}
    count = {"processes": len(turns), "turns": sum(map(len, turns))}
    return {**ends, **count, "spread": relative_spread(turns)}


def relative_spread(turns: Turns) -> float:
    """Return the interquartile range of all turns divided by their median.

    Return NaN for fewer than three turns.
    """
    every = sorted(chain(*turns))
    if len(every) < _FEW:
        return math.nan
    low, middle, high = quantiles(every, n=4, method="inclusive")
    return (high - low) / middle


def find_ratio(numerator: Turns, denominator: Turns) -> dict[str, Any]:
    """Compute the typical ratio of two series of values, measured in the same turns.

    Drift of the machine's speed over time cancels in the ratio of each turn.
    """
    return compare_column({"": numerator, "base": denominator}, "base")[""]


def compare_column(turns: Mapping[Row, Turns], base: Row) -> dict[Row, dict[str, Any]]:
    """Compute each row's ratio to a base row, with simultaneous intervals.

    Ratios are taken between values of the same turns. A row that was not measured in the turns of
    the base row has a ratio of NaN; the base row itself has no interval.
    """
    base_turns = turns.get(base, ())
    shape = [*map(len, base_turns)]
    quotients = {
        row: [_divided(*both) for both in zip(row_turns, base_turns, strict=True)]
        for row, row_turns in turns.items()
        if row_turns
        and [*map(len, row_turns)] == shape
        and all(v > 0 for v in chain(*row_turns, *base_turns))
    }
    rows = [row for row in quotients if row != base]
    ends = dict.fromkeys(turns, (0.0, math.nan))
    if rows:
        means, halves = estimate_column([_logs(quotients[row]) for row in rows])
        ends |= zip(rows, zip(means, halves, strict=True), strict=True)
    return {
        row: _summarize(quotients[row], *ends[row]) if row in quotients else {**UNMEASURED}
        for row in turns
    }


def _divided(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [value / other for value, other in zip(values, others, strict=True)]


def estimate_column(
    logs_MP: ArrayLike, alpha: float = ALPHA
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Estimate a column's mean log speed ratios over processes, and their half widths.

    `logs_MP` holds the logarithms of the rows' ratios by process, (..., rows, processes). The rows
    share the mean of their variances over processes, with the sum of their degrees of freedom; a
    row that varies more than the other rows (F test at 5%) keeps its own variance. Intervals are
    corrected for the number of rows (Bonferroni). Half widths are NaN for one process.
    """
    logs_MP = np.asarray(logs_MP, float)
    rows, processes = logs_MP.shape[-2:]
    mean_M = logs_MP.mean(-1)
    if processes < 2:
        return mean_M, np.full_like(mean_M, math.nan)
    own_M, df = logs_MP.var(-1, ddof=1), processes - 1
    all_M = np.broadcast_to(own_M.mean(-1, keepdims=True), own_M.shape)
    others_M = (rows * all_M - own_M) / max(1, rows - 1)
    varies_M = own_M > others_M * f_quantile(1 - _LEVEL, df, max(1, rows - 1) * df)
    varies_M &= rows > 1
    df_M = np.where(varies_M, df, rows * df)
    error_M = np.sqrt(np.where(varies_M, own_M, all_M) / processes)
    return mean_M, quantile(1 - alpha / rows / 2, df_M) * error_M
