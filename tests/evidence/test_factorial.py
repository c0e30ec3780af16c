import itertools
import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.design.variants import half_fraction
from llama_ablate.evidence import StandardError, contrasts
from llama_ablate.evidence.factorial import FactorEffect, weights
from llama_ablate.evidence.intervals import join_errors

FIVE = ["norm", "position", "attention", "feedforward", "block"]
#: Losses of sixteen cells and three seeds of a half fraction: text, 0.1M parameters, 0.3M tokens.
RECORDS = [
    (2.3174615, 2.3256633, 2.2991866),
    (2.3325644, 2.3218329, 2.2953449),
    (2.3248947, 2.3235520, 2.3196805),
    (2.3153883, 2.3016139, 2.2839496),
    (2.2044946, 2.1910244, 2.1900166),
    (2.1297399, 2.1369191, 2.1724916),
    (2.1891350, 2.2105775, 2.1877340),
    (2.1251617, 2.0855168, 2.0931019),
    (2.3027255, 2.3068467, 2.3066199),
    (2.2559493, 2.2354997, 2.2627342),
    (2.2731251, 2.2757834, 2.2805366),
    (2.2860972, 2.2904137, 2.2878135),
    (2.2046711, 2.1814392, 2.1587634),
    (2.1118795, 2.1193530, 2.1094106),
    (2.2013615, 2.2076803, 2.1961723),
    (2.1647099, 2.1671665, 2.2160679),
]


def named(runs):
    return {f"v{i}": run for i, run in enumerate(runs)}


def with_losses(runs, losses, factors=FIVE, **more):
    """Return the contrasts of runs with losses (cells, seeds), by their factors."""
    values = dict(zip(named(runs), np.asarray(losses).tolist(), strict=True))
    return {one.factors: one for one in contrasts(named(runs), factors, values, **more)}


def test_a_worked_two_by_two():
    """Losses 1, 2, 3, 6 at (0,0), (0,1), (1,0), (1,1): A = 4.5 - 1.5, B = 4 - 2, AB = 4 - 2."""
    runs = [(0, 0), (0, 1), (1, 0), (1, 1)]
    effects = with_losses(runs, [[1, 1.1], [2, 2.2], [3, 3.1], [6, 6.0]], ["A", "B"])
    means = {names: one.interval.mean for names, one in effects.items()}
    assert means == pytest.approx({("A",): 2.95, ("B",): 2.0, ("A", "B"): 1.9})


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
    for names, one in with_losses(runs, RECORDS).items():
        own = signs[:, [FIVE.index(name) for name in names]].prod(1)
        same = {
            other
            for order in range(1, 6)
            for other in itertools.combinations(FIVE, order)
            if abs(own @ signs[:, [FIVE.index(name) for name in other]].prod(1)) == 16
        }
        assert set(one.aliases) == same - {names}
        assert [len(alias) for alias in one.aliases] == [5 - len(names)]


def test_the_error_of_every_contrast_is_that_of_least_squares_with_cells_and_seeds():
    """The residual of the two-way table without interaction, on 15 x 2 degrees of freedom."""
    cells, seeds = np.divmod(np.arange(48), 3)
    table = np.hstack([np.eye(16)[cells], np.eye(3)[seeds][:, 1:]])
    rest = np.linalg.lstsq(table, np.ravel(RECORDS), rcond=None)[1].item()
    for names, one in with_losses(half_fraction(5), RECORDS).items():
        if not one.interval.pooled:
            continue
        expected = 2 ** len(names) * math.sqrt(rest / 30 / 48)
        assert one.interval.seed_se == pytest.approx(expected)
        assert (one.interval.df, one.interval.alpha) == (30, pytest.approx(0.05 / 15))
        half = stats.t.ppf(1 - 0.05 / 30, one.interval.df) * one.interval.seed_se
        assert one.interval.high - one.interval.mean == pytest.approx(half)


def test_the_effect_of_a_factor_that_varies_over_seeds_has_its_own_variance():
    runs = half_fraction(5)
    generator = np.random.default_rng(3)
    losses = generator.normal(0, 0.01, (16, 4))
    losses += np.outer(2 * np.array(runs)[:, 3] - 1, [0.1, -0.05, 0.08, -0.12])
    effects = with_losses(runs, losses)
    one = effects["feedforward",].interval
    assert not one.pooled
    weight = weights(named(runs), FIVE)[effects["feedforward",].effect]
    own = stats.ttest_1samp(weight @ losses, 0)
    assert (one.seed_df, one.mean / one.seed_se) == pytest.approx((3, own.statistic))


def test_the_f_test_of_varying_effects_is_the_one_of_the_sums_of_squares():
    """Of 2,000 designs in which no effect varies each is taken for one that does in 5%."""
    runs, generator = half_fraction(5), np.random.default_rng(5)
    flagged = [
        not one.interval.pooled
        for _ in range(200)
        for one in with_losses(runs, generator.normal(size=(16, 3))).values()
    ]
    assert np.mean(flagged) == pytest.approx(0.05, abs=0.015)


def test_the_texts_error_adds_to_that_over_seeds():
    runs = half_fraction(5)
    plain = with_losses(runs, RECORDS)["norm",].interval
    error = StandardError(0.005, 20.0)
    text = {FactorEffect(("norm",), ((0, 1),)): error}
    effects = with_losses(runs, RECORDS, text_errors=text)
    wider = effects["norm",].interval
    half = float(join_errors(plain.seed_se, plain.df, 0.005, 20.0, 31, 0.05 / 15))
    assert (wider.low, wider.high) == pytest.approx((plain.mean - half, plain.mean + half))
    assert effects["block",].interval.text_se == 0


