"""Medians of timings, with intervals that assume no distribution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Median:
    """A median with its 95% interval; the interval is NaN for fewer than six values."""

    value: float
    low: float
    high: float

    def times(self, digits: int = 2) -> str:
        """Write a ratio, with its interval where it has one."""
        alone = f"{self.value:.{digits}f}x"
        if math.isnan(self.low):
            return alone
        return f"{alone} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


def median(values: Sequence[float]) -> Median:
    """Return the median and the order statistics that hold it in 95% of samples or more.

    The number of values below the true median is binomial(n, 1/2), whatever the distribution
    (Conover 1999, Practical Nonparametric Statistics, section 3.2).
    """
    ordered, n = sorted(values), len(values)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    tail, below = 0.0, 0
    while below < n // 2 and tail + math.comb(n, below) / 2**n <= 0.025:
        tail += math.comb(n, below) / 2**n
        below += 1
    if below == 0:
        return Median(middle, math.nan, math.nan)
    return Median(middle, ordered[below - 1], ordered[n - below])


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Median:
    """Return the median of ratios of values taken in the same turn: what drifts cancels out."""
    return median([a / b for a, b in zip(numerator, denominator, strict=True)])
