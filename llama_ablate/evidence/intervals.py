"""Simultaneous confidence intervals of paired differences, and the seeds that a row needs.

Differences are variant minus baseline, one for each seed, and assumed to be normal. The array
functions take tables stacked along leading axes; `simultaneous` takes one table by the names of its
rows. Letters in names: M rows, N seeds.
"""

import math
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llama_ablate.evidence.student import noncentral_above, quantile, tail
from llama_ablate.evidence.text_error import StandardError

ALPHA = 0.05
#: Fewest seeds whose own spread is known well enough for Satterthwaite's degrees of freedom, and to
#: count seeds by.
MIN_SEEDS_OF_SPREAD = 5
#: Degrees of freedom of the variance that a row borrows from its table's other rows.
PRIOR_DF = 3.0
_MAX_SUGGESTED_SEEDS = 1000
#: Error of a difference that every other held-out text would show alike.
NO_TEXT_ERROR = StandardError(0.0, math.inf)
Array = NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """Mean difference with its confidence interval; NaN if the noise is unknown."""

    mean: float
    low: float
    high: float
    n: int
    #: Two-sided and adjusted for the family (Bonferroni): below the family's alpha exactly where
    #: the interval leaves out 0.
    p: float
    #: Error that the interval spends: the family's alpha, divided.
    alpha: float
    #: Degrees of freedom of the standard error: those of the Student t of the interval.
    df: float
    #: Parts of the standard error: over seeds (with its degrees of freedom), over held-out texts.
    seed_se: float
    seed_df: float
    text_se: float
    text_df: float
    #: Whether the variance over seeds is moderated by the table's other rows.
    pooled: bool

    def __neg__(self) -> "Interval":
        """Return the interval of the negated difference."""
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low)

    def at(self, alpha: float) -> "Interval":
        """Return the interval at another type I error."""
        if not (self.seed_se > 0 or self.text_se > 0):
            return self
        errors = self.seed_se, self.seed_df, self.text_se, self.text_df
        half = float(join_errors(*errors, self.n, alpha))
        return replace(self, low=self.mean - half, high=self.mean + half, alpha=alpha)

    def widened(self, bias: tuple[float, float]) -> "Interval":
        """Widen the interval by the bias that a repeated baseline leaves possible.

        It never gets narrower: an end of the bias on the other side of 0 counts as 0.
        """
        less, more = max(bias[1], 0.0), min(bias[0], 0.0)
        if less == more == 0:
            return self
        beyond = max(self.mean - less, more - self.mean, 0.0)
        error = math.hypot(self.seed_se, self.text_se)
        chance = float(tail(beyond / error, self.df)) if error else 0.5 * (beyond == 0)
        p = min(2 * chance * ALPHA / self.alpha, 1.0)
        return replace(self, low=self.low - less, high=self.high - more, p=p)

    def inside(self, low: float, high: float) -> bool:
        """Return whether the whole interval lies between two values."""
        return low < self.low and self.high < high


#: Interval of a difference that was not measured.
NOTHING = Interval(
    mean=math.nan,
    low=math.nan,
    high=math.nan,
    n=0,
    p=math.nan,
    alpha=math.nan,
    df=math.nan,
    seed_se=math.nan,
    seed_df=math.nan,
    text_se=0.0,
    text_df=math.inf,
    pooled=False,
)


@dataclass(frozen=True)
class Estimates:
    """Means, half widths and their parts of stacked tables, each (..., M)."""

    mean: Array
    half: Array
    #: Two-sided p values of each row alone.
    p: Array
    df: Array
    seed_se: Array
    seed_df: Array
    #: Whether the variance of a row is estimated with those of others.
    pooled: NDArray[np.bool_]
    text_se: Array
    text_df: Array

    def intervals(self, n: Sequence[int], alpha: float, times: ArrayLike) -> list[Interval]:
        """Return the intervals of one table's rows at error alpha / `times`."""
        times = np.broadcast_to(np.asarray(times, float), self.mean.shape)
        low, high, p = self.mean - self.half, self.mean + self.half, times * self.p
        columns = [self.mean, low, high, n, np.minimum(p, 1.0), alpha / times, self.df]
        columns += [self.seed_se, self.seed_df, self.text_se, self.text_df, self.pooled]
        return [
            Interval(*row) for row in zip(*(np.asarray(c).tolist() for c in columns), strict=True)
        ]


def estimate(
    differences_MN: ArrayLike,
    text_se_M: ArrayLike,
    text_df_M: ArrayLike,
    level_M: ArrayLike = ALPHA,
) -> Estimates:
    """Estimate the mean of each row, with a Student t interval at a two-sided level.

    `differences_MN` are (..., M, N), NaN for a seed that a row lacks.
    """
    values = np.asarray(differences_MN, float)
    n = np.sum(~np.isnan(values), -1)
    counted = np.maximum(n, 1)
    mean = np.where(n > 0, np.nansum(values, -1) / counted, math.nan)
    squares = np.nansum((values - mean[..., None]) ** 2, -1)
    own_variance = np.where(n > 1, squares / np.maximum(n - 1, 1), math.nan)
    variance, df, pooled = moderate_variances(own_variance, n - 1.0)
    return join(mean, np.sqrt(variance / counted), df, text_se_M, text_df_M, n, level_M, pooled)


