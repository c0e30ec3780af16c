"""Statistical power of an experiment, simulated with the noise of a pilot experiment.

The half width of an interval depends on the seeds, on the documents of the held-out text, on the
table's other rows and on the looks (interim analyses). No formula covers all of these influences.
Therefore tables of differences are simulated and judged by the functions that judge measured
tables. Suffixes of array names state their axes: T for tables, M for rows, N or S for seeds, E for
effects.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llama_ablate.evidence.factorial import Design, FactorEffect, estimate_effects
from llama_ablate.evidence.intervals import (
    ALPHA,
    NO_TEXT_ERROR,
    PRIOR_DF,
    Array,
    Estimates,
    estimate,
    join_errors,
)
from llama_ablate.evidence.text_error import StandardError

#: Default power to aim for.
WANTED = 0.8
#: Number of simulated tables: a power is then accurate to 0.02, a half width to a few percent.
TABLES = 400
#: Numbers of seeds, and factors on the number of held-out documents, to try.
SEEDS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
DOCUMENTS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
#: Assumed standard deviation over seeds of a paired difference without a pilot, in nats: the value
#: over 33 experiments of this repository with 0.1M to 10M parameters, accurate to a factor of two.
USUAL_SD = 0.017


@dataclass(frozen=True)
class Noise:
    """Noise of a paired difference, in nats per token or bits per byte.

    Each part is an estimate with its degrees of freedom.
    """

    #: Standard deviation of the paired differences over seeds.
    seeds: StandardError
    #: Standard error from the held-out text.
    text: StandardError = NO_TEXT_ERROR
    #: Degrees of freedom with which the text error will be estimated.
    text_df: float = math.inf

    def with_documents(self, factor: float) -> "Noise":
        """Return the noise expected with `factor` times as many documents."""
        text = replace(self.text, se=self.text.se / math.sqrt(factor))
        return replace(self, text=text, text_df=self.text_df * factor)


@dataclass(frozen=True)
class DrawnTables:
    """Simulated tables, (T, M), of rows without a true difference from the baseline."""

    #: Smallest true effect whose interval excludes 0 on the effect's side at one of the looks.
    needed: Array
    #: Half widths of the intervals, at the last look.
    halves: Array

    def power(self, effect: float) -> Array:
        """Return each row's power to detect an effect, (M,).

        It is the share of tables in which the row's interval excludes 0 on the side of the effect.
        """
        return np.asarray((abs(effect) > self.needed).mean(0), float)

    def detectable(self, wanted: float = WANTED) -> Array:
        """Return the smallest effect that each row detects with power `wanted`, (M,)."""
        return np.quantile(self.needed, wanted, axis=0)

    def half_widths(self) -> Array:
        """Return the 5, 50 and 95% quantiles of each row's half width, (3, M)."""
        return np.quantile(self.halves, (0.05, 0.5, 0.95), axis=0)


@dataclass(frozen=True)
class Stopped:
    """Simulated tables with a true effect, whose rows stop at interim looks."""

    #: Probability that each row's interval excludes 0 on the side of the effect, (M,).
    power: Array
    #: Number of seeds at which each row stops, and its half width there, (T, M).
    seeds: Array
    halves: Array

    def half_widths(self) -> Array:
        """Return the 5, 50 and 95% quantiles of each row's half width, (3, M)."""
        return np.quantile(self.halves, (0.05, 0.5, 0.95), axis=0)


def expected_half_width(
    seeds: int, rows: int, noise: Noise, *, cells: int = 2, spread: float = 1.0
) -> float:
    """Compute the expected half width of a row's interval in closed form.

    `rows` is the number of rows in the table; all rows are assumed to be equally noisy. For a
    factorial design, `cells` is its number of cells, and `spread` the noise of an effect divided by
    the noise of a row.
    """
    prior = PRIOR_DF if cells == 2 and rows > 1 else 0.0
    df = (cells - 1.0) * (seeds - 1.0) + prior
    error, level = noise.seeds.se * spread / math.sqrt(seeds), ALPHA / rows
    return float(join_errors(error, df, noise.text.se, noise.text_df, df + 1 - prior, level))


def simulate_rows(
    noise: Sequence[Noise],
    looks: Sequence[int],
    shares: Sequence[float] = (1.0,),
    *,
    known: bool = False,
    tables: int = TABLES,
) -> DrawnTables:
    """Simulate tables of variants without a true difference from the baseline.

    All rows are compared with the same baseline runs, so half of the noise variance is common to
    all rows. `looks` lists the numbers of seeds at which the rows are judged, `shares` the fraction
    of the error level that each look spends. With `known` the noise estimates are taken as exact;
    otherwise the true noise is drawn from the uncertainty of the estimates.
    """
    values, text_se, text_df = _draw(noise, looks[-1], 0.0, tables, known=known)
    needed = np.full(text_se.shape, math.inf)
    for seeds, share in zip(looks, shares, strict=True):
        level = ALPHA * share / len(noise)
        estimates = estimate(values[..., :seeds], text_se, text_df, level)
        needed = np.minimum(needed, estimates.half - estimates.mean)
    return DrawnTables(needed, estimates.half)


