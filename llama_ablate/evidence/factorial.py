"""Main effects and two-way interactions of a factorial design, estimated by least squares.

A cell is a variant of the design: one combination of factor levels. Suffixes of array names state
their axes: C for cells, S for seeds, E for effects.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from llama_ablate.evidence.intervals import ALPHA, NOTHING, Array, join
from llama_ablate.evidence.text_error import StandardError

#: Names of the factors of an effect: one for a main effect, several for an interaction.
Factors = tuple[str, ...]
_ROUNDING = 1e-9  # smaller singular values and weights count as 0


class FactorEffect(NamedTuple):
    """Effect in a factorial design: a level change of a factor, or an interaction."""

    factors: Factors
    #: For each factor: its level before the change and its level after the change.
    levels: tuple[tuple[int, int], ...]


def every_effect(levels: Mapping[str, Sequence[int]], factors: Sequence[str]) -> list[FactorEffect]:
    """List the main effects of all level pairs, and the two-way interactions.

    `levels` maps each cell to its level of each factor. A factor with L levels has L (L - 1) / 2
    main effects. Two factors with L and M levels have (L - 1) (M - 1) interactions. An interaction
    combines a change of each factor, from the factor's most frequent level to another level; if
    several levels are equally frequent, from the lowest of these levels.
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
    """Return the cell weights of each estimable effect, as arrays of shape (C,).

    Least squares fits the losses with one parameter for each level of each factor; for
    interactions, also with one parameter for each pair of levels. A main effect is the difference
    of two levels in the first fit. An interaction is a difference of differences in the second fit:
    how a change of one factor alters the effect of a change of the other factor (Box, Hunter &
    Hunter 2005, Statistics for Experimenters, chapter 5). If all combinations of levels, or a
    balanced fraction of all combinations, were run, main effects and interactions equal differences
    of marginal means. An effect that cannot be separated from other effects of its fit is omitted.
    """
    return dict(Design.of(tuple(map(tuple, levels.values())), tuple(factors)).weights)


def contrasts(
    levels: Mapping[str, Sequence[int]],
    factors: Sequence[str],
    losses: ArrayLike,
    *,
    text_errors: Mapping[FactorEffect, StandardError] | None = None,
    alpha: float = ALPHA,
) -> pd.DataFrame:
    """Estimate all effects of a factorial design, with simultaneous 1 - alpha intervals.

    The effects are the keys of `weights(levels, factors)`. `losses` holds the losses in nats of the
    cells of `levels` by seed, (cells, seeds), with NaN for a missing run; every cell and every seed
    has at least one loss. Seeds are the independent repetitions: a shift that a seed causes in all
    cells cancels. `estimate_effects` describes the variance estimate.

    Returns the columns of `NOTHING`, with `effect`, its `weights` of the cells' mean losses, and
    `aliases`: the factors of the effects that are confounded with it. The frame is empty if no
    effect is estimable, or if `complete` cannot fill the missing losses.
    """
    design = Design.of(tuple(map(tuple, levels.values())), tuple(factors))
    table = np.asarray(losses, float)
    runs, completed = np.sum(~np.isnan(table), 1), complete(table)
    if np.isnan(completed).any() or not design.weights:
        return pd.DataFrame(columns=[*NOTHING, "effect", "weights", "aliases"])
    given_errors = text_errors or {}
    errors = [given_errors.get(effect, StandardError(0.0, math.inf)) for effect in design.weights]
    text_se, text_df = np.array([(error.se, error.df) for error in errors]).T
    estimates = estimate_effects(design, completed, runs, text_se, text_df, alpha / len(errors))
    return pd.DataFrame(
        {
            **estimates,
            "n": table.shape[1],
            "effect": [*design.weights],
            "weights": [*design.weights.values()],
            "aliases": [*design.aliases.values()],
        }
    )