def join(
    mean: Array,
    seed_se: Array,
    seed_df: Array,
    text_se: ArrayLike,
    text_df: ArrayLike,
    seeds: ArrayLike,
    level: ArrayLike,
    pooled: NDArray[np.bool_],
) -> Estimates:
    """Join the errors over seeds and over held-out texts to half widths and p values.

    Both are NaN where there is no error at all: no spread was seen of which to make an interval.
    """
    text_se, text_df = (
        np.broadcast_to(np.asarray(of, float), mean.shape) for of in (text_se, text_df)
    )
    half = join_errors(seed_se, seed_df, text_se, text_df, seeds, level)
    error = np.hypot(seed_se, text_se)
    half = np.where(error > 0, half, math.nan)
    df = find_df(half, error, level, seed_df)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = np.minimum(2 * tail(np.abs(mean) / error, df), 1.0)
    return Estimates(mean, half, p, df, seed_se, seed_df, pooled, text_se, text_df)


def moderate_variances(own_M: ArrayLike, df_M: ArrayLike) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Moderate each row's variance by the mean variance of the table's other rows.

    The prior is worth three degrees of freedom, fewer for a row of more than twice its variance
    (Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3). A variance is NaN for fewer than two seeds.
    Returns variances, degrees of freedom, and whether a row borrows, each (..., M).
    """
    variances, df = np.asarray(own_M, float), np.asarray(df_M, float)
    is_known = ~np.isnan(variances)
    others = np.sum(is_known, -1, keepdims=True) - is_known
    prior = (np.nansum(variances, -1, keepdims=True) - np.nan_to_num(variances)) / np.maximum(
        others, 1
    )
    ratio = np.divide(2 * prior, variances, where=variances > 0, out=np.ones_like(variances))
    weight = np.where((others > 0) & is_known, PRIOR_DF * np.minimum(1.0, ratio), 0.0)
    moderated = (weight * prior + df * variances) / np.where(df > 0, weight + df, math.nan)
    return moderated, weight + df, weight > 0


def join_errors(
    seed_se: ArrayLike,
    seed_df: ArrayLike,
    text_se: ArrayLike,
    text_df: ArrayLike,
    seeds: ArrayLike,
    level: ArrayLike,
) -> Array:
    """Join the errors over seeds and over held-out texts to a half width at a two-sided level.

    Below five seeds the root of the sum of both squared half widths (Graybill & Wang 1980, JASA 75;
    the text's t at the larger of both degrees of freedom: few mean that two mean squares nearly
    cancel in it), from five on Satterthwaite's (1946, Biometrics Bulletin 2), never less than that
    of the seeds alone.
    """
    seed2, text2 = np.asarray(seed_se, float) ** 2, np.asarray(text_se, float) ** 2
    share = 1 - np.asarray(level, float) / 2
    seed_part = seed2 * quantile(share, seed_df) ** 2
    text_part = np.where(text2 > 0, text2 * quantile(share, np.maximum(seed_df, text_df)) ** 2, 0.0)
    dispersion = seed2**2 / seed_df + np.where(
        text2 > 0, text2**2 / np.asarray(text_df, float), 0.0
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        joined = (seed2 + text2) ** 2 / dispersion
    satterthwaite = (seed2 + text2) * quantile(share, joined) ** 2
    squared = np.where(
        np.asarray(seeds) < MIN_SEEDS_OF_SPREAD,
        seed_part + text_part,
        np.maximum(satterthwaite, seed_part),
    )
    return np.asarray(np.sqrt(squared), float)


def find_df(half: ArrayLike, error: ArrayLike, level: ArrayLike, seed_df: ArrayLike) -> Array:
    """Find the degrees of freedom at which Student's t gives a half width."""
    from scipy import special

    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.asarray(half, float) / error
    degrees = special.stdtridf(1 - np.asarray(level, float) / 2, ratio)
    # Where the text adds nothing the inverse is the seeds' own, to more digits.
    same = np.isclose(ratio, quantile(1 - np.asarray(level, float) / 2, seed_df), rtol=1e-9)
    return np.where(same, seed_df, degrees)


