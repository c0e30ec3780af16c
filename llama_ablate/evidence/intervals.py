"""Simultaneous confidence intervals of a table's differences, and the power of paired t tests.

All take the differences themselves, variant minus baseline, one for each seed, and assume that
those are normal.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llama_ablate.evidence.student import above, above_f, freedom, noncentral_above, quantile
from llama_ablate.evidence.text_error import StandardError

#: Seeds that say enough of their spread to count seeds by.
FEWEST_SEEDS = 5
_MOST_SEEDS = 1000  # cap on the seeds worth suggesting
#: Degrees of freedom of the variance that a row takes from the table's others.
PRIOR_DF = 2.0
_PRIOR_ROWS = 3  # fewest other rows whose mean variance is worth that much
_PRIOR_SEEDS = 3  # fewest seeds of a row that lends or takes
_UNLIKE = 2.0  # times the others' mean variance, beyond which a row takes less of it
_ALPHA = 0.05  # of a family
_UNEXPECTED = 0.2  # chance of a table's noise, below which it is unlike what was expected
#: Of a difference that a held-out text would show alike on every other.
EXACT = StandardError(0.0, math.inf)


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
    #: Degrees of freedom of the standard error: those of the Student t that the interval has.
    df: float
    #: Parts of the standard error: over seeds (with its degrees of freedom), over held-out texts.
    seed_se: float
    seed_df: float
    text_se: float
    text_df: float
    #: Whether the variance over seeds is moderated: by that of the table's other rows, or by what
    #: was expected of the row.
    pooled: bool

    def __neg__(self) -> "Interval":
        """Return the interval of the difference taken the other way round."""
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low)

    def widened(self, bias: tuple[float, float]) -> "Interval":
        """Return the interval that holds whatever a bias between two ends has added or taken.

        It never gets narrower: an end on the other side of 0 counts as 0.
        """
        less, more = max(bias[1], 0.0), min(bias[0], 0.0)
        if less == more == 0:
            return self
        beyond = max(self.mean - less, more - self.mean, 0.0)
        error = math.hypot(self.seed_se, self.text_se)
        times = _ALPHA / self.alpha
        tail = above(beyond / error, self.df) if error else 0.5 * (beyond == 0)
        low, high, p = self.low - less, self.high - more, min(times * 2 * tail, 1.0)
        return replace(self, low=low, high=high, p=p)

    def hull(self, other: "Interval") -> "Interval":
        """Return the interval with the ends that hold this one and another, if that has any.

        What leaves out 0, or lies within a margin, then does so in both.
        """
        if math.isnan(other.low):
            return self
        low, high = min(self.low, other.low), max(self.high, other.high)
        return replace(self, low=low, high=high, p=max(self.p, other.p))

    def inside(self, low: float, high: float) -> bool:
        """Return whether the whole interval lies between two values."""
        return low < self.low and self.high < high


def simultaneous(
    differences: Mapping[str, Sequence[float]],
    *,
    text_errors: Mapping[str, StandardError] | None = None,
    alpha: float = 0.05,
    family: float | None = None,
    shares: Mapping[str, float] | None = None,
    expected: Mapping[str, StandardError] | None = None,
) -> dict[str, Interval]:
    """Return an interval for each mean difference, such that all hold at once in 1 - alpha.

    Student's t at level 1 - alpha / m (Bonferroni), m the rows of the `family`, by default those
    given; a row named in `shares` spends that part of its level. The variance over seeds is
    moderated by a prior (Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3): two degrees of freedom at
    the mean variance of the other rows, where three others have one of three seeds or more, and
    what was `expected` of a row before it ran, a standard deviation with its degrees of freedom. A
    row with more than twice the prior's variance takes less of it, in proportion. The variance over
    held-out texts is added (`joined_df`). Of an infinite number nothing is known: a difference with
    one is left out.
    """
    text_errors, shares = text_errors or {}, shares or {}
    differences = {name: [*filter(math.isfinite, own)] for name, own in differences.items()}
    m = len(differences) if family is None else family
    seeds = _moderated(differences, expected or {})
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


def bias(repeated: Sequence[float]) -> tuple[float, float] | None:
    """Return the ends between which lies what all arms but the baseline may be off by alike.

    `repeated` are the differences of the baseline trained once more under another name with nothing
    changed, from the baseline: of every seed 0 where nothing is at fault and all arithmetic is
    deterministic; else Student's 95% interval of their mean. None where nothing bounds it: there
    are none, or one alone that is not 0.
    """
    if not any(repeated):
        return (0.0, 0.0) if repeated else None
    if len(repeated) < 2:
        return None
    own = simultaneous({"": repeated})[""]
    return own.low, own.high


def _moderated(
    differences: Mapping[str, Sequence[float]], expected: Mapping[str, StandardError]
) -> dict[str, tuple[float, float, bool]]:
    """Return each row's variance over seeds, its degrees of freedom, and whether it is moderated.

    A weight that falls with a row's variance needs no test of whether it is like the others, which
    struck a row of two tables in three by chance and left it with an interval several times as
    wide (tests/evidence/test_intervals.py).
    """
    variances = _variances(differences)
    lent = {
        name: variance
        for name, variance in variances.items()
        if variance > 0 and len(differences[name]) >= _PRIOR_SEEDS
    }
    total = sum(lent.values())
    kept = believed(differences, expected)
    rows = {}
    for name, variance in variances.items():
        df = math.nan if math.isnan(variance) else len(differences[name]) - 1.0
        rows[name] = (variance, df, False)
        priors = [(one.se**2, one.df) for one in [kept.get(name)] if one and variance > 0]
        if name in lent and len(lent) > _PRIOR_ROWS:
            priors.append(((total - variance) / (len(lent) - 1), PRIOR_DF))
        if priors:
            worth = sum(of for _, of in priors)
            prior = sum(square * of for square, of in priors) / worth
            weight = worth * min(1.0, _UNLIKE * prior / variance)
            moderated = (weight * prior + df * variance) / (weight + df)
            rows[name] = (moderated, weight + df, True)
    return rows


def _variances(differences: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {
        name: float(np.var(values, ddof=1)) if len(values) > 1 else math.nan
        for name, values in differences.items()
    }


def believed(
    differences: Mapping[str, Sequence[float]], expected: Mapping[str, StandardError]
) -> Mapping[str, StandardError]:
    """Return what was expected of the rows; nothing where the table is noisier than that allows.

    By an F test of all its variances together, at 20%: of tables four times as noisy as expected it
    lets 8 to 15% be wrong, where a test at 5% lets 14 to 22%, and costs half a percent of width in
    others (tests/evidence/test_noise.py). A table that is less noisy keeps what was expected: else
    two seeds that happen to agree would again have an interval of their own.
    """
    variances = _variances({name: differences.get(name, ()) for name in expected})
    known = [name for name, one in expected.items() if one.se > 0 and variances.get(name, 0.0) > 0]
    if not known:
        return {}
    dfs = [len(differences[name]) - 1 for name in known]
    ratios = [variances[name] / expected[name].se ** 2 for name in known]
    ratio = float(np.average(ratios, weights=dfs))
    worth = min(expected[name].df for name in known)
    return {} if above_f(ratio, sum(dfs), worth) < _UNEXPECTED else expected


def t_interval(
    values: Sequence[float],
    variance: float,
    df: float,
    pooled: bool,
    *,
    text: StandardError,
    alpha: float,
    times: float,
) -> Interval:
    """Return a Student-t interval at alpha / `times`; with no spread it is the point itself.

    `variance` is that of the values, with `df` degrees of freedom. The variance over held-out texts
    is added (`joined_df`).
    """
    n = len(values)
    mean = float(np.mean(values)) if n else math.nan
    seed_se = math.sqrt(variance / n) if n else math.nan
    error = math.hypot(seed_se, text.se)
    level, joined = alpha / times, df
    half, p = 0.0, 1.0 if mean == 0 else 0.0
    if error != 0:
        joined = joined_df(StandardError(seed_se, df), text, level)
        half = quantile(1 - level / 2, joined) * error
        p = min(times * 2 * above(abs(mean) / error, joined), 1.0)
    low, high = mean - half, mean + half
    return Interval(mean, low, high, n, p, level, joined, seed_se, df, text.se, text.df, pooled)


def joined_df(seeds: StandardError, text: StandardError, level: float) -> float:
    """Return the degrees of freedom of two independent errors together, at a two-sided level.

    Satterthwaite's (1946, Biometrics 2) are themselves estimated: the error over two seeds that
    happen to agree is near 0, and theirs is a verdict in 12 to 59% of tables without a difference
    (1 to 15 rows). The root of the sum of the squared half widths of both (Graybill & Wang 1980,
    JASA 75) holds for two seeds, and is up to a fifth too wide for five. The squared half width is
    between the two; the latter's weight is 5 / (2 f + 3), f the seeds' degrees of freedom. It is
    never less than the seeds' own: a further error makes nothing surer. Chosen by simulation
    (tests/evidence/test_few_seeds.py).
    """
    if seeds.se == 0 or text.se == 0:
        return text.df if seeds.se == 0 else seeds.df
    share, total = 1 - level / 2, seeds.se**2 + text.se**2
    satterthwaite = total**2 / (seeds.se**4 / seeds.df + text.se**4 / text.df)
    # Where the text's are fewer, two mean squares nearly cancel in it: it is small, not uncertain.
    each = (seeds.se, seeds.df), (text.se, max(seeds.df, text.df))
    summed = sum((se * quantile(share, df)) ** 2 for se, df in each)
    weight = 5 / (2 * seeds.df + 3)  # 1 for two seeds
    squared = weight * summed + (1 - weight) * total * quantile(share, satterthwaite) ** 2
    squared = max(squared, (seeds.se * quantile(share, seeds.df)) ** 2)
    return freedom(share, math.sqrt(squared / total))


def power(effect: float, sd: float, n: int, alpha: float = 0.05) -> float:
    """Return the chance that n paired seeds show an effect, by a two-sided t test.

    `sd` is that of the differences.
    """
    if n < 2:
        return 0.0
    return noncentral_above(quantile(1 - alpha / 2, n - 1), n - 1, effect / sd * math.sqrt(n))


def seeds_for(effect: float, sd: float, *, wanted: float = 0.8, alpha: float = 0.05) -> int:
    """Return how many paired seeds show an effect with a power of `wanted`, at least 2.

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


def seeds_needed(interval: Interval, distance: float) -> tuple[float, float] | None:
    """Return from how many to how many seeds would move the interval's end over a distance.

    With a power of 0.8 at the interval's own level, for both ends of the 95% interval of the
    deviation over seeds (chi-squared); the second is infinite beyond a thousand. None below five
    seeds, which say too little of it, and where no seeds would: the held-out text alone leaves
    more in doubt, or they would be more than a thousand.
    """
    if interval.n < FEWEST_SEEDS or not interval.seed_se > 0:
        return None
    from scipy import special

    # As many seeds as if there were no error from the text and the distance were that much less.
    errors = quantile(1 - interval.alpha / 2, math.inf) + quantile(0.8, math.inf)
    squared = distance**2 - (errors * interval.text_se) ** 2
    if squared <= 0:
        return None
    df = interval.seed_df
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
