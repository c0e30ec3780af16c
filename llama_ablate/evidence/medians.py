"""Medians of timings taken in several processes, with intervals over the processes.

Names of arrays say their axes: M rows of a column, P processes.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median, quantiles
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llama_ablate.evidence.intervals import ALPHA
from llama_ablate.evidence.student import f_quantile, quantile

Row = TypeVar("Row", bound=Hashable)
_FEW = 3  # turns, below which there is no middle half
#: Level of the test that a row varies more than the others.
_LEVEL = 0.05
#: Values by process and by turn within it.
Turns = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Timing:
    """A time, or a ratio of times, with its 95% interval over processes.

    The interval is NaN for one process, which says nothing of how another would differ.
    """

    value: float
    low: float
    high: float
    processes: int
    #: In all processes together.
    turns: int
    #: How far the middle half of all turns lies apart, as a share of their median.
    spread: float = math.nan

    def times(self, digits: int = 2) -> str:
        """Write a ratio, with its interval where it has one."""
        alone = f"{self.value:.{digits}f}x"
        if math.isnan(self.low):
            return alone
        return f"{alone} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def timing(turns: Turns) -> Timing:
    """Compute the typical value of positive timings, with processes as observations.

    Turns of a process share its place in memory and the minutes in which it ran, so that their
    spread says nothing of a later measurement (Kalibera and Jones 2013, "Rigorous benchmarking in
    reasonable time"). The value is the geometric mean of the medians of the processes, the interval
    Student's t over their logarithms. Raises ValueError for no process, or one without turns.
    """
    if not turns or not all(turns):
        raise ValueError("a timing needs a process, and a turn in each")
    (mean,), (half,) = estimate_column([_logs(turns)])
    return _timing(turns, mean, half)


def _logs(turns: Turns) -> list[float]:
    return [math.log(median(turn)) for turn in turns]


def _timing(turns: Turns, mean: float, half: float) -> Timing:
    """Return a timing from the mean of its logarithms and half the width of their interval."""
    low, high = math.exp(mean - half), math.exp(mean + half)
    return Timing(
        math.exp(mean), low, high, len(turns), sum(map(len, turns)), relative_spread(turns)
    )


def relative_spread(turns: Turns) -> float:
    """Return the interquartile range of all turns, over their median.

    NaN for fewer than three turns.
    """
    every = sorted(chain(*turns))
    if len(every) < _FEW:
        return math.nan
    low, middle, high = quantiles(every, n=4, method="inclusive")
    return (high - low) / middle


def ratio(numerator: Turns, denominator: Turns) -> Timing:
    """Compute the typical ratio of values from the same turns, in which drift cancels."""
    return compare_column({"": numerator, "base": denominator}, "base")[""]


def compare_column(turns: Mapping[Row, Turns], base: Row) -> dict[Row, Timing]:
    """Return ratios to one row's values in the same turns, with intervals that hold at once.

    A row without that row's turns has a ratio of NaN, and that row itself no interval.
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
    nothing = Timing(math.nan, math.nan, math.nan, 0, 0)
    return {
        row: _timing(quotients[row], *ends[row]) if row in quotients else nothing for row in turns
    }


def _divided(values: Sequence[float], others: Sequence[float]) -> list[float]:
    return [value / other for value, other in zip(values, others, strict=True)]


def estimate_column(
    logs_MP: ArrayLike, alpha: float = ALPHA
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Estimate the rows of a column of speeds: means over processes, and half widths.

    `logs_MP` are the logarithms of the rows' ratios by process, (..., rows, processes). The rows
    share the mean of their variances over processes, with the degrees of freedom of all; a row that
    varies more than the others (F test at 5%) has its own. Bonferroni over the rows. One process
    has no half width.
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