def simultaneous(
    differences: Mapping[Key, Sequence[float]],
    *,
    text_errors: Mapping[Key, StandardError] | None = None,
    alpha: float = ALPHA,
    family: float | None = None,
    shares: Mapping[Key, float] | None = None,
) -> dict[Key, Interval]:
    """Compute intervals of mean differences that hold all at once in 1 - alpha.

    Student's t at level 1 - alpha / m (Bonferroni), m the rows of the `family`, by default those
    given; a row named in `shares` spends that part of its level. Rows moderate each other's
    variance (`moderate_variances`). A row whose differences are all exactly 0, and that has no
    error of the text, is no part of the family, and its interval is 0. Infinite differences are
    left out.
    """
    finite = {name: [*filter(math.isfinite, values)] for name, values in differences.items()}
    equal = {
        name
        for name, values in finite.items()
        if values and not any(values) and name not in (text_errors or {})
    }
    rows = {name: values for name, values in finite.items() if name not in equal}
    size = max((len(finite) if family is None else family) - len(equal), 1)
    intervals = {
        name: replace(NOTHING, mean=0.0, low=0.0, high=0.0, n=len(finite[name]), p=1.0, alpha=alpha)
        for name in equal
    }
    if rows:
        intervals |= _estimate_rows(rows, text_errors or {}, alpha, size, shares or {})
    return {name: intervals[name] for name in finite}


def _estimate_rows(
    rows: Mapping[Key, Sequence[float]],
    text_errors: Mapping[Key, StandardError],
    alpha: float,
    family: float,
    shares: Mapping[Key, float],
) -> dict[Key, Interval]:
    errors = [text_errors.get(name, NO_TEXT_ERROR) for name in rows]
    text_se, text_df = np.array([(error.se, error.df) for error in errors]).T
    times = np.array([family / shares.get(name, 1.0) for name in rows])
    n = [*map(len, rows.values())]
    values = np.full((len(rows), max(n)), math.nan)
    for row, row_values in zip(values, rows.values(), strict=True):
        row[: len(row_values)] = row_values
    estimates = estimate(values, text_se, text_df, alpha / times)
    return dict(zip(rows, estimates.intervals(n, alpha, times), strict=True))


def bound_bias(repeated: Sequence[float]) -> tuple[float, float] | None:
    """Bound the bias common to all arms except the baseline, from the repeated baseline.

    `repeated` are the differences of the baseline, trained under another name with nothing changed,
    from itself: all 0 where nothing is at fault and the arithmetic is deterministic; else Student's
    95% interval of their mean, infinite for one seed. None without a repeated baseline.
    """
    if not any(repeated):
        return (0.0, 0.0) if repeated else None
    interval = simultaneous({"": repeated})[""]
    return (-math.inf, math.inf) if math.isnan(interval.low) else (interval.low, interval.high)


def power(effect: float, sd: float, n: int, alpha: float = ALPHA) -> float:
    """Return the power of a two-sided t test on n paired seeds.

    `sd` is that of the differences.
    """
    if n < 2:
        return 0.0
    return noncentral_above(
        float(quantile(1 - alpha / 2, n - 1)), n - 1, effect / sd * math.sqrt(n)
    )


def seeds_for(effect: float, sd: float, *, wanted: float = 0.8, alpha: float = ALPHA) -> int:
    """Return the number of paired seeds that shows an effect with power `wanted`, at least 2.

    Raises ValueError for an effect of zero, which no number of seeds shows.
    """
    if effect == 0:
        raise ValueError("no number of seeds shows an effect of 0")
    if sd == 0:
        return 2
    # For many seeds t is normal: n = ((z + z') sd / effect)^2, and t asks for a few more.
    most = 2
    while power(effect, sd, most, alpha) < wanted:
        most *= 2
    return bisect_left(range(most), wanted, most // 2, key=lambda n: power(effect, sd, n, alpha))


def seeds_needed(interval: Interval, distance: float) -> int | None:
    """Return the fewest seeds that move an interval's end by a distance; None if unknown.

    With a power of 0.8 at the interval's own level, for the lower end of the 95% interval of the
    deviation over seeds (chi-squared). None below five seeds, which say too little of it, where the
    bias is unknown, where the held-out text alone leaves more in doubt, or above a thousand seeds.
    """
    is_unknown = interval.n < MIN_SEEDS_OF_SPREAD or math.isinf(interval.high - interval.low)
    if is_unknown or not interval.seed_se > 0:
        return None
    from scipy import special

    # As many seeds as if there were no error from the text and the distance were that much less.
    errors = float(quantile(1 - interval.alpha / 2, math.inf) + quantile(0.8, math.inf))
    squared = distance**2 - (errors * interval.text_se) ** 2
    squares = interval.seed_df * interval.n * interval.seed_se**2
    sd = math.sqrt(squares / special.chdtri(interval.seed_df, 0.025))
    if squared <= 0 or sd / math.sqrt(squared) > math.sqrt(_MAX_SUGGESTED_SEEDS):
        return None
    seeds = seeds_for(math.sqrt(squared), sd, alpha=interval.alpha)
    # It was not decided by as many as there are.
    return max(seeds, interval.n + 1) if seeds <= _MAX_SUGGESTED_SEEDS else None
