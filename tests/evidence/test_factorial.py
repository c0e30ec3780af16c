import itertools
import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.design.variants import half_fraction
from llama_ablate.evidence.factorial import FactorEffect, contrasts, weights
from llama_ablate.evidence.intervals import join_errors
from llama_ablate.evidence.text_error import StandardError
from tests.evidence.rows import most

FIVE = ["norm", "position", "attention", "feedforward", "block"]
#: Losses of sixteen cells and three seeds of a half fraction.
RECORDS = np.random.default_rng(7).normal(2.2, 0.03, (16, 3))


def named(runs):
    return {f"v{i}": run for i, run in enumerate(runs)}


def by_effect(runs, losses, factors=FIVE, **more):
    """Return the rows of runs with losses (cells, seeds), by their effects."""
    found = contrasts(named(runs), factors, losses, **more)
    return {row.effect: row for row in found.itertuples(index=False)}


def by_factors(*args, **more):
    return {effect.factors: row for effect, row in by_effect(*args, **more).items()}


@pytest.mark.parametrize("factors", [5, 6])
def test_a_half_fraction_has_resolution_five_or_more(factors):
    """Half of all runs; every contrast balances and no two of them are aliases."""
    runs = np.array(half_fraction(factors))
    assert len(runs) == 2 ** (factors - 1) == len({tuple(run) for run in runs})
    assert not runs[0].any()
    signs = 2 * runs - 1
    columns = [signs[:, i] for i in range(factors)]
    columns += [signs[:, i] * signs[:, j] for i, j in itertools.combinations(range(factors), 2)]
    gram = np.array(columns) @ np.array(columns).T
    assert np.array_equal(gram, len(runs) * np.eye(len(columns)))


def test_aliases_are_the_effects_with_the_same_signs_in_every_cell():
    runs = half_fraction(5)
    signs = 2 * np.array(runs) - 1
    for names, one in by_factors(runs, RECORDS).items():
        own = signs[:, [FIVE.index(name) for name in names]].prod(1)
        same = {
            other
            for order in range(1, 6)
            for other in itertools.combinations(FIVE, order)
            if abs(own @ signs[:, [FIVE.index(name) for name in other]].prod(1)) == 16
        }
        assert set(one.aliases) == same - {names}
        assert [len(alias) for alias in one.aliases] == [5 - len(names)]


@pytest.mark.parametrize("seeds", [2, 3])
def test_the_error_of_every_contrast_is_that_of_least_squares_with_cells_and_seeds(seeds):
    """The residual of the two-way table without interaction, on 15 x (seeds - 1) df."""
    losses, df = RECORDS[:, :seeds], 15 * (seeds - 1)
    cell, seed = np.divmod(np.arange(losses.size), seeds)
    table = np.hstack([np.eye(16)[cell], np.eye(seeds)[seed][:, 1:]])
    rest = np.linalg.lstsq(table, losses.ravel(), rcond=None)[1].item()
    for names, row in by_factors(half_fraction(5), losses).items():
        expected = 2 ** len(names) * math.sqrt(rest / df / losses.size)
        assert row.seed_se == pytest.approx(expected)
        assert (row.df, row.n, row.alpha) == (df, seeds, pytest.approx(0.05 / 15))
        half = stats.t.ppf(1 - 0.05 / 30, df) * row.seed_se
        assert (row.high - row.mean, row.pooled) == (pytest.approx(half), True)


def test_one_seed_has_effects_without_intervals():
    alone = RECORDS[:, :1]
    for row in by_factors(half_fraction(5), alone).values():
        assert row.mean == pytest.approx(alone[:, 0] @ row.weights)
        assert np.isnan([row.low, row.high]).all()


def test_the_texts_error_adds_to_that_over_seeds():
    runs = half_fraction(5)
    plain = by_factors(runs, RECORDS)["norm",]
    text = {FactorEffect(("norm",), ((0, 1),)): StandardError(0.005, 20.0)}
    effects = by_factors(runs, RECORDS, text_errors=text)
    wider = effects["norm",]
    half = float(join_errors(plain.seed_se, plain.df, 0.005, 20.0, 31, 0.05 / 15))
    assert (wider.low, wider.high) == pytest.approx((plain.mean - half, plain.mean + half))
    assert effects["block",].text_se == 0


def test_effects_that_the_cells_cannot_tell_apart_are_left_out():
    """A with B is one change; without the fourth cell nothing tells what they do together."""
    assert not weights(named([(0, 0), (1, 1)]), ["A", "B"])
    three = weights(named([(0, 0), (0, 1), (1, 0)]), ["A", "B"])
    assert {effect.factors: weight.round(9).tolist() for effect, weight in three.items()} == {
        ("A",): [-1, 0, 1],
        ("B",): [-1, 1, 0],
    }


