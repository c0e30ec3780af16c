"""Main effects and two-way interactions of designs in which every factor has two levels."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence.intervals import EXACT, PRIOR_DF, Interval, t_interval
from llama_ablate.evidence.student import above_f
from llama_ablate.evidence.text_error import StandardError

#: The factors of a main effect (one) or of an interaction.
Factors = tuple[str, ...]

#: Share of the estimated degrees of freedom that is counted on. The estimate is itself noisy: with
#: all of them 7% of designs have a false effect where the variances of cells differ as much as in
#: real records, with three quarters 5% (tests/evidence/test_factorial.py).
_COUNTED = 0.75
#: Chance that a contrast no noisier than the others is taken to be.
_UNLIKE = 0.05


@dataclass(frozen=True)
class Contrast:
    """The main effect of one factor, or the interaction of two."""

    factors: Factors
    #: Simultaneous over the design's contrasts; `pooled` unless it is noisier than the others.
    interval: Interval
    #: Effects that the design's cells cannot tell apart from this one.
    aliases: tuple[Factors, ...]


def weights(
    levels: Mapping[str, Sequence[int]], factors: Sequence[str]
) -> dict[Factors, NDArray[np.float64]]:
    """Return what each main effect and two-way interaction weighs each cell by, (C,).

    `levels` gives each cell's level of each factor, 0 or 1. A main effect is the mean at level 1
    minus the mean at level 0; an interaction is that of the product of the two signs, half of what
    one factor changes about the other's effect (Box, Hunter & Hunter 2005, Statistics for
    Experimenters, chapter 5). Raises ValueError where the levels of one do not balance, or two
    cannot be told apart.
    """
    columns = _columns(levels, factors, 2)
    for (a, x), (b, y) in itertools.combinations(columns.items(), 2):
        if abs(x @ y) == len(levels):
            raise ValueError(f"{' x '.join(a)} and {' x '.join(b)} cannot be told apart")
    for names, column in columns.items():
        if column.sum() != 0:
            raise ValueError(f"the levels of {' x '.join(names)} do not balance")
    return {names: column * 2 / len(levels) for names, column in columns.items()}


def contrasts(
    levels: Mapping[str, Sequence[int]],
    factors: Sequence[str],
    losses: Mapping[str, Sequence[float]],
    *,
    text_errors: Mapping[Factors, StandardError] | None = None,
    alpha: float = 0.05,
) -> list[Contrast]:
    """Return every effect of `weights`, with intervals that hold all at once in 1 - alpha.

    `losses` are each cell's, in nats, the same seeds in the same order for all. Seeds are the
    independent repetitions: what they shift in all cells alike cancels. Every effect weighs all
    cells by the same amount, so all have the same variance, that of the residual after cells and
    seeds, even where the variances of the cells differ. Its degrees of freedom are Satterthwaite's
    (1946, Biometrics 2), estimated from the cells' residuals, and reduced for that.

    Where seeds change what a factor does, its effect is noisier than the residual says. An effect
    whose variance over seeds is larger than that of all others together (F test, 5%) has its own,
    moderated: with two degrees of freedom at that of the others, as rows are
    (`intervals.simultaneous`), but at full weight, and never less than the pooled one. Raises
    ValueError as `weights` does.
    """
    weighed = weights(levels, factors)
    values = np.array([losses[cell] for cell in levels], float)
    residual = _Residual.of(values)
    words = _words(levels, factors)
    rows = []
    for names, weight in weighed.items():
        own = weight @ values
        variance, df, pooled = residual.of_contrast(own)
        text = (text_errors or {}).get(names, EXACT)
        estimate = t_interval(
            list(own), variance, df, pooled, text=text, alpha=alpha, times=len(weighed)
        )
        rows.append(Contrast(names, estimate, _aliases(names, factors, words)))
    return rows


@dataclass(frozen=True)
class _Residual:
    """The residual of losses (cells, seeds) after the means of cells and of seeds."""

    cells: int
    seeds: int
    #: Mean square, and the degrees of freedom that it is worth; NaN for one seed.
    square: float
    df: float

    @classmethod
    def of(cls, losses: NDArray[np.float64]) -> "_Residual":
        """Estimate the degrees of freedom from the cells' own sums of squares.

        Where C cells have the variances v and f = seeds - 1, the mean square estimates mean(v) with
        f tr(P V)^2 / tr(P V P V) degrees of freedom: V is diag(v), and P takes off the mean over
        cells. A cell's sum of squares w has the mean f (P V P), on the diagonal, and if normal the
        mean square f (f + 2) times the square of that. Heavier tails make it larger, and so count
        as more unequal variances: fewer degrees of freedom.
        """
        cells, seeds = losses.shape
        f = seeds - 1
        if not f:
            return cls(cells, seeds, math.nan, math.nan)
        rest = losses - losses.mean(1, keepdims=True) - losses.mean(0) + losses.mean()
        own = (rest**2).sum(1)
        trace = float(own.sum() / f)
        if trace == 0 or cells == 2:
            return cls(cells, seeds, trace / (cells - 1), float(f))
        total = trace / (1 - 1 / cells)  # of the variances
        diagonal = (own**2).sum() / (f * (f + 2))
        squares = (diagonal - total**2 / cells**3) / (1 - 2 / cells) - (total / cells) ** 2
        df = f * trace**2 / max(squares, trace**2 / (cells - 1))
        return cls(cells, seeds, trace / (cells - 1), max(float(f), _COUNTED * df))

    def of_contrast(self, values: NDArray[np.float64]) -> tuple[float, float, bool]:
        """Return the variance of a contrast over seeds, its degrees of freedom, and if pooled."""
        pooled, others = self.square * 4 / self.cells, self.cells - 2
        if self.seeds < 2 or not others:
            return pooled, self.df, False
        own, f = float(values.var(ddof=1)), self.seeds - 1
        rest = max(0.0, (pooled * (self.cells - 1) - own) / others)
        rest_df = max(1.0, self.df * others / (self.cells - 1))
        if own > rest and (rest == 0 or above_f(own / rest, f, rest_df) < _UNLIKE):
            moderated = (f * own + PRIOR_DF * rest) / (f + PRIOR_DF)
            return max(pooled, moderated), f + PRIOR_DF, False
        return pooled, self.df, True


def _columns(
    levels: Mapping[str, Sequence[int]], factors: Sequence[str], most: int
) -> dict[Factors, NDArray[np.int_]]:
    """Return the product of the signs of up to `most` factors in each cell, (C,)."""
    signs = dict(zip(factors, 2 * np.array(list(levels.values())).T - 1, strict=True))
    return {
        names: np.prod([signs[name] for name in names], axis=0)
        for order in range(1, most + 1)
        for names in itertools.combinations(factors, order)
    }


def _words(levels: Mapping[str, Sequence[int]], factors: Sequence[str]) -> list[Factors]:
    """Return the defining words: products of factors whose sign is the same in every cell."""
    every = _columns(levels, factors, len(factors))
    return [names for names, column in every.items() if len(set(column)) == 1]


def _aliases(
    names: Factors, factors: Sequence[str], words: Sequence[Factors]
) -> tuple[Factors, ...]:
    """Return the effects whose signs are those of `names`, or their opposites, in every cell."""
    others = [set(names) ^ set(word) for word in words]
    return tuple(tuple(f for f in factors if f in other) for other in others)
