"""Effects of the axes of a grid, one against another level and two together, by least squares."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

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
_NOUGHT = 1e-9  # of singular values and of weights, below which they are 0


class FactorEffect(NamedTuple):
    """A change of one factor from a level to another, or of two factors together."""

    factors: Factors
    #: From which level to which each of them changes.
    levels: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Contrast:
    """What a change of one factor does, or what two do together."""

    effect: FactorEffect
    #: Simultaneous over the design's contrasts; `pooled` unless it is noisier than the others.
    interval: Interval
    #: What it weighs each cell by.
    weights: Mapping[str, float]
    #: Effects that the design's cells cannot tell apart from this one.
    aliases: tuple[Factors, ...]

    @property
    def factors(self) -> Factors:
        """The factors that change."""
        return self.effect.factors


def every_effect(levels: Mapping[str, Sequence[int]], factors: Sequence[str]) -> list[FactorEffect]:
    """Return all changes of one factor, and of two from the levels that most cells have.

    `levels` gives each cell's level of each factor. A factor of L levels has L (L - 1) / 2 changes,
    two have (L - 1) (M - 1) together. Of levels that as many cells have the first counts.
    """
    columns = list(zip(*levels.values(), strict=True))
    found = []
    for order in (1, 2):
        for chosen in itertools.combinations(range(len(factors)), order):
            changes = [list(itertools.combinations(sorted(set(columns[i])), 2)) for i in chosen]
            if order == 2:
                usual = [max(sorted(set(columns[i])), key=columns[i].count) for i in chosen]
                changes = [
                    [(base, level) for level in sorted(set(columns[i]) - {base})]
                    for i, base in zip(chosen, usual, strict=True)
                ]
            names = tuple(factors[i] for i in chosen)
            found += [FactorEffect(names, each) for each in itertools.product(*changes)]
    return found


def weights(
    levels: Mapping[str, Sequence[int]], factors: Sequence[str]
) -> dict[FactorEffect, NDArray[np.float64]]:
    """Return what each effect that the cells can tell weighs each of them by, (C,).

    The change of one factor is that of the least squares fit of a sum of one number for each level;
    of two, of the fit that has one for each pair of levels, too: half of what the change of one
    does to the effect of the other (Box, Hunter & Hunter 2005, Statistics for Experimenters,
    chapter 5). Where all combinations were run, or a balanced fraction, these are differences of
    marginal means. An effect that another one can take the place of is left out.
    """
    return dict(_Design.of(tuple(map(tuple, levels.values())), tuple(factors)).weights)


def contrasts(
    levels: Mapping[str, Sequence[int]],
    factors: Sequence[str],
    losses: Mapping[str, Sequence[float]],
    *,
    text_errors: Mapping[FactorEffect, StandardError] | None = None,
    alpha: float = 0.05,
) -> list[Contrast]:
    """Return every effect of `weights`, with intervals that hold all at once in 1 - alpha.

    `losses` are each cell's, in nats, the same seeds in the same order for all, NaN for a run that
    there is not; each cell and each seed has one. Seeds are the independent repetitions: what they
    shift in all cells alike cancels. A run that is missing takes nothing from the others: a cell's
    mean is that of the least squares fit of a number for each cell and for each seed.

    An effect's variance is the sum of those of the cells that it weighs, each estimated from what
    is left of its losses after cells and seeds (MacKinnon & White 1985, J. Econometrics 29: HC2).
    Where it weighs all cells alike that is the residual's, even where the variances of cells
    differ. Its degrees of freedom are Satterthwaite's (1946, Biometrics 2), estimated from the
    cells' residuals, and reduced for that.

    Where seeds change what a factor does, its effect is noisier than the residual says. An effect
    whose variance over seeds is larger than that of all others together (F test, 5%) has its own,
    moderated: with two degrees of freedom at that of the others, as rows are
    (`intervals.simultaneous`), but at full weight, and never less than the pooled one.
    """
    design = _Design.of(tuple(map(tuple, levels.values())), tuple(factors))
    fit = _Fit.of(np.array([losses[cell] for cell in levels], float))
    if np.isnan(fit.losses).any():
        return []
    rows = []
    for effect, weight in design.weights.items():
        estimated = fit.of_contrast(weight, design.spaces[effect.factors])
        text = (text_errors or {}).get(effect, EXACT)
        interval = t_interval(*estimated, text=text, alpha=alpha, times=len(design.weights))
        by = dict(zip(levels, map(float, weight), strict=True))
        rows.append(Contrast(effect, interval, by, design.aliases[effect]))
    return rows


def completed(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fill the missing runs (NaN) of a table of cells and seeds.

    Each gets the sum of its cell's and its seed's number in the least squares fit to all others, so
    that means over the whole table are those of the fit (Yates 1933, Emp. J. Exp. Agric. 1). All
    are NaN where the runs fall apart into parts that share neither cells nor seeds.
    """
    present = ~np.isnan(losses)
    if present.all():
        return losses
    coded = np.hstack(
        [np.eye(size)[at] for size, at in zip(losses.shape, np.nonzero(present), strict=True)]
    )
    fit, _, rank, _ = np.linalg.lstsq(coded, losses[present])
    if rank < sum(losses.shape) - 1:
        return np.full(losses.shape, math.nan)
    cells, seeds = np.split(fit, [len(losses)])
    return np.where(present, losses, cells[:, None] + seeds)