def simulate_factors(
    levels: Mapping[str, Sequence[int]],
    factors: Sequence[str],
    residual: StandardError,
    texts: Mapping[FactorEffect, Noise],
    seeds: int,
    *,
    known: bool = False,
    tables: int = TABLES,
) -> DrawnTables:
    """Simulate tables of a factorial design, whose rows are the effects of `contrasts`.

    `residual` is the standard deviation of a cell's loss over seeds, without the shift that a seed
    causes in all cells. `texts` holds the text error of each effect. `known` has the same meaning
    as in `simulate_rows`.
    """
    generator = np.random.default_rng(0)
    design = Design.of(tuple(map(tuple, levels.values())), tuple(factors))
    sds = _draw_true([residual], tables, generator, known=known)
    losses = sds[..., None] * generator.standard_normal((tables, len(levels), seeds))
    effect_texts = [texts[effect] for effect in design.weights]
    true, text_se, text_df = _draw_texts(effect_texts, tables, generator, known=known)
    runs, level = np.full(len(levels), seeds), ALPHA / max(len(effect_texts), 1)
    estimates = estimate_effects(design, losses, runs, text_se, text_df, level)
    shifts = true * generator.standard_normal(true.shape)
    return DrawnTables(estimates.half - estimates.mean - shifts, estimates.half)


def with_looks(
    noise: Sequence[Noise],
    effect: float,
    looks: Sequence[int],
    shares: Sequence[float],
    margin: float | None = None,
    *,
    known: bool = False,
    tables: int = TABLES,
) -> Stopped:
    """Simulate tables with a true effect, and stop each row by the experiment's rules.

    `looks` and `shares` have the same meaning as in `simulate_rows`. A row stops at the first look
    at which its interval excludes 0 or lies within the equivalence margin.
    """
    values, text_se, text_df = _draw(noise, looks[-1], effect, tables, known=known)
    seeds, share = np.array(looks), np.array(shares)
    at = np.zeros(text_se.shape, int)
    mean, half = np.full((2, *at.shape), math.nan)
    goes_on = np.ones(at.shape, bool)
    for look in range(len(looks)):
        at = np.where(goes_on, look, at)
        estimates = _at_looks(values, text_se, text_df, seeds[at], ALPHA * share[at] / len(noise))
        mean, half = np.where(goes_on, [estimates.mean, estimates.half], [mean, half])
        is_small = np.abs(mean) + half < (margin or 0.0)
        goes_on &= ~((np.abs(mean) > half) | is_small)
    is_shown = (mean - half > 0) if effect > 0 else (mean + half < 0)
    return Stopped(is_shown.mean(0), seeds[at].astype(float), half)


def _at_looks(
    values_TMN: Array, text_se: Array, text_df: Array, seeds_TM: NDArray[np.int_], level: Array
) -> Estimates:
    """Estimate tables whose rows have different numbers of seeds."""
    taken = np.arange(values_TMN.shape[-1]) < seeds_TM[..., None]
    return estimate(np.where(taken, values_TMN, math.nan), text_se, text_df, level)


def fewest(
    draw: Callable[[float], DrawnTables],
    effect: float,
    among: Sequence[float],
    row: int,
    wanted: float = WANTED,
) -> float:
    """Return the smallest size at which a row detects an effect; infinity for none.

    `draw` simulates tables of a size: a number of seeds, or a factor on the number of documents.
    `among` lists the sizes to try in ascending order, and `row` is the index of the row.
    """
    at = bisect_left(among, wanted, key=lambda size: draw(size).power(effect)[row])
    return among[at] if at < len(among) else math.inf


def _draw(
    noise: Sequence[Noise], seeds: int, effect: float, tables: int, *, known: bool
) -> tuple[Array, Array, Array]:
    """Simulate T tables of M rows and N seeds.

    Returns the differences, (T, M, N), and the estimated text error of each row with its degrees of
    freedom. Half of a row's variance over seeds comes from the baseline, which all rows of a table
    share. The true text error shifts all seeds of a row by the same amount.
    """
    generator = np.random.default_rng(0)
    sds = _draw_true([row.seeds for row in noise], tables, generator, known=known)
    true, text_se, text_df = _draw_texts(noise, tables, generator, known=known)
    parts = generator.standard_normal((tables, len(noise) + 1, seeds)) / math.sqrt(2)
    shifts = effect + true * generator.standard_normal(true.shape)
    values = shifts[..., None] + sds[..., None] * (parts[:, :-1] + parts[:, -1:])
    return values, text_se, text_df


def _draw_texts(
    noise: Sequence[Noise], tables: int, generator: np.random.Generator, *, known: bool
) -> tuple[Array, Array, Array]:
    """Draw true text errors and estimates of the true errors, with degrees of freedom.

    The errors have the shape (T, M), the degrees of freedom (M,).
    """
    true = _draw_true([row.text for row in noise], tables, generator, known=known)
    df = np.array([row.text_df for row in noise])
    finite = np.where(np.isfinite(df), df, 1.0)
    factor = np.where(np.isfinite(df), generator.chisquare(finite, true.shape) / finite, 1.0)
    return true, true * np.sqrt(factor), df


def _draw_true(
    estimates: Sequence[StandardError], tables: int, generator: np.random.Generator, *, known: bool
) -> Array:
    """Draw true standard errors, (T, M), given estimates of the standard errors.

    The variances follow scaled inverse chi-squared distributions; with `known`, the true standard
    errors equal the estimates.
    """
    se = np.array([estimate.se for estimate in estimates])
    df = np.array([math.inf if known else estimate.df for estimate in estimates])
    finite = np.where(np.isfinite(df), df, 1.0)
    factor = generator.chisquare(finite, (tables, len(estimates))) / finite
    return np.asarray(se / np.sqrt(np.where(np.isfinite(df), factor, 1.0)), float)
