"""Statistics of paired differences: equivalence tests, Holm's correction, power, Wilson's interval.

All take the differences themselves, variant minus baseline, one for each seed, and assume that
those are normal.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from llama_ablate.evidence.student import above, noncentral_above, quantile, standard_error

_MOST_SEEDS = 1000  # cap on the seeds worth suggesting


def equivalence_p(differences: Sequence[float], margin: float) -> float:
    """Return the p of two one-sided t tests: small where the mean lies within +-margin.

    Schuirmann 1987, "A comparison of the two one-sided tests procedure and the power approach for
    assessing the equivalence of average bioavailability". Raises ValueError for a margin that is
    not above zero.
    """
    if not margin > 0:
        raise ValueError(f"a margin must be above 0, not {margin}")
    n = len(differences)
    if n < 2:
        return math.nan
    mean, error = float(np.mean(differences)), standard_error(differences)
    if error == 0:
        return 0.0 if abs(mean) < margin else 1.0
    return above((margin - abs(mean)) / error, n - 1)


def holm(ps: Sequence[float]) -> list[float]:
    """Return the p values adjusted for a table of several tests (Holm 1979, Scand. J. Stat. 6).

    The chance that any true hypothesis of the table is rejected at level a is at most a, however
    the tests depend on each other. NaN (no test was made) stays NaN and counts for nothing.
    """
    tested = [i for i, p in enumerate(ps) if not math.isnan(p)]
    adjusted = [math.nan] * len(ps)
    highest = 0.0
    for rank, i in enumerate(sorted(tested, key=lambda i: ps[i])):
        highest = max(highest, min(1.0, (len(tested) - rank) * ps[i]))
        adjusted[i] = highest
    return adjusted


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


def seeds_to_tell(differences: Sequence[float], margin: float | None, alpha: float) -> int | None:
    """Return the seeds that would show the margin, or else a mean as large as these have.

    None where fewer than two differences say nothing of the noise, where there is nothing to show,
    and where it would take more than a thousand.
    """
    if len(differences) < 2:
        return None
    sd, effect = float(np.std(differences, ddof=1)), margin or abs(float(np.mean(differences)))
    if effect == 0 or sd / effect > math.sqrt(_MOST_SEEDS):
        return None
    needed = seeds_for(effect, sd, alpha=alpha)
    return needed if needed <= _MOST_SEEDS else None


@cache
def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the 95% interval of a share (Wilson 1927, JASA 22): sound for none and for all."""
    from scipy import stats

    interval = stats.binomtest(hits, n).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)