@dataclass(frozen=True, eq=False)
class _Design:
    """What the effects of a grid weigh its cells by."""

    weights: Mapping[FactorEffect, NDArray[np.float64]]
    aliases: Mapping[FactorEffect, tuple[Factors, ...]]
    #: An orthonormal basis of all contrasts of the same factors, (C, contrasts).
    spaces: Mapping[Factors, NDArray[np.float64]]

    @staticmethod
    @lru_cache(maxsize=32)
    def of(cells: tuple[tuple[int, ...], ...], factors: Factors) -> "_Design":
        every = [sorted(set(column)) for column in zip(*cells, strict=True)]
        coded = [
            np.eye(len(own))[np.searchsorted(own, column)]
            for own, column in zip(every, zip(*cells, strict=True), strict=True)
        ]
        models = [_columns(coded, order) for order in (1, 2)]
        inverses = [np.linalg.pinv(model, rcond=_NOUGHT) for model in models]
        found: dict[FactorEffect, NDArray[np.float64]] = {}
        spaces: dict[Factors, NDArray[np.float64]] = {}
        for effect in every_effect(dict(zip(map(str, cells), cells, strict=True)), factors):
            chosen, order = [factors.index(name) for name in effect.factors], len(effect.factors)
            changed = [np.zeros((1, len(own))) for own in every]
            for i, (low, high) in zip(chosen, effect.levels, strict=True):
                changed[i][0, [every[i].index(low), every[i].index(high)]] = -1, 1
            wanted = _columns(changed, order, chosen)[0] / 2 ** (order - 1)
            weight = wanted @ inverses[order - 1]
            if np.allclose(weight @ models[order - 1], wanted, atol=_NOUGHT):
                found[effect] = weight
                known = spaces.get(effect.factors, np.empty((len(cells), 0)))
                spaces[effect.factors] = _basis(np.column_stack([known, weight]))
        return _Design(found, _aliases(found, coded, factors), spaces)


