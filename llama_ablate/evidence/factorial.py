"""Main effects and two-way interactions of a grid, by least squares.

Letters in names: C cells, S seeds, E effects.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llama_ablate.evidence.intervals import (
    ALPHA,
    NO_TEXT_ERROR,
    Array,
    Estimates,
    Interval,
    join,
)
from llama_ablate.evidence.student import f_tail
from llama_ablate.evidence.text_error import StandardError

#: The factors of a main effect (one) or of an interaction.
Factors = tuple[str, ...]
#: Chance that a factor whose effect does not vary over seeds is taken for one whose effect does.
_VARYING = 0.05
_ROUNDING = 1e-9  # singular values and weights below it are 0


class FactorEffect(NamedTuple):
    """Main effect of a change of one factor, or interaction of two."""

    factors: Factors
    #: From which level to which each of them changes.
    levels: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Contrast:
    """Estimated main effect or interaction, with its interval."""

    effect: FactorEffect
    #: Simultaneous over the design's contrasts; `pooled` unless the effect varies over seeds.
    interval: Interval
    #: Weight of each cell.
    weights: Mapping[str, float]
    #: Effects that the design's cells cannot tell apart from this one.
    aliases: tuple[Factors, ...]

    @property
    def factors(self) -> Factors:
        """The factors that change."""
        return self.effect.factors


def every_effect(levels: Mapping[str, Sequence[int]], factors: Sequence[str]) -> list[FactorEffect]:
    """List all main effects, and interactions from the levels that most cells have.

    `levels` gives each cell's level of each factor. A factor of L levels has L (L - 1) / 2 changes,
    two have (L - 1) (M - 1) together. Of levels that as many cells have the first counts.
    """
    columns = list(zip(*levels.values(), strict=True))
    effects = []
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
            effects += [FactorEffect(names, each) for each in itertools.product(*changes)]
    return effects


def weights(
    levels: Mapping[str, Sequence[int]], factors: Sequence[str]
) -> dict[FactorEffect, NDArray[np.float64]]:
    """Return the cell weights, (C,), of each estimable effect.

    The change of one factor is that of the least squares fit of a sum of one number for each level;
    of two, the difference of differences of the fit that has one for each pair of levels, too: what
    the change of one does to the effect of the other (Box, Hunter & Hunter 2005, Statistics for
    Experimenters, chapter 5). Where all combinations were run, or a balanced fraction, these are
    differences of marginal means. An effect that another one can take the place of is left out.
    """
    return dict(Design.of(tuple(map(tuple, levels.values())), tuple(factors)).weights)


def contrasts(
    levels: Mapping[str, Sequence[int]],
    factors: Sequence[str],
    losses: Mapping[str, Sequence[float]],
    *,
    text_errors: Mapping[FactorEffect, StandardError] | None = None,
    alpha: float = ALPHA,
) -> list[Contrast]:
    """Estimate every effect of `weights`, with intervals that hold all at once in 1 - alpha.

    `losses` are each cell's, in nats, the same seeds in the same order for all, NaN for a missing
    run; each cell and each seed has one. Seeds are the independent repetitions: what they shift in
    all cells alike cancels. See `estimate_effects` for the variance.
    """
    design = Design.of(tuple(map(tuple, levels.values())), tuple(factors))
    table = np.array([losses[cell] for cell in levels], float)
    runs, completed = np.sum(~np.isnan(table), 1), complete(table)
    if np.isnan(completed).any() or not design.weights:
        return []
    errors = [(text_errors or {}).get(effect, NO_TEXT_ERROR) for effect in design.weights]
    text_se, text_df = np.array([(error.se, error.df) for error in errors]).T
    estimates = estimate_effects(design, completed, runs, text_se, text_df, alpha / len(errors))
    intervals = estimates.intervals([table.shape[1]] * len(errors), alpha, len(errors))
    return [
        Contrast(effect, interval, dict(zip(levels, weight.tolist(), strict=True)), aliases)
        for (effect, weight), interval, aliases in zip(
            design.weights.items(), intervals, design.aliases.values(), strict=True
        )
    ]


def estimate_effects(
    design: "Design",
    losses_CS: ArrayLike,
    runs_C: ArrayLike,
    text_se_E: ArrayLike,
    text_df_E: ArrayLike,
    level: float,
) -> Estimates:
    """Estimate the effects of a design, (..., E), from losses (..., C, S) without missing ones.

    The variance is that of the residual after cells and seeds. Where the effect of a factor, or of
    two together, varies over seeds (F test of all their contrasts against the rest, 5%), it is
    that of their own differences over seeds. `runs_C` are the runs of each cell.
    """
    losses, runs = np.asarray(losses_CS, float), np.asarray(runs_C, float)
    cells, seeds = losses.shape[-2:]
    rest = losses - losses.mean(-1, keepdims=True) - losses.mean(-2, keepdims=True)
    rest = rest + losses.mean((-2, -1), keepdims=True)
    weight_EC = np.array([*design.weights.values()])
    by_E = (weight_EC**2 / runs).sum(1)
    squares, residual_df = (rest**2).sum((-2, -1)), float(runs.sum() - cells - seeds + 1)
    residual = squares / residual_df if residual_df > 0 else np.full(squares.shape, math.nan)
    variance = residual[..., None] * by_E
    df = np.full(variance.shape, residual_df if residual_df > 0 else math.nan)
    pooled = np.full(variance.shape, residual_df > 0 and cells > 2)
    for factors, basis_CK in design.spaces.items():
        own_df = basis_CK.shape[1] * (seeds - 1.0)
        sums = ((basis_CK.T @ rest) ** 2).sum((-2, -1))
        varies = _find_varying(sums, own_df, squares - sums, residual_df - own_df)[..., None]
        at = [i for i, effect in enumerate(design.weights) if effect.factors == factors]
        own_variance = (sums / max(own_df, 1.0))[..., None] * by_E[at]
        variance[..., at] = np.where(varies, own_variance, variance[..., at])
        df[..., at] = np.where(varies, own_df, df[..., at])
        pooled[..., at] &= ~varies
    mean, error = losses.mean(-1) @ weight_EC.T, np.sqrt(variance)
    return join(mean, error, df, text_se_E, text_df_E, df + 1, level, pooled)


def _find_varying(own: Array, own_df: float, others: Array, others_df: float) -> NDArray[np.bool_]:
    """Find effects that vary over seeds more than the others (F test)."""
    if own_df <= 0 or others_df < 1:
        return np.zeros(own.shape, bool)
    least = np.where(own > 0, own, 1.0) * _ROUNDING  # instead of a division by 0
    ratio = (own / own_df) / np.maximum(others / others_df, least)
    return np.asarray(f_tail(ratio, own_df, others_df) < _VARYING)


def complete(losses: Array) -> Array:
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
class Design:
    """Weights of a grid's cells in each effect, cached by its cells and factors."""

    weights: Mapping[FactorEffect, NDArray[np.float64]]
    aliases: Mapping[FactorEffect, tuple[Factors, ...]]
    #: An orthonormal basis of all contrasts of the same factors, (C, contrasts).
    spaces: Mapping[Factors, NDArray[np.float64]]

    @staticmethod
    @lru_cache(maxsize=32)
    def of(cells: tuple[tuple[int, ...], ...], factors: Factors) -> "Design":
        """Compute the weights of the cells' levels of each factor."""
        every = [sorted(set(column)) for column in zip(*cells, strict=True)]
        coded = [
            np.eye(len(coding))[np.searchsorted(coding, column)]
            for coding, column in zip(every, zip(*cells, strict=True), strict=True)
        ]
        models = [_columns(coded, order) for order in (1, 2)]
        inverses = [np.linalg.pinv(model, rcond=_ROUNDING) for model in models]
        bases: dict[FactorEffect, NDArray[np.float64]] = {}
        spaces: dict[Factors, NDArray[np.float64]] = {}
        for effect in every_effect(dict(zip(map(str, cells), cells, strict=True)), factors):
            chosen, order = [factors.index(name) for name in effect.factors], len(effect.factors)
            changed = [np.zeros((1, len(coding))) for coding in every]
            for i, (low, high) in zip(chosen, effect.levels, strict=True):
                changed[i][0, [every[i].index(low), every[i].index(high)]] = -1, 1
            wanted = _columns(changed, order, chosen)[0]
            weight = wanted @ inverses[order - 1]
            if np.allclose(weight @ models[order - 1], wanted, atol=_ROUNDING):
                bases[effect] = weight
                space = spaces.get(effect.factors, np.empty((len(cells), 0)))
                spaces[effect.factors] = _basis(np.column_stack([space, weight]))
        return Design(bases, _aliases(bases, coded, factors), spaces)


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
    product = np.ones((rows, 1))
    for part in parts:
        product = (product[:, :, None] * part[:, None, :]).reshape(rows, -1)
    return product


def _basis(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    basis, size, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(basis[:, size > _ROUNDING])


def _aliases(
    found: Mapping[FactorEffect, NDArray[np.float64]],
    coded: Sequence[NDArray[np.float64]],
    factors: Factors,
) -> dict[FactorEffect, tuple[Factors, ...]]:
    """Return the aliases of each effect: interactions of other factors."""
    aliases: dict[FactorEffect, tuple[Factors, ...]] = dict.fromkeys(found, ())
    rows = len(coded[0])
    signs = dict(zip(factors, (coding[:, 1:] - coding[:, :1] for coding in coded), strict=True))
    sets = [c for n in range(1, len(factors) + 1) for c in itertools.combinations(factors, n)]
    for names in sets if rows < math.prod(coding.shape[1] for coding in coded) else ():
        space = _basis(_product([signs[name] for name in names], rows))
        for effect, weight in found.items():
            inside = math.isclose(np.linalg.norm(space.T @ weight), np.linalg.norm(weight))
            if inside and names != effect.factors and space.shape[1] < rows - 1:
                aliases[effect] += (names,)
    return aliases
