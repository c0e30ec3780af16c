"""Simultaneous confidence intervals of paired differences, and required numbers of seeds.

A difference is variant minus baseline for one seed, and is assumed to be normally distributed. The
array functions take tables stacked along leading axes; `simultaneous` takes one table as a mapping
from row names to differences. Suffixes of array names state their axes: M for rows, N for seeds.
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
#: Fewest seeds whose standard deviation is known well enough for Satterthwaite's degrees of
#: freedom, and for an estimate of the seeds needed.
MIN_SEEDS_OF_SPREAD = 5
#: Degrees of freedom of the prior for a row's variance: the mean variance of the table's other
#: rows.
PRIOR_DF = 3.0
_MAX_SUGGESTED_SEEDS = 1000
#: Text error of a difference that does not depend on the choice of held-out text.
NO_TEXT_ERROR = StandardError(0.0, math.inf)
Array = NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """Mean difference with its confidence interval; the ends are NaN for unknown noise."""

    mean: float
    low: float
    high: float
    n: int
    #: Two-sided p value, adjusted for the family of comparisons (Bonferroni): below the family's
    #: alpha exactly if the interval excludes 0.
    p: float
    #: Two-sided error level of this interval alone: its share of the family's alpha.
    alpha: float
    #: Degrees of freedom of the standard error, for the interval's Student t quantile.
    df: float
    #: Standard errors over seeds and over held-out texts, each with its degrees of freedom.
    seed_se: float
    seed_df: float
    text_se: float
    text_df: float
    #: Whether the variance over seeds is moderated by the variances of the table's other rows.
    pooled: bool

    def __neg__(self) -> "Interval":
        """Return the interval of the negated difference."""
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low)

    def at(self, alpha: float) -> "Interval":
        """Return the interval at another two-sided error level `alpha`."""
        if not (self.seed_se > 0 or self.text_se > 0):
            return self
        errors = self.seed_se, self.seed_df, self.text_se, self.text_df
        half = float(join_errors(*errors, self.n, alpha))
        return replace(self, low=self.mean - half, high=self.mean + half, alpha=alpha)

    def widened(self, bias: tuple[float, float]) -> "Interval":
        """Widen the interval by the ends of a bias interval.

        `bias` comes from a repeated baseline (`bound_bias`). The interval never becomes narrower: a
        lower end of the bias above 0, or an upper end below 0, counts as 0.
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
    """Estimated means, half widths and standard errors of stacked tables, each (..., M)."""

    mean: Array
    half: Array
    #: Two-sided p values of the rows, without adjustment for the number of rows.
    p: Array
    df: Array
    seed_se: Array
    seed_df: Array
    #: Whether the variance of a row is estimated together with the variances of other rows.
    pooled: NDArray[np.bool_]
    text_se: Array
    text_df: Array

    def intervals(self, n: Sequence[int], alpha: float, times: ArrayLike) -> list[Interval]:
        """Return the intervals of one table's rows, with p values multiplied by `times`.

        `times` is the number of comparisons that share the error level `alpha`, and `n` the number
        of seeds of each row. The half widths must be at the error level alpha / `times`.
        """
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
    """Estimate each row's mean, with a Student t interval at a two-sided error level.

    `differences_MN` has the shape (..., M, N), with NaN for a seed that a row lacks. `text_se_M`
    and `text_df_M` are the standard error over held-out texts and its degrees of freedom.
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
    """Combine errors over seeds and over held-out texts into half widths and p values.

    `level` is the two-sided error level. Half width and p value are NaN if both errors are 0, since
    the noise is then unknown.
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

    The mean variance of the other rows is a prior with three degrees of freedom, or fewer for a row
    whose variance is more than twice this mean (Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3). An
    input variance is NaN for fewer than two seeds. Return the moderated variances, their degrees of
    freedom, and whether each row's variance was moderated, each (..., M).
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
    """Combine errors over seeds and over held-out texts into one half width.

    `level` is the two-sided error level. With fewer than five seeds, the half width is the root of
    the sum of two squared half widths: from seeds and from texts (Graybill & Wang 1980, JASA 75).
    Its half width from texts has the t quantile of the degrees of freedom of seeds or texts,
    whichever are more: few degrees of freedom of the texts only mean that the text error is a small
    difference of two nearly equal mean squares, and a quantile for so few would overstate it. From
    five seeds on, the degrees of freedom are Satterthwaite's (1946, Biometrics Bulletin 2), and the
    half width is at least the half width from the seeds alone.
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
    """Compute the degrees of freedom at which Student's t yields a half width.

    `error` is the standard error, `level` the two-sided error level.
    """
    from scipy import special

    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.asarray(half, float) / error
    degrees = special.stdtridf(1 - np.asarray(level, float) / 2, ratio)
    # Without a text error the exact result is the seeds' degrees of freedom; the inverse is
    # rounded.
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
    """Compute simultaneous 1 - alpha intervals of mean differences, by row name.

    `differences` maps row names to paired differences. Each interval uses Student's t at the error
    level alpha / m (Bonferroni), where m is `family`, by default the number of rows. `shares` maps
    a row name to the fraction of this level that the row's interval uses, by default 1. The
    variance of each row is moderated by the other rows (`moderate_variances`). A row whose
    differences are all exactly 0 and that has no text error has the interval [0, 0] and does not
    count in the family. Infinite and NaN differences are ignored.
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
    """Bound the bias shared by all variants except the baseline, from a repeated baseline.

    A repeated baseline is trained under another name with nothing changed; `repeated` holds its
    paired differences from the baseline. All differences are 0 if the harness treats the two
    variants alike and the arithmetic is deterministic: the bound is then (0, 0). Otherwise the
    bound is Student's 95% interval of the mean difference, which is infinite for one seed. Return
    None if `repeated` is empty.
    """
    if not any(repeated):
        return (0.0, 0.0) if repeated else None
    interval = simultaneous({"": repeated})[""]
    return (-math.inf, math.inf) if math.isnan(interval.low) else (interval.low, interval.high)


