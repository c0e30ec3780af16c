"""Reduction of a difference's noise through pairing by seed."""

import math

import numpy as np
from numpy.typing import ArrayLike

#: Fewest pairs with a reported correlation: over three pairs it is often 1.00 by chance.
MIN_PAIRS = 5


def measure_pairing(variant: ArrayLike, baseline: ArrayLike) -> tuple[float, float]:
    """Measure how strongly the losses of two variants correlate over seeds.

    Both sequences list the same seeds in the same order; pairs with a missing value are ignored.
    Return the correlation, and the number of runs that an unpaired design would need for the same
    interval, divided by the runs of the paired design: the sum of both variances over the variance
    of the differences; 1 / (1 - r) for equal variances. Both are NaN below five pairs.
    """
    both = np.array([variant, baseline], float)
    a, b = both[:, np.isfinite(both).all(axis=0)]
    if len(a) < MIN_PAIRS or not (a.std() and b.std()):
        return math.nan, math.nan
    variance = (a - b).var(ddof=1)
    saved = float((a.var(ddof=1) + b.var(ddof=1)) / variance) if variance else math.nan
    return float(np.corrcoef(a, b)[0, 1]), saved
