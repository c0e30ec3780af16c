"""Simultaneous confidence intervals of paired differences, and required numbers of seeds.

A difference is variant minus baseline for one seed, and is assumed to be normally distributed. The
array functions take tables stacked along leading axes; `simultaneous` takes one table as a frame of
rows and seeds. Suffixes of array names state their axes: M for rows, N for seeds.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from llama_ablate.evidence.student import noncentral_above, quantile

ALPHA = 0.05
#: Fewest seeds whose standard deviation is known well enough for Satterthwaite's degrees of
#: freedom, and for an estimate of the seeds needed.
MIN_SEEDS_OF_SPREAD = 5
#: Degrees of freedom of the prior for a row's variance: the mean variance of the table's other
#: rows.
PRIOR_DF = 3.0
_MAX_SUGGESTED_SEEDS = 1000
Array = NDArray[np.float64]
#: Columns of a frame of intervals, each with its value for a difference that was not measured.
#: `alpha` is the two-sided error level of the row alone, and `pooled` says whether its variance
#: over seeds is moderated by other rows. The ends are NaN for unknown noise.
NOTHING: Mapping[str, Any] = {
    "mean": math.nan,
    "low": math.nan,
    "high": math.nan,
    "n": 0,
    "alpha": math.nan,
    "df": math.nan,
    "seed_se": math.nan,
    "seed_df": math.nan,
    "text_se": 0.0,
    "text_df": math.inf,
    "pooled": False,
}
#: Ends of the bias of a table without a bias.
NO_BIAS = (0.0, 0.0)


def estimate(
    differences_MN: ArrayLike,
    text_se_M: ArrayLike,
    text_df_M: ArrayLike,
    level_M: ArrayLike = ALPHA,
) -> dict[str, NDArray[Any]]:
    """Estimate each row's mean, with a Student t interval at a two-sided error level.

    `differences_MN` has the shape (..., M, N), with NaN for a seed that a row lacks. `text_se_M`
    and `text_df_M` are the standard error over held-out texts and its degrees of freedom. Returns
    the columns of `NOTHING`, each (..., M).
    """
    n, mean, variance, df, pooled = _summarize(np.asarray(differences_MN, float))
    seed_se = np.sqrt(variance / np.maximum(n, 1))
    return {**join(mean, seed_se, df, text_se_M, text_df_M, n, level_M), "pooled": pooled}


def estimate_unpaired(values_AN: ArrayLike, level: float = ALPHA) -> dict[str, NDArray[Any]]:
    """Estimate how the means of arms differ from the first arm's, without pairs of seeds.

    `values_AN` has the shape (..., A, N), with NaN for a missing run; `level` is the two-sided
    error level of each interval. The arms' variances are moderated by each other and added (Welch
    1947, Biometrika 34), with Satterthwaite's degrees of freedom. Returns the columns of `NOTHING`,
    each (..., A - 1); `n` is the number of runs of the smaller arm.
    """
    n, mean, variance, df, pooled = _summarize(np.asarray(values_AN, float))
    parts = variance / np.maximum(n, 1)
    first, others = parts[..., :1], parts[..., 1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        joined = (first + others) ** 2 / (first**2 / df[..., :1] + others**2 / df[..., 1:])
    differences, least = mean[..., 1:] - mean[..., :1], np.minimum(n[..., 1:], n[..., :1])
    errors = np.sqrt(first + others), joined, 0.0, math.inf
    return {**join(differences, *errors, least, level), "pooled": pooled[..., 1:]}


def _summarize(values: Array) -> tuple[NDArray[Any], Array, Array, Array, NDArray[np.bool_]]:
    """Return the number of values along the last axis, their means, and moderated variances."""
    n = np.sum(~np.isnan(values), -1)
    mean = np.where(n > 0, np.nansum(values, -1) / np.maximum(n, 1), math.nan)
    squares = np.nansum((values - mean[..., None]) ** 2, -1)
    own_variance = np.where(n > 1, squares / np.maximum(n - 1, 1), math.nan)
    return n, mean, *moderate_variances(own_variance, n - 1.0)


def join(
    mean: Array,
    seed_se: Array,
    seed_df: Array,
    text_se: ArrayLike,
    text_df: ArrayLike,
    seeds: ArrayLike,
    level: ArrayLike,
) -> dict[str, NDArray[Any]]:
    """Combine errors over seeds and over held-out texts into intervals, as columns of `NOTHING`.

    `level` is the two-sided error level. The ends are NaN if both errors are 0, since the noise is
    then unknown.
    """
    errors = text_se, text_df, seeds, level
    text_se, text_df, n, alpha = (np.broadcast_to(np.asarray(of), mean.shape) for of in errors)
    error = np.hypot(seed_se, text_se)
    half = join_errors(seed_se, seed_df, text_se, text_df, n, alpha)
    half = np.where(error > 0, half, math.nan)
    return {
        "mean": mean,
        "low": mean - half,
        "high": mean + half,
        "n": n,
        "alpha": alpha,
        "df": find_df(half, error, alpha, seed_df),
        "seed_se": seed_se,
        "seed_df": seed_df,
        "text_se": text_se,
        "text_df": text_df,
    }


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
    differences: pd.DataFrame,
    errors: pd.DataFrame | None = None,
    *,
    alpha: float = ALPHA,
    family: float | None = None,
    shares: ArrayLike = 1.0,
) -> pd.DataFrame:
    """Compute simultaneous 1 - alpha intervals of the mean difference of each row.

    `differences` has a row for each comparison and a column for each seed, with NaN for a missing
    seed. Each interval uses Student's t at the error level alpha / m (Bonferroni), where m is
    `family`, by default the number of rows. `shares` is the fraction of this level that each row
    uses. `errors` has the columns `se` and `df` of the error from held-out texts or items, NaN for
    none. The variance of each row is moderated by the other rows (`moderate_variances`). A row
    whose differences are all exactly 0 and that has no such error has the interval [0, 0] and does
    not count in the family. Returns the columns of `NOTHING`.
    """
    index = differences.index
    if errors is None:
        errors = pd.DataFrame({"se": math.nan, "df": math.nan}, index)
    values = differences.to_numpy(float)
    values = np.where(np.isfinite(values), values, math.nan)
    se, df = errors["se"].to_numpy(float), errors["df"].to_numpy(float)
    n = np.sum(~np.isnan(values), axis=1)
    equal = (n > 0) & ~np.any(np.nan_to_num(values), axis=1) & np.isnan(se)
    size = max((len(values) if family is None else family) - np.sum(equal), 1)
    level = alpha / size * np.broadcast_to(np.asarray(shares, float), n.shape)
    # Rows that are equal bit for bit neither lend nor borrow a variance.
    noisy = np.where(equal[:, None], math.nan, values)
    known_df = np.where(np.isnan(se), math.inf, df)
    rows = pd.DataFrame(estimate(noisy, np.nan_to_num(se), known_df, level), index)
    same = {"mean": 0.0, "low": 0.0, "high": 0.0, "alpha": alpha}
    rows = rows.assign(n=n, **{k: rows[k].where(~equal, value) for k, value in same.items()})
    return rows[[*NOTHING]]


def widen(rows: pd.DataFrame, bias: tuple[float, float]) -> pd.DataFrame:
    """Widen intervals by the ends of a bias interval.

    `bias` comes from a repeated baseline (`bound_bias`). An interval never becomes narrower: a
    lower end of the bias above 0, or an upper end below 0, counts as 0.
    """
    less, more = max(bias[1], 0.0), min(bias[0], 0.0)
    return rows.assign(low=rows["low"] - less, high=rows["high"] - more)


def scale_ends(ends: tuple[float, float], weight: float) -> tuple[float, float]:
    """Return the ends of an interval multiplied by a weight."""
    low, high = sorted(weight * end if end else 0.0 for end in ends)
    return low, high


def bound_bias(repeated: Sequence[float]) -> tuple[float, float] | None:
    """Bound the bias shared by all variants except the baseline, from a repeated baseline.

    A repeated baseline is trained under another name with nothing changed; `repeated` holds its
    paired differences from the baseline. All differences are 0 if the harness treats the two
    variants alike and the arithmetic is deterministic: the bound is then (0, 0). Otherwise the
    bound is Student's 95% interval of the mean difference, which is infinite for one seed. Return
    None if `repeated` is empty.
    """
    if not any(repeated):
        return NO_BIAS if len(repeated) else None
    low, high = simultaneous(pd.DataFrame([repeated]))[["low", "high"]].iloc[0]
    return (-math.inf, math.inf) if math.isnan(low) else (float(low), float(high))


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


def seeds_needed(row: Mapping[str, Any], distance: float) -> float:
    """Return the fewest seeds that resolve a difference of `distance`; NaN if unknown.

    `row` is a row of a frame of intervals, and `distance` the distance from its mean to the bound
    that the interval must exclude. The power is 0.8 at the interval's own error level. The assumed
    standard deviation over seeds is the lower end of its 95% chi-squared interval. Return NaN in
    four cases: fewer than five seeds, which hardly determine the standard deviation; an unbounded
    bias; a text error that is too large for any number of seeds; and a result above a thousand
    seeds.
    """
    is_unknown = row["n"] < MIN_SEEDS_OF_SPREAD or math.isinf(row["high"] - row["low"])
    if is_unknown or not row["seed_se"] > 0:
        return math.nan
    from scipy import special

    # The text error is removed from the distance, in quadrature, before the seeds are computed.
    errors = float(quantile(1 - row["alpha"] / 2, math.inf) + quantile(0.8, math.inf))
    squared = distance**2 - (errors * row["text_se"]) ** 2
    squares = row["seed_df"] * row["n"] * row["seed_se"] ** 2
    sd = math.sqrt(squares / special.chdtri(row["seed_df"], 0.025))
    if squared <= 0 or sd / math.sqrt(squared) > math.sqrt(_MAX_SUGGESTED_SEEDS):
        return math.nan
    seeds = seeds_for(math.sqrt(squared), sd, alpha=row["alpha"])
    # The present number of seeds did not suffice.
    return max(seeds, row["n"] + 1) if seeds <= _MAX_SUGGESTED_SEEDS else math.nan