def estimate_effects(
    design: "Design",
    losses_CS: ArrayLike,
    runs_C: ArrayLike,
    text_se_E: ArrayLike,
    text_df_E: ArrayLike,
    level: float,
) -> dict[str, NDArray[Any]]:
    """Estimate the effects of a design and their intervals from complete losses.

    `losses_CS` has the shape (..., C, S), and the columns of the result, which are those of
    `NOTHING`, have the shape (..., E). `runs_C` is the number of measured runs of each cell,
    `level` the two-sided error level of each interval. The variance of an effect is the residual
    variance after removing cell means and seed means.
    """
    losses, runs = np.asarray(losses_CS, float), np.asarray(runs_C, float)
    cells, seeds = losses.shape[-2:]
    rest = losses - losses.mean(-1, keepdims=True) - losses.mean(-2, keepdims=True)
    rest = rest + losses.mean((-2, -1), keepdims=True)
    weight_EC = np.array([*design.weights.values()])
    by_E = (weight_EC**2 / runs).sum(1)
    squares, df = (rest**2).sum((-2, -1)), float(runs.sum() - cells - seeds + 1)
    residual = squares / df if df > 0 else np.full(squares.shape, math.nan)
    error = np.sqrt(residual[..., None] * by_E)
    df_E = np.full(error.shape, df if df > 0 else math.nan)
    mean = losses.mean(-1) @ weight_EC.T
    pooled = np.full(error.shape, df > 0 and cells > 2)
    return {**join(mean, error, df_E, text_se_E, text_df_E, df_E + 1, level), "pooled": pooled}


def complete(losses: Array) -> Array:
    """Fill missing losses (NaN) in an array of shape (cells, seeds).

    A missing loss becomes the sum of its cell's and its seed's coefficient in the least squares fit
    to all measured losses, so that means over the filled array equal the fitted means (Yates 1933,
    Emp. J. Exp. Agric. 1). Return an array of NaN if the runs form groups that share neither cells
    nor seeds.
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
    """Cell weights of each effect of a factorial design, cached by cells and factors."""

    weights: Mapping[FactorEffect, NDArray[np.float64]]
    aliases: Mapping[FactorEffect, tuple[Factors, ...]]

    @staticmethod
    @lru_cache(maxsize=32)
    def of(cells: tuple[tuple[int, ...], ...], factors: Factors) -> "Design":
        """Compute the design from each cell's level of every factor."""
        every = [sorted(set(column)) for column in zip(*cells, strict=True)]
        coded = [
            np.eye(len(coding))[np.searchsorted(coding, column)]
            for coding, column in zip(every, zip(*cells, strict=True), strict=True)
        ]
        models = [_columns(coded, order) for order in (1, 2)]
        inverses = [np.linalg.pinv(model, rcond=_ROUNDING) for model in models]
        bases: dict[FactorEffect, NDArray[np.float64]] = {}
        for effect in every_effect(dict(zip(map(str, cells), cells, strict=True)), factors):
            chosen, order = [factors.index(name) for name in effect.factors], len(effect.factors)
            changed = [np.zeros((1, len(coding))) for coding in every]
            for i, (low, high) in zip(chosen, effect.levels, strict=True):
                changed[i][0, [every[i].index(low), every[i].index(high)]] = -1, 1
            wanted = _columns(changed, order, chosen)[0]
            weight = wanted @ inverses[order - 1]
            if np.allclose(weight @ models[order - 1], wanted, atol=_ROUNDING):
                bases[effect] = weight
        return Design(bases, _aliases(bases, coded, factors))


def _columns(
    parts: Sequence[NDArray[np.float64]], order: int, within: Sequence[int] = ()
) -> NDArray[np.float64]:
    """Return the design matrix: all products of up to `order` factors' columns.

    `parts` holds the level indicators of each factor, (rows, levels). Products that lack a factor
    of `within` (indices of factors) are set to 0.
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
    """Return for each effect the sets of factors whose effects are confounded with it."""
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
