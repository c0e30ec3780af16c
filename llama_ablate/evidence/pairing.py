"""Differences between variants whose runs are paired by seed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llama_ablate.evidence.student import above, quantile, standard_error

#: Fewest pairs whose correlation is worth telling: of three it is often 1.00 by chance.
FEWEST_PAIRS = 5
_FEWEST_OF_SHAPE = 8  # values whose shape is worth testing
_SHAPE_LEVEL = 0.01


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation over seeds; the deviation is NaN for one seed."""

    mean: float
    sd: float
    n: int


@dataclass(frozen=True)
class Effect:
    """A paired difference, variant minus baseline, with its interval. NaN where n is too small."""

    mean: float
    low: float
    high: float
    n: int
    #: Correlation over seeds of variant and baseline: what pairing takes out of the noise. NaN for
    #: fewer than five pairs.
    correlation: float
    p: float
    #: How many times the runs an unpaired design would need for the same interval; NaN as that is.
    saved: float = math.nan


def summary(values: Sequence[float]) -> Summary:
    """Return mean, sample standard deviation and count of the finite values."""
    finite = np.asarray([v for v in values if math.isfinite(v)], float)
    if not len(finite):
        return Summary(math.nan, math.nan, 0)
    sd = float(finite.std(ddof=1)) if len(finite) > 1 else math.nan
    return Summary(float(finite.mean()), sd, len(finite))


def shape_alarm(values: Sequence[float]) -> float | None:
    """Return the p value of values that are not normal at the 1% level; None of all others.

    The test is that of Shapiro & Wilk 1965, Biometrika 52; fewer than eight values are not tested.
    """
    if len(values) < _FEWEST_OF_SHAPE or min(values) == max(values):
        return None
    from scipy.stats import shapiro

    p = float(shapiro(values).pvalue)
    return p if p < _SHAPE_LEVEL else None


def paired_effect(
    variant: Sequence[float], baseline: Sequence[float], *, confidence: float = 0.95
) -> Effect:
    """Return the mean of `variant - baseline` over seeds, with a Student-t interval.

    The two sequences hold the same seeds in the same order; pairs with an infinite number are left
    out. Unpaired, the variance would be the sum of both; `saved` is that over the variance of the
    differences, 1 / (1 - r) where both are equal. With one seed there is no interval, and with zero
    spread the interval is the point itself. Raises ValueError for unequal lengths.
    """
    if len(variant) != len(baseline):
        raise ValueError(f"{len(variant)} values cannot be paired with {len(baseline)}")
    both = np.asarray([variant, baseline], float)
    a, b = both[:, ~np.isinf(both).any(axis=0)]  # of infinite perplexities nothing is known
    difference = a - b
    n = len(difference)
    mean = float(difference.mean()) if n else math.nan
    if n < 2:
        return Effect(mean, math.nan, math.nan, n, math.nan, math.nan)
    error = standard_error(difference)
    correlation = saved = math.nan
    if n >= FEWEST_PAIRS and a.std() > 0 and b.std() > 0:
        correlation = float(np.corrcoef(a, b)[0, 1])
    if error == 0:
        return Effect(mean, mean, mean, n, correlation, 1.0 if mean == 0 else 0.0)
    if n >= FEWEST_PAIRS:
        saved = float((a.var(ddof=1) + b.var(ddof=1)) / difference.var(ddof=1))
    half = quantile((1 + confidence) / 2, n - 1) * error
    p = 2 * above(abs(mean) / error, n - 1)
    return Effect(mean, mean - half, mean + half, n, correlation, p, saved)
