"""Student's t distribution, central and noncentral, of scalars.

From `scipy.special`: `scipy.stats` takes half a second to import, and checks its arguments thirty
times longer than it computes, where a table asks hundreds of times.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

_FAR = 1e4  # beyond, scipy's noncentral F is unstable; the approximation is good to 1e-4


def above(t: float, freedom: float) -> float:
    """Return the probability that t with `freedom` degrees of freedom exceeds a value."""
    from scipy import special

    return float(special.stdtr(freedom, -t))


def above_f(ratio: float, freedom: float, of_other: float) -> float:
    """Return the probability that a ratio of two variances (F) exceeds a value."""
    from scipy import special

    return float(special.fdtrc(freedom, of_other, ratio))


def quantile(share: float, freedom: float) -> float:
    """Return the quantile of t with `freedom` degrees of freedom."""
    from scipy import special

    return float(special.stdtrit(freedom, share))


def freedom(share: float, value: float) -> float:
    """Return the degrees of freedom of the t whose quantile of a share is a value."""
    from scipy import special

    return float(special.stdtridf(share, value))


def noncentral_above(t: float, freedom: float, centre: float) -> float:
    """Return the chance that |t| lies above a value where t is noncentral, about `centre`.

    Its square is noncentral F with 1 and `freedom` degrees of freedom and noncentrality centre^2.
    Far from 0 its numerator is nearly constant, and what is left is the chi-squared below.
    """
    from scipy import special

    if centre > _FAR:
        return float(special.chdtr(freedom, freedom * (centre / t) ** 2))
    return float(1 - special.ncfdtr(1, freedom, centre**2, t**2))


def not_negative(
    mean: ArrayLike, half: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of intervals about means of what cannot be below 0: shares, times, norms.

    `half` is half of Student's interval. That of the square root of the mean (delta method),
    carried back, has the same width where the mean is far from 0, and reaches farther up near it.
    That of the logarithm would hold the mean a little more often, but where one of three seeds
    alone is not 0 it ends at 74 times the mean; this one at 10.
    """
    mean, half = np.asarray(mean, float), np.asarray(half, float)
    more = half**2 / (4 * np.where(mean > 0, mean, 1.0))
    return np.where(half > 2 * mean, 0.0, mean - half + more), mean + half + more


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean of two values or more."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))
