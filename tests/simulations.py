"""Simulate the rules of `llama_ablate.evidence`: power and false words of stacked tables.

    python -m tests.simulations [TABLES]     # prints results/reference/simulations.md

Letters in names: T tables, M rows, N seeds.
"""

import math
import sys
from collections.abc import Callable, Iterator

import numpy as np

from llama_ablate.evidence.factorial import Design, estimate_effects
from llama_ablate.evidence.intervals import ALPHA, estimate

SEEDS, ROWS, SHARES = (2, 3, 5, 8), (1, 2, 5, 10), (0.2, 0.6)
DOCUMENTS = 40
#: Distance of the two peaks of a run, in deviations of either, and the share of the second.
_PEAKS, _SECOND = 5.0, 0.25


def _two_peaks(generator, shape):
    """Draw runs of two kinds, with mean 0 and deviation 1."""
    drawn = generator.normal(size=shape) + _PEAKS * (generator.random(shape) < _SECOND)
    spread = math.sqrt(1 + _PEAKS**2 * _SECOND * (1 - _SECOND))
    return (drawn - _PEAKS * _SECOND) / spread


def _draw(kind, generator, tables, rows, seeds):
    """Draw the arms' and the baseline's runs, (T, M, N) and (T, 1, N), by the kind of noise."""
    arms_shape, base_shape = (tables, rows, seeds), (tables, 1, seeds)
    arms, base = generator.normal(size=arms_shape), generator.normal(size=base_shape)
    if kind == "unequal":
        arms = arms * np.exp(generator.normal(size=(tables, rows, 1)) / 2)
        base = base * np.exp(generator.normal(size=(tables, 1, 1)) / 2)
    elif kind == "skewed":
        arms = generator.exponential(size=arms_shape) - 1
        base = generator.exponential(size=base_shape) - 1
    elif kind == "t with 3 df":
        arms, base = (generator.standard_t(3, s) / math.sqrt(3) for s in (arms_shape, base_shape))
    elif kind == "all arms two-peaked":
        arms, base = _two_peaks(generator, arms_shape), _two_peaks(generator, base_shape)
    elif kind == "baseline two-peaked":
        base = _two_peaks(generator, base_shape)
    elif kind == "baseline 5 times as noisy":
        base = 5 * base
    elif kind == "one arm 4 times as noisy":
        arms[:, 0] *= 4
    return arms, base


USUAL = ("normal", "unequal", "skewed", "t with 3 df", "all arms two-peaked")
UNLIKE = ("baseline 5 times as noisy", "one arm 4 times as noisy", "baseline two-peaked")


def tables_of(kind, seeds, rows, share, tables, effect=0.0):
    """Draw tables whose rows differ from the baseline by an effect, in true standard errors.

    The text has a `share` of the variance of a difference's mean; half of either part is the
    baseline's. Returns differences (T, M, N), the estimated errors of the text, their df.
    """
    generator = np.random.default_rng(1000 * seeds + rows)
    arms, base = _draw(kind, generator, tables, rows, seeds)
    differences = (arms - base) * math.sqrt((1 - share) * seeds / 2)
    documents = generator.normal(size=(tables, rows + 1, DOCUMENTS)) * math.sqrt(share / 2)
    of_rows = (documents[:, 1:] - documents[:, :1]) * math.sqrt(DOCUMENTS)
    text_se = of_rows.std(-1, ddof=1) / math.sqrt(DOCUMENTS)
    shift = effect + of_rows.mean(-1)
    return differences + shift[..., None], text_se, DOCUMENTS - 1.0


def power(seeds, rows, share, tables):
    """Return the share of rows that four true standard errors show."""
    values, text_se, df = tables_of("normal", seeds, rows, share, tables, 4.0)
    found = estimate(values, text_se, df, ALPHA / rows)
    return float((found.mean - found.half > 0).mean())


def false_tables(kind, seeds, rows, share, tables):
    """Return the share of tables without a difference that have a word on any row."""
    values, text_se, df = tables_of(kind, seeds, rows, share, tables)
    found = estimate(values, text_se, df, ALPHA / rows)
    return float((np.abs(found.mean) > found.half).any(-1).mean())
