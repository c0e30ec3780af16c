"""Medians of timings taken in several processes, with intervals over the processes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median, quantiles

from llama_ablate.evidence.student import quantile, standard_error

_FEW = 3  # turns, below which there is no middle half
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
    """Return the typical one of positive values, each process being one observation.

    Turns of a process share its place in memory and the minutes in which it ran, so that their
    spread says nothing of a later measurement (Kalibera and Jones 2013, "Rigorous benchmarking in
    reasonable time"). The value is the geometric mean of the medians of the processes, the interval
    Student's t over their logarithms. Raises ValueError for no process, or one without turns.
    """
    if not turns or not all(turns):
        raise ValueError("a timing needs a process, and a turn in each")
    logs = [math.log(median(of_process)) for of_process in turns]
    n, mean = len(logs), fmean(logs)
    half = quantile(0.975, n - 1) * standard_error(logs) if n > 1 else math.nan
    low, high = math.exp(mean - half), math.exp(mean + half)
    return Timing(math.exp(mean), low, high, n, sum(map(len, turns)), spread(turns))


def spread(turns: Turns) -> float:
    """Return how far the middle half of all turns lies apart, over their median.

    NaN for fewer than three turns.
    """
    every = sorted(chain(*turns))
    if len(every) < _FEW:
        return math.nan
    low, middle, high = quantiles(every, n=4, method="inclusive")
    return (high - low) / middle


def ratio(numerator: Turns, denominator: Turns) -> Timing:
    """Return the typical ratio of values taken in the same turn: what drifts cancels out."""
    return timing(
        [
            [a / b for a, b in zip(above, below, strict=True)]
            for above, below in zip(numerator, denominator, strict=True)
        ]
    )
