"""How often pairs of arms are ranked at one setting of training as they are at a larger one."""

import math
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llama_ablate.evidence.student import quantile

#: Fewest arms whose share has an interval.
FEWEST_ARMS = 5
#: The highest correlation of two pairs that share an arm, and how many arms it counts for.
_HIGHEST, _PRIOR_ARMS = 0.5, 15.0
_SUBSETS = 1_000  # of the seeds, at most


@dataclass(frozen=True)
class Share:
    """The share of pairs ranked alike, from 0 to 1, with its 95% interval.

    The interval is NaN for fewer than five arms, and all is NaN for no pair.
    """

    value: float
    low: float
    high: float
    pairs: int
    #: That are in any of the pairs.
    arms: int


def alike(small: ArrayLike, large: ArrayLike) -> NDArray[np.float64]:
    """Return 1 where two differences have one sign, 0 where they have not, 1/2 where one is 0."""
    signs = np.sign(np.asarray(small, float)) * np.sign(np.asarray(large, float))
    return np.asarray((1 + signs) / 2, float)


def share(first: ArrayLike, second: ArrayLike, ranked: ArrayLike) -> Share:
    """Return the mean over pairs of whether each is `ranked` alike (0 to 1), with its interval.

    `first` and `second` are the numbers of each pair's arms. Pairs that share an arm are not
    independent: where r is their correlation, k of n pairs say as much as n / (1 + r c / n)
    independent ones, c the number of ordered twos among them that share an arm. For those the
    interval is Wilson's. r is estimated by the mean product of the residuals of such twos, and
    joined with fifteen arms' worth of 1/2, the most that a population has (Daniels & Kendall 1947,
    Biometrika 34): few arms tell little of it, and where all pairs are ranked alike nothing.

    It holds for other arms drawn as these are, measured with as many seeds, whose noise the arms
    carry. It says nothing of other experiments, and where arms are cells of a factorial design
    nothing of other factors. Chosen by simulation, too wide rather than too narrow: of 5 to 17 arms
    95% are 93% at worst (one arm in eight against all others; of decided pairs alone 88%), and
    mostly 98% or more (tests/evidence/test_agreement.py).
    """
    ranked = np.asarray(ranked, float)
    n = len(ranked)
    if not n:
        return Share(math.nan, math.nan, math.nan, 0, 0)
    ends = np.concatenate([np.asarray(first, int), np.asarray(second, int)])
    _, arm, count = np.unique(ends, return_inverse=True, return_counts=True)
    mean, arms = float(ranked.mean()), len(count)
    if arms < FEWEST_ARMS:
        return Share(mean, math.nan, math.nan, n, arms)
    residual = ranked - mean
    by_arm = np.bincount(arm, np.tile(residual, 2))
    twos = float((count * (count - 1)).sum())
    r = _HIGHEST
    if 0 < mean < 1 and twos:
        product = float((by_arm**2).sum() - 2 * (residual**2).sum()) / twos
        own = product / (mean * (1 - mean))
        r = (_PRIOR_ARMS * _HIGHEST + arms * own) / (_PRIOR_ARMS + arms)
    independent = n / (1 + min(max(r, 0.0), _HIGHEST) * twos / n)
    return Share(mean, *_wilson(mean, independent), n, arms)


def _wilson(mean: float, n: float) -> tuple[float, float]:
    """Return the 95% interval of a share of n independent trials, n any number above 0."""
    squared = quantile(0.975, math.inf) ** 2
    middle = mean + squared / (2 * n)
    half = math.sqrt(squared * (mean * (1 - mean) + squared / (4 * n)) / n)
    low, high = ((middle + side * half) / (1 + squared / n) for side in (-1, 1))
    return low if mean else 0.0, high if mean < 1 else 1.0  # but for rounding, they are that


def with_seeds(small: ArrayLike, large: ArrayLike, n: int) -> float:
    """Return how often n seeds at the small setting rank a pair as the others do at the large.

    `small` and `large` are the pair's differences, one for each seed, the same seeds in the same
    order. The mean is over all ways to choose n of them, or a thousand drawn at random where there
    are more. No seed is on both sides: a run and its branch share their noise, and would agree by
    it. The others are noisy too, so that the share is lower than that of agreeing with the truth.
    Raises ValueError unless a seed is left on each side.
    """
    small, large = np.asarray(small, float), np.asarray(large, float)
    if len(small) != len(large) or not 0 < n < len(small):
        raise ValueError(f"{n} of {len(small)} and {len(large)} seeds leave none for one side")
    chosen = _subsets(len(small), n)
    return float(alike(chosen @ small, (1 - chosen) @ large).mean())


@cache
def _subsets(total: int, n: int) -> NDArray[np.float64]:
    """Return ways to choose n of a number of seeds: a row of 0 and 1 for each."""
    if math.comb(total, n) <= _SUBSETS:
        rows = [*combinations(range(total), n)]
    else:
        generator = np.random.default_rng(0)
        rows = [tuple(generator.permutation(total)[:n]) for _ in range(_SUBSETS)]
    chosen = np.zeros((len(rows), total))
    np.put_along_axis(chosen, np.asarray(rows), 1.0, axis=1)
    return chosen
