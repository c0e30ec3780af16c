"""Confidence intervals and tests for the share of runs that diverge or collapse."""

import math
from functools import cache
from typing import Any

from llama_ablate.evidence.intervals import ALPHA, NOTHING

#: Number of runs with an outcome, and number of all runs.
Counts = tuple[int, int]


@cache
def share(hits: int, n: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Compute the exact confidence interval of a proportion, `hits` of `n`; NaN for none of none.

    The method is by Clopper & Pearson (1934, Biometrika 26).
    """
    from scipy import special

    if not n:
        return math.nan, math.nan
    low = special.betaincinv(hits, n - hits + 1, alpha / 2) if hits else 0.0
    high = special.betaincinv(hits + 1, n - hits, 1 - alpha / 2) if hits < n else 1.0
    return float(low), float(high)


@cache
def fisher(first: Counts, second: Counts) -> float:
    """Return the two-sided p value of Fisher's exact test for two equal proportions."""
    (hits, n), (hits_2, n_2) = first, second
    total = hits + hits_2
    combinations = {
        k: math.comb(n, k) * math.comb(n_2, total - k)
        for k in range(max(0, total - n_2), min(n, total) + 1)
    }
    # Integer counts make equally likely tables compare as equal.
    rare = sum(way for way in combinations.values() if way <= combinations[hits])
    return rare / math.comb(n + n_2, total)


def compare_rates(first: Counts, second: Counts, level: float = ALPHA) -> dict[str, Any]:
    """Return the difference of two proportions with its interval, as a row of intervals.

    Each argument is a number of hits and a number of runs. For each proportion the exact interval
    at half the error level is computed; subtracting opposite ends of the two exact intervals gives
    the ends of the result. The result therefore misses the true difference with a probability of at
    most `level`. Runs are assumed to be independent. All values are NaN if a side has no runs.
    """
    n = min(first[1], second[1])
    if not n:
        return {**NOTHING, "alpha": level}
    (low, high), (low_2, high_2) = (share(*counts, level / 2) for counts in (first, second))
    mean = first[0] / first[1] - second[0] / second[1]
    ends = {"low": low - high_2, "high": high - low_2}
    return {**NOTHING, "mean": mean, **ends, "n": n, "alpha": level}
