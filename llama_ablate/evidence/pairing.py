"""Reduction of a difference's noise through pairing by seed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Fewest pairs with a reported correlation: over three pairs it is often 1.00 by chance.
MIN_PAIRS = 5


@dataclass(frozen=True)
class Pairing:
    """Correlation over seeds between a variant and its baseline; NaN below five pairs."""

    correlation: float = math.nan
    #: Number of runs that an unpaired design would need for the same interval, divided by the runs
    #: of the paired design: the sum of both variances over the variance of the differences; 1 / (1
    #: - r) for equal variances.
    saved: float = math.nan


def measure_pairing(variant: Sequence[float], baseline: Sequence[float]) -> Pairing:
    """Measure how strongly the losses of two variants correlate over seeds.

    Both sequences list the same seeds in the same order; pairs with a missing value are ignored.
    """
    both = np.array([variant, baseline], float)
    a, b = both[:, np.isfinite(both).all(axis=0)]
    if len(a) < MIN_PAIRS or not (a.std() and b.std()):
        return Pairing()
    variance = (a - b).var(ddof=1)
    saved = float((a.var(ddof=1) + b.var(ddof=1)) / variance) if variance else math.nan
    return Pairing(float(np.corrcoef(a, b)[0, 1]), saved)
