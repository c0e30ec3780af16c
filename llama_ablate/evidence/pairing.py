"""Noise that pairing by seed removes from a difference."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Fewest pairs whose correlation is shown: of three it is often 1.00 by chance.
MIN_PAIRS = 5


@dataclass(frozen=True)
class Pairing:
    """Correlation over seeds of a variant and its baseline; NaN below five pairs."""

    correlation: float = math.nan
    #: How many times the runs an unpaired design would need for the same interval: the sum of both
    #: variances over that of the differences, 1 / (1 - r) where both are equal.
    saved: float = math.nan


def measure_pairing(variant: Sequence[float], baseline: Sequence[float]) -> Pairing:
    """Measure how much of the noise two variants share over seeds, in the same order."""
    both = np.array([variant, baseline], float)
    a, b = both[:, np.isfinite(both).all(axis=0)]
    if len(a) < MIN_PAIRS or not (a.std() and b.std()):
        return Pairing()
    variance = (a - b).var(ddof=1)
    saved = float((a.var(ddof=1) + b.var(ddof=1)) / variance) if variance else math.nan
    return Pairing(float(np.corrcoef(a, b)[0, 1]), saved)