@dataclass(frozen=True, eq=False)
class _Fit:
    """Losses (cells, seeds) as the sum of a number for each cell and for each seed."""

    #: With the missing ones filled in; and what is left of each.
    losses: NDArray[np.float64]
    rest: NDArray[np.float64]
    present: NDArray[np.bool_]
    #: Of each cell, estimated; NaN for one seed.
    variances: NDArray[np.float64]
    #: Degrees of freedom that a contrast has of its own: of whole tables, seeds - 1.
    freedom: float

    @classmethod
    def of(cls, losses: NDArray[np.float64]) -> "_Fit":
        present, losses = ~np.isnan(losses), completed(losses)
        cells, seeds = losses.shape
        rest = losses - losses.mean(1, keepdims=True) - losses.mean(0) + losses.mean()
        runs = present.sum(1)
        total = float(present.sum() - cells - seeds + 1)
        if total <= 0:
            return cls(losses, rest, present, np.full(cells, math.nan), math.nan)
        own = (rest**2).sum(1)
        worth = (runs - 1) * total / (present.sum() - cells)
        variances = np.where(runs > 1, own / np.maximum(worth, _NOUGHT), own.sum() / total)
        return cls(losses, rest, present, variances, total / (cells - 1))

    def of_contrast(
        self, weight: NDArray[np.float64], space: NDArray[np.float64]
    ) -> tuple[list[float], float, float, bool]:
        """Return a contrast by seed, its variance, the degrees of freedom of that, and if pooled.

        Its mean over seeds is the estimate; the variance is that of one seed of so many.
        """
        cells, seeds = self.losses.shape
        values, by = weight @ self.losses, weight**2 * seeds / self.present.sum(1)
        pooled, df = float(by @ self.variances), self._freedom_of(by)
        varying = [
            self._over_seeds(by, basis, pooled, df)
            for basis in (weight[:, None] / np.linalg.norm(weight), space)
        ]
        variance, freedom = max([(pooled, df), *filter(None, varying)], key=lambda one: one[0])
        is_pooled = not any(varying) and not math.isnan(pooled) and cells > 2
        return values.tolist(), variance, freedom, is_pooled

    def _over_seeds(
        self, by: NDArray[np.float64], basis: NDArray[np.float64], pooled: float, df: float
    ) -> tuple[float, float] | None:
        """Return the variance that a contrast has where a space of contrasts varies over seeds.

        With its degrees of freedom; None where the space is no noisier than all others together.
        """
        cells, size = basis.shape
        # What the space itself is of the residuals that the variance is estimated from.
        held = (basis**2).sum(1)
        part = cells / (cells - 1) * float(by @ held) / by.sum() / size
        if math.isnan(pooled) or self.losses.shape[1] < 2 or size * part > 1 - _NOUGHT:
            return None
        f = size * self.freedom
        own = by.sum() * float(((basis.T @ self.rest) ** 2).sum()) / f
        others = max(0.0, (pooled - size * part * own) / (1 - size * part))
        of_others = max(1.0, df * (1 - size * part))
        if own > others and (others == 0 or above_f(own / others, f, of_others) < _UNLIKE):
            return max(pooled, (f * own + PRIOR_DF * others) / (f + PRIOR_DF)), f + PRIOR_DF
        return None

    def _freedom_of(self, by: NDArray[np.float64]) -> float:
        """Return the degrees of freedom of a sum of the cells' variances, each weighed.

        Where C cells have the variances v, f degrees of freedom each and the weights G, the sum of
        the cells' mean squares has f tr(G P V P)^2 / tr(G P V P G P V P) of them: V is diag(v), and
        P takes off the mean over cells. The diagonal of that is taken as it is, the rest as if all
        weights were alike, which is never more. A cell's mean square, if normal, has f + 2 over f
        times the square of its mean for a mean square. Heavier tails make it larger, and so count
        as more unequal variances: fewer degrees of freedom.
        """
        cells, f = len(by), self.freedom
        if math.isnan(f) or cells == 2 or not by @ self.variances > 0:
            return f
        weighed = by * self.variances
        total, diagonal = weighed.sum(), ((weighed * (1 - 1 / cells)) ** 2).sum() * f / (f + 2)
        squares = (diagonal - total**2 / cells**3) / (1 - 2 / cells) - (total / cells) ** 2
        trace = (total * (1 - 1 / cells)) ** 2
        most = (cells - 1) * by.sum() ** 2 / (cells * (by**2).sum())  # of equal variances
        return max(f, _COUNTED * f * float(trace / max(squares, trace / most)))


def _columns(
    parts: Sequence[NDArray[np.float64]], order: int, within: Sequence[int] = ()
) -> NDArray[np.float64]:
    """Return the products of up to `order` factors' columns; 0 where those `within` take no part.

    `parts` has for each factor what each row has of its levels, (rows, levels).
    """
    terms = [
        chosen for n in range(order + 1) for chosen in itertools.combinations(range(len(parts)), n)
    ]
    return np.hstack(
        [
            _product([parts[i] for i in term], len(parts[0])) * ({*within} <= {*term})
            for term in terms
        ]
    )


def _product(parts: Sequence[NDArray[np.float64]], rows: int) -> NDArray[np.float64]:
    found = np.ones((rows, 1))
    for part in parts:
        found = (found[:, :, None] * part[:, None, :]).reshape(rows, -1)
    return found


def _basis(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    basis, size, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(basis[:, size > _NOUGHT])


def _aliases(
    found: Mapping[FactorEffect, NDArray[np.float64]],
    coded: Sequence[NDArray[np.float64]],
    factors: Factors,
) -> dict[FactorEffect, tuple[Factors, ...]]:
    """Return for each effect the other factors whose interaction could be all of it."""
    aliases: dict[FactorEffect, tuple[Factors, ...]] = dict.fromkeys(found, ())
    rows = len(coded[0])
    signs = dict(zip(factors, (own[:, 1:] - own[:, :1] for own in coded), strict=True))
    sets = [c for n in range(1, len(factors) + 1) for c in itertools.combinations(factors, n)]
    for names in sets if rows < math.prod(own.shape[1] for own in coded) else ():
        space = _basis(_product([signs[name] for name in names], rows))
        for effect, weight in found.items():
            inside = math.isclose(np.linalg.norm(space.T @ weight), np.linalg.norm(weight))
            if inside and names != effect.factors and space.shape[1] < rows - 1:
                aliases[effect] += (names,)
    return aliases
