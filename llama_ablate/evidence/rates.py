"""Intervals of a rate and of the difference of two: how often runs diverge or collapse."""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence.intervals import Interval

_RATES = 101  # steps of the unknown rate over which the worst case is taken
_HALVINGS = 20


@cache
def share(hits: int, n: int) -> tuple[float, float]:
    """Return the exact 95% interval of a share (Clopper & Pearson 1934, Biometrika 26).

    Wilson's holds 83% at the worst rate of three to ten runs, near none and all of them.
    """
    from scipy import stats

    interval = stats.binomtest(hits, n).proportion_ci(0.95, method="exact")
    return float(interval.low), float(interval.high)


#: Of an exact interval: degrees of freedom, parts of a standard error, and whether it is pooled.
_NO_SPREAD = (math.nan, math.nan, math.nan, 0.0, math.nan, False)


def rate_difference(
    first: tuple[int, int], second: tuple[int, int], *, alpha: float = 0.05, family: float = 1
) -> Interval:
    """Return the difference of two rates (hits, runs) with an exact interval at alpha / `family`.

    Two one-sided tests are inverted that reject in at most their level whatever the rates are
    (Chan & Zhang 1999, Biometrics 55); samples are ordered by the difference over its standard
    error with one more hit and miss each (Agresti & Caffo 2000, Am. Stat. 54). Runs are taken to be
    independent. Without runs all is NaN.
    """
    n = min(first[1], second[1])
    level, nan = alpha / family, math.nan
    if not n:
        return Interval(nan, nan, nan, n, nan, level, *_NO_SPREAD)
    mean, p = first[0] / first[1] - second[0] / second[1], p_of_rates(first, second)
    low, high = _least(first, second, level / 2), -_least(second, first, level / 2)
    return Interval(mean, low, high, n, min(1.0, family * p), level, *_NO_SPREAD)


@cache
def p_of_rates(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Return the two-sided p of two rates (hits, runs) that are equal, as `rate_difference` does.

    It is at most a level just where an interval at that level leaves out 0.
    """
    return min(1.0, 2 * min(_tail(first, second, 0.0), _tail(second, first, 0.0)))


def _least(first: tuple[int, int], second: tuple[int, int], level: float) -> float:
    """Return the least difference with which what was seen is no rarer than the level."""
    low, high = -1.0, first[0] / first[1] - second[0] / second[1]
    if low < 0 < high:  # whether 0 is left out is what decides: it is one of the steps
        low, high = (0.0, high) if _tail(first, second, 0.0) <= level else (low, 0.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _tail(first, second, middle) <= level else (low, middle)
    return low


def _tail(first: tuple[int, int], second: tuple[int, int], difference: float) -> float:
    """Return the largest chance, over all rates so far apart, of a difference as large as seen."""
    (hits_1, n_1), (hits_2, n_2) = first, second
    share_1, share_2 = (
        (np.arange(n_1 + 1)[:, None] + 1) / (n_1 + 2),
        (np.arange(n_2 + 1) + 1) / (n_2 + 2),
    )
    error = np.sqrt(share_1 * (1 - share_1) / (n_1 + 2) + share_2 * (1 - share_2) / (n_2 + 2))
    score = (share_1 - share_2 - difference) / error
    extreme = score >= score[hits_1, hits_2] - 1e-9
    rate = np.linspace(max(0.0, -difference), min(1.0, 1.0 - difference), _RATES)
    chances_1 = _binomial(n_1, np.clip(rate + difference, 0.0, 1.0))
    return float(((chances_1 @ extreme) * _binomial(n_2, rate)).sum(1).max())


def _binomial(n: int, rate: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the chance of each number of hits in n runs, by rate: (rates, n + 1)."""
    from scipy import special

    hits, rate = np.arange(n + 1), rate[:, None]
    ways = special.gammaln(n + 1) - special.gammaln(hits + 1) - special.gammaln(n - hits + 1)
    return np.asarray(np.exp(ways + special.xlogy(hits, rate) + special.xlog1py(n - hits, -rate)))