GRID = list(itertools.product(range(2), range(4), range(5)))
AXES = ["norm", "position", "feedforward"]
#: Without the combinations of the second norm with the last position.
PART = [cell for cell in GRID if cell[:2] != (1, 3)]


def test_in_a_whole_grid_an_effect_is_a_difference_of_marginal_means():
    losses = np.random.default_rng(4).normal(size=(40, 2))
    means = losses.mean(1).reshape(2, 4, 5)
    found = by_effect(GRID, losses, AXES)
    assert len(found) == 1 + 6 + 10 + 3 + 4 + 12
    for (factors, levels), row in found.items():
        at = [AXES.index(name) for name in factors]
        over = means.mean(axis=tuple({0, 1, 2} - {*at}))
        (off, on), *other = levels
        change = over[on] - over[off]
        expected = change[other[0][1]] - change[other[0][0]] if other else change
        assert row.mean == pytest.approx(expected)
        assert row.alpha == pytest.approx(0.05 / 36)
        assert row.weights.sum() == pytest.approx(0, abs=1e-12)


def dummies(columns, order):
    """Return the design matrix of a model with treatment coding: another basis than ours."""
    parts = [
        (np.asarray(own)[:, None] == np.unique(own)[1:]).astype(float)
        for own in np.array(columns).T
    ]
    made = [np.ones((len(parts[0]), 1)), *parts]
    if order == 2:
        made += [
            (a[:, :, None] * b[:, None, :]).reshape(len(a), -1)
            for a, b in itertools.combinations(parts, 2)
        ]
    return np.hstack(made)


def test_without_some_combinations_and_runs_effects_are_those_of_least_squares():
    """By numpy's, treatment coded: cells and seeds first, then the factors over the cells."""
    generator = np.random.default_rng(5)
    losses = generator.normal(size=(35, 3)) + 0.3 * np.array(PART).sum(1)[:, None]
    losses[[3, 17], [0, 2]] = math.nan
    cell, seed = np.nonzero(~np.isnan(losses))
    of_runs = np.hstack([np.eye(35)[cell], np.eye(3)[seed][:, 1:]])
    means = np.linalg.lstsq(of_runs, losses[cell, seed], rcond=None)[0][:35]
    main = np.linalg.lstsq(dummies(PART, 1), means, rcond=None)[0]
    both = np.linalg.lstsq(dummies(PART, 2), means, rcond=None)[0]
    found = by_effect(PART, losses, AXES)
    levels = {"norm": 1, "position": 3, "feedforward": 4}
    names = [(name, level) for name, most in levels.items() for level in range(1, most + 1)]
    for (name, level), expected in zip(names, main[1:], strict=True):
        effect = FactorEffect((name,), ((0, level),))
        assert found[effect].mean == pytest.approx(expected)
    for level in (1, 2):  # the pairs of norm and position stand after the levels
        effect = FactorEffect(("norm", "position"), ((0, 1), (0, level)))
        assert found[effect].mean == pytest.approx(both[8 + level])
    assert FactorEffect(("norm", "position"), ((0, 1), (0, 3))) not in found


def test_runs_that_share_neither_cells_nor_seeds_tell_nothing():
    nothing = math.nan
    losses = [[1.0, nothing], [2.0, nothing], [nothing, 3.0], [nothing, 5.0]]
    assert by_effect([(0, 0), (0, 1), (1, 0), (1, 1)], losses, ["A", "B"]) == {}


def test_few_grids_of_which_combinations_and_runs_are_missing_show_an_effect(volume):
    """Cells of unequal variances and heavy tails that share a part of each seed."""
    tables, generator, wrong = volume(120, 2_000, 2_000), np.random.default_rng(0), 0
    for _ in range(tables):
        own = generator.standard_t(3, (len(PART), 2)) / math.sqrt(3)
        deviation = np.exp(generator.normal(size=(len(PART), 1)) / 2)
        losses = deviation * (math.sqrt(0.7) * own + math.sqrt(0.3) * generator.normal(size=2))
        losses.ravel()[generator.choice(losses.size, 2, replace=False)] = math.nan
        there = ~np.isnan(losses).all(1)
        kept = [run for run, one in zip(PART, there, strict=True) if one]
        found = contrasts(named(kept), AXES, losses[there])
        wrong += bool(((found["low"] > 0) | (found["high"] < 0)).any())
    assert wrong / tables <= most(0.065, tables)