def test_two_seeds_have_intervals_and_one_has_none():
    runs = half_fraction(5)
    two = [one.interval for one in with_losses(runs, np.array(RECORDS)[:, :2]).values()]
    assert all(one.low < one.mean < one.high for one in two)
    assert {one.df for one in two if one.pooled} == {15}
    for one in with_losses(runs, np.array(RECORDS)[:, :1]).values():
        assert np.isnan([one.interval.low, one.interval.high, one.interval.p]).all()


def simulated(generator, runs, seeds, *, spread=0.0, shared=0.0, tail=None):
    """Return losses without effects: cells of unequal variances that share a part of each seed.

    `spread` is the deviation of the log variances, `shared` the correlation over seeds, `tail` the
    degrees of freedom of a Student t noise.
    """
    deviation = np.exp(generator.normal(0, spread, (len(runs), 1)) / 2)
    shape = (len(runs), seeds)
    own = generator.normal(size=shape)
    if tail:
        own = generator.standard_t(tail, shape) / math.sqrt(tail / (tail - 2))
    together = generator.normal(size=(1, seeds))
    return deviation * (math.sqrt(1 - shared) * own + math.sqrt(shared) * together)


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


def by_effect(runs, losses, factors=AXES, **more):
    values = dict(zip(named(runs), np.asarray(losses).tolist(), strict=True))
    return {one.effect: one for one in contrasts(named(runs), factors, values, **more)}


def test_in_a_whole_grid_an_effect_is_a_difference_of_marginal_means():
    losses = np.random.default_rng(4).normal(size=(40, 2))
    means = losses.mean(1).reshape(2, 4, 5)
    found = by_effect(GRID, losses)
    assert len(found) == 1 + 6 + 10 + 3 + 4 + 12
    for (factors, levels), one in found.items():
        at = [AXES.index(name) for name in factors]
        over = means.mean(axis=tuple({0, 1, 2} - {*at}))
        (off, on), *other = levels
        change = over[on] - over[off]
        expected = change[other[0][1]] - change[other[0][0]] if other else change
        assert one.interval.mean == pytest.approx(expected)
        assert one.interval.alpha == pytest.approx(0.05 / 36)
        assert sum(one.weights.values()) == pytest.approx(0, abs=1e-12)


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
    found = by_effect(PART, losses)
    levels = {"norm": 1, "position": 3, "feedforward": 4}
    names = [(name, level) for name, most in levels.items() for level in range(1, most + 1)]
    for (name, level), expected in zip(names, main[1:], strict=True):
        effect = FactorEffect((name,), ((0, level),))
        assert found[effect].interval.mean == pytest.approx(expected)
    for level in (1, 2):  # the pairs of norm and position stand after the levels
        effect = FactorEffect(("norm", "position"), ((0, 1), (0, level)))
        assert found[effect].interval.mean == pytest.approx(both[8 + level])
    assert FactorEffect(("norm", "position"), ((0, 1), (0, 3))) not in found


def test_runs_that_share_neither_cells_nor_seeds_tell_nothing():
    nothing = math.nan
    losses = [[1.0, nothing], [2.0, nothing], [nothing, 3.0], [nothing, 5.0]]
    assert by_effect([(0, 0), (0, 1), (1, 0), (1, 1)], losses, ["A", "B"]) == {}


#: Combinations, seeds, missing runs, and the noise.
GRIDS = {
    "two seeds": (GRID, 2, 0, {"spread": 1.0, "shared": 0.3}),
    "three seeds, heavy tails": (GRID, 3, 0, {"spread": 1.0, "shared": 0.3, "tail": 3}),
    "combinations and runs missing": (PART, 2, 2, {"spread": 1.0, "shared": 0.3}),
    "2 x 3": (list(itertools.product(range(2), range(3))), 3, 1, {"spread": 1.0, "shared": 0.3}),
    "an axis whose levels vary over seeds": (GRID, 2, 0, {"varying": 2.0}),
}


def false_effects(grid, tables, seed=0):
    """Return how often a grid without effects shows one."""
    runs, seeds, missing, noise = GRIDS[grid]
    generator, level = np.random.default_rng(seed), np.array(runs)[:, 1]
    of_cells = {key: noise[key] for key in ("spread", "shared", "tail") if key in noise}
    wrong = 0
    for _ in range(tables):
        losses = simulated(generator, runs, seeds, **of_cells)
        losses[level == 0] *= noise.get("level", 1.0)
        losses += noise.get("varying", 0.0) * generator.normal(size=(level.max() + 1, seeds))[level]
        losses.ravel()[generator.choice(losses.size, missing, replace=False)] = math.nan
        there = ~np.isnan(losses).all(1)
        kept = [run for run, one in zip(runs, there, strict=True) if one]
        found = by_effect(kept, losses[there], AXES[: len(runs[0])]).values()
        wrong += any(one.interval.low > 0 or one.interval.high < 0 for one in found)
    return wrong / tables


@pytest.mark.parametrize("grid", GRIDS)
def test_few_grids_without_effects_show_one(grid, volume):
    """12% where an axis' levels vary over two seeds, which were 49% by each pair alone."""
    most = 0.12 if "varying" in GRIDS[grid][3] else 0.065
    tables = volume(120, 2_000, 2_000)
    assert false_effects(grid, tables) <= most + 3 * math.sqrt(most * (1 - most) / tables)
