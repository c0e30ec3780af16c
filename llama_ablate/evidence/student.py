"""Quantiles of Student's t and F, and intervals of nonnegative means.

The functions import `scipy.special` when they are called, since `scipy.stats` takes half a second
to import.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MAX_CENTRE = 1e4  # beyond, scipy's noncentral F is unstable; the approximation is good to 1e-4


def quantile(share: ArrayLike, df: ArrayLike) -> NDArray[np.float64]:
    """Return the quantile of Student's t at a probability `share`."""
    from scipy import special

    return np.asarray(special.stdtrit(df, share), float)


def f_quantile(share: float, df: ArrayLike, df_of_other: ArrayLike) -> NDArray[np.float64]:
    """Return the quantile of a ratio of two variances (F) at a probability `share`."""
    from scipy import special

    return np.asarray(special.fdtri(df, df_of_other, share), float)


def noncentral_above(t: float, df: float, centre: float) -> float:
    """Return the probability that a noncentral Student's t exceeds `t` in absolute value.

    `centre` is the noncentrality. The square of the variable is noncentral F with 1 and `df`
    degrees of freedom and noncentrality centre^2. For a large `centre` the numerator is nearly
    constant, which leaves a chi-squared probability.
    """
    from scipy import special

    if centre > _MAX_CENTRE:
        return float(special.chdtr(df, df * (centre / t) ** 2))
    return float(1 - special.ncfdtr(1, df, centre**2, t**2))


def not_negative(
    mean: ArrayLike, half: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the interval ends for means of nonnegative values: shares, times, norms.

    `half` is the half width of Student's interval. The interval is computed for the square root of
    the mean (delta method) and then squared. For a mean far from 0, the interval has the width of
    Student's interval. For a mean near 0, the lower end is not negative, and the upper end is
    higher.
    """
    mean, half = np.asarray(mean, float), np.asarray(half, float)
    more = half**2 / (4 * np.where(mean > 0, mean, 1.0))
    return np.where(half > 2 * mean, 0.0, mean - half + more), mean + half + more