def power(effect: float, sd: float, n: int, alpha: float = ALPHA) -> float:
    """Return the power of a two-sided t test on n paired seeds.

    `sd` is the standard deviation of the paired differences.
    """
    if n < 2:
        return 0.0
    return noncentral_above(
        float(quantile(1 - alpha / 2, n - 1)), n - 1, effect / sd * math.sqrt(n)
    )


def seeds_for(effect: float, sd: float, *, wanted: float = 0.8, alpha: float = ALPHA) -> int:
    """Return the fewest paired seeds that detect an effect with power `wanted`.

    The result is at least 2. Raises ValueError for an effect of 0, which no number of seeds
    detects.
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
    """Return the fewest seeds that resolve a difference of `distance`; None if unknown.

    `distance` is the distance from the interval's mean to the bound that the interval must exclude.
    The power is 0.8 at the interval's own error level. The assumed standard deviation over seeds is
    the lower end of its 95% chi-squared interval. Return None in four cases: fewer than five seeds,
    which hardly determine the standard deviation; an unbounded bias; a text error that is too large
    for any number of seeds; and a result above a thousand seeds.
    """
    is_unknown = interval.n < MIN_SEEDS_OF_SPREAD or math.isinf(interval.high - interval.low)
    if is_unknown or not interval.seed_se > 0:
        return None
    from scipy import special

    # The text error is removed from the distance, in quadrature, before the seeds are computed.
    errors = float(quantile(1 - interval.alpha / 2, math.inf) + quantile(0.8, math.inf))
    squared = distance**2 - (errors * interval.text_se) ** 2
    squares = interval.seed_df * interval.n * interval.seed_se**2
    sd = math.sqrt(squares / special.chdtri(interval.seed_df, 0.025))
    if squared <= 0 or sd / math.sqrt(squared) > math.sqrt(_MAX_SUGGESTED_SEEDS):
        return None
    seeds = seeds_for(math.sqrt(squared), sd, alpha=interval.alpha)
    # The present number of seeds did not suffice.
    return max(seeds, interval.n + 1) if seeds <= _MAX_SUGGESTED_SEEDS else None
