"""Simultaneous confidence intervals of a table's differences, and the power of paired t tests.

All take the differences themselves, variant minus baseline, one for each seed, and assume that
those are normal.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llama_ablate.evidence.student import above, noncentral_above, quantile
from llama_ablate.evidence.text import TextError

_FEWEST_SEEDS = 5  # that say enough of their spread to count seeds by
_MOST_SEEDS = 1000  # cap on the seeds worth suggesting
_PRIOR_DF = 2.0  # degrees of freedom of the variance that a row takes from the table's others
_PRIOR_ROWS = 3  # fewest other rows whose mean variance is worth that much
_PRIOR_SEEDS = 3  # fewest seeds of a row that lends or takes
_UNLIKE = 2.0  # times the others' mean variance, beyond which a row is not taken to be like them
#: Of a difference that a held-out text would show alike on every other.
EXACT = TextError(0.0, math.inf)


@dataclass(frozen=True)
class Interval:
    """A mean difference with the confidence interval that decides; NaN for fewer than two seeds."""

    mean: float
    low: float
    high: float
    n: int
    #: Two-sided and adjusted for the family (Bonferroni): below the family's alpha just where the
    #: interval leaves out 0.
    p: float
    #: How often such an interval misses the true difference: alpha of the family, divided.
    alpha: float
    #: Degrees of freedom of the standard error.
    df: float
    #: Parts of the standard error: over seeds, and over held-out texts.
    seed_se: float
    text_se: float
    #: Whether the variance over seeds is moderated by that of the table's other rows.
    pooled: bool

    def __neg__(self) -> "Interval":
        """Return the interval of the difference taken the other way round."""
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low)

    def inside(self, low: float, high: float) -> bool:
        """Return whether the whole interval lies between two values."""
        return low < self.low and self.high < high


def simultaneous(
    differences: Mapping[str, Sequence[float]],
    *,
    text_errors: Mapping[str, TextError] | None = None,
    alpha: float = 0.05,
    family: int | None = None,
    shares: Mapping[str, float] | None = None,
) -> dict[str, Interval]:
    """Return an interval for each mean difference, such that all hold at once in 1 - alpha.

    Student's t at level 1 - alpha / m (Bonferroni), m the rows of the `family`, by default those
    given; a row named in `shares` spends that part of its level. The variance over seeds is
    moderated with a prior of fixed weight (Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3): two
    degrees of freedom at the mean variance of the other rows, where three others have one. A row
    of fewer than three seeds, or with more than twice that variance, keeps its own. The variance
    over held-out texts is added, with Satterthwaite's degrees of freedom (1946, Biometrics 2). Of
    an infinite number nothing is known: a difference with one is left out.
    """
    text_errors, shares = text_errors or {}, shares or {}
    differences = {name: [*filter(math.isfinite, own)] for name, own in differences.items()}
    m = len(differences) if family is None else family
    seeds = _moderated(differences)
    return {
        name: t_interval(
            values,
            *seeds[name],
            text=text_errors.get(name, EXACT),
            alpha=alpha,
            times=m / shares.get(name, 1.0),
        )
        for name, values in differences.items()
    }


def _moderated(differences: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, float, bool]]:
    """Return each row's variance over seeds, its degrees of freedom, and whether it is moderated.

    Twice the others' mean variance and three seeds are the widest limits at which every simulated
    population with a symmetric baseline kept its family-wise error (tests/evidence): beyond, a row
    several times noisier than the others is decided falsely too often.
    """
    variances = {
        name: float(np.var(values, ddof=1)) if len(values) > 1 else math.nan
        for name, values in differences.items()
    }
    lent = {
        name: variance
        for name, variance in variances.items()
        if variance > 0 and len(differences[name]) >= _PRIOR_SEEDS
    }
    total = sum(lent.values())
    rows = {}
    for name, variance in variances.items():
        df = math.nan if math.isnan(variance) else len(differences[name]) - 1.0
        rows[name] = (variance, df, False)
        if name in lent and len(lent) > _PRIOR_ROWS:
            prior = (total - variance) / (len(lent) - 1)
            if variance <= _UNLIKE * prior:
                own, df = df * variance, df + _PRIOR_DF
                rows[name] = ((_PRIOR_DF * prior + own) / df, df, True)
    return rows


def t_interval(
    values: Sequence[float],
    variance: float,
    df: float,
    pooled: bool,
    *,
    text: TextError,
    alpha: float,
    times: float,
) -> Interval:
    """Return a Student-t interval at alpha / `times`; with no spread it is the point itself.

    `variance` is that of the values, with `df` degrees of freedom. The variance over held-out texts
    is added, with Satterthwaite's degrees of freedom (1946, Biometrics 2).
    """
    n = len(values)
    mean = float(np.mean(values)) if n else math.nan
    seed_se = math.sqrt(variance / n) if n else math.nan
    error = math.hypot(seed_se, text.se)
    half, p = 0.0, 1.0 if mean == 0 else 0.0
    if error != 0:
        df = error**4 / (seed_se**4 / df + text.se**4 / text.df)
        half = quantile(1 - alpha / times / 2, df) * error
        p = min(times * 2 * above(abs(mean) / error, df), 1.0)
    low, high = mean - half, mean + half
    return Interval(mean, low, high, n, p, alpha / times, df, seed_se, text.se, pooled)


def power(effect: float, sd: float, n: int, alpha: float = 0.05) -> float:
    """Return the chance that n paired seeds show an effect, by a two-sided t test.

    `sd` is that of the differences.
    """
    if n < 2:
        return 0.0
    return noncentral_above(quantile(1 - alpha / 2, n - 1), n - 1, effect / sd * math.sqrt(n))


def detectable(sd: float, n: int, *, wanted: float = 0.8, alpha: float = 0.05) -> float:
    """Return the smallest effect that n paired seeds show with a power of `wanted`."""
    from scipy import optimize

    if n < 2 or not sd > 0:
        return math.nan
    enough = 1.0
    while power(enough, 1.0, n, alpha) < wanted:
        enough *= 2
    deviations = optimize.brentq(lambda x: power(x, 1.0, n, alpha) - wanted, 1e-6, enough)
    return float(deviations) * sd


def seeds_for(effect: float, sd: float, *, wanted: float = 0.8, alpha: float = 0.05) -> int:
    """Return how many paired seeds show an effect with a power of `wanted`, at least 2.

    Raises ValueError for an effect of zero, which no number of seeds shows.
    """
    if effect == 0:
        raise ValueError("no number of seeds shows an effect of 0")
    if sd == 0:
        return 2
    # For many seeds t is normal: n = ((z + z') sd / effect)^2, and t asks for a few more.
    low, high = 1, 2
    while power(effect, sd, high, alpha) < wanted:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        enough = power(effect, sd, middle, alpha) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return high


def seeds_needed(interval: Interval, distance: float) -> tuple[float, float] | None:
    """Return from how many to how many seeds would move the interval's end over a distance.

    With a power of 0.8 at the interval's own level, for both ends of the 95% interval of the
    deviation over seeds (chi-squared); the second is infinite beyond a thousand. None below five
    seeds, which say too little of it, and where no seeds would: the held-out text alone leaves
    more in doubt, or they would be more than a thousand.
    """
    if interval.n < _FEWEST_SEEDS or not interval.seed_se > 0:
        return None
    from scipy import special

    # As many seeds as if there were no error from the text and the distance were that much less.
    errors = quantile(1 - interval.alpha / 2, math.inf) + quantile(0.8, math.inf)
    squared = distance**2 - (errors * interval.text_se) ** 2
    if squared <= 0:
        return None
    df = interval.n - 1 + (_PRIOR_DF if interval.pooled else 0)
    squares = df * interval.n * interval.seed_se**2
    low, high = (
        _seeds_or_inf(
            math.sqrt(squared), math.sqrt(squares / special.chdtri(df, tail)), interval.alpha
        )
        for tail in (0.025, 0.975)
    )
    # It was not decided by as many as there are.
    return (max(low, interval.n + 1), max(high, interval.n + 1)) if low < math.inf else None


def _seeds_or_inf(effect: float, sd: float, alpha: float) -> float:
    if sd / effect > math.sqrt(_MOST_SEEDS):
        return math.inf
    seeds = seeds_for(effect, sd, alpha=alpha)
    return seeds if seeds <= _MOST_SEEDS else math.inf
