import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence.intervals import (
    detectable,
    equivalence_p,
    holm,
    power,
    seeds_for,
)


def test_equivalence_is_scipys_two_one_sided_tests():
    values = np.random.default_rng(3).normal(0.002, 0.01, 10)
    above = stats.ttest_1samp(values, -0.01, alternative="greater").pvalue
    below = stats.ttest_1samp(values, 0.01, alternative="less").pvalue
    assert equivalence_p(values, 0.01) == pytest.approx(max(above, below))


def test_equivalence_at_the_margins_edge_is_claimed_in_5_of_100():
    """The true difference is the margin itself: the worst case that is not equivalent."""
    generator = np.random.default_rng(4)
    claimed = sum(equivalence_p(generator.normal(0.01, 0.004, 6), 0.01) < 0.05 for _ in range(4000))
    assert claimed / 4000 == pytest.approx(0.05, abs=0.0105)  # three standard errors


def test_equivalence_without_spread_or_seeds():
    assert equivalence_p([0.001] * 3, 0.01) == 0
    assert equivalence_p([0.1] * 3, 0.01) == 1
    assert math.isnan(equivalence_p([0.1], 0.01))
    with pytest.raises(ValueError, match="a margin must be above 0"):
        equivalence_p([0.1, 0.2], 0.0)


def test_holms_worked_example():
    """0.01 x 4, 0.02 x 3, 0.03 x 2, then 0.04: never less than the one before."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    found = holm([0.01, math.nan, 0.04])
    assert found[0] == pytest.approx(0.02)
    assert math.isnan(found[1])


def test_holm_rejects_a_true_hypothesis_of_a_table_in_5_of_100_tables():
    generator = np.random.default_rng(5)
    wrong = 0
    for _ in range(2000):
        base = generator.normal(size=6)
        arms = generator.normal(size=(5, 6))
        wrong += min(holm([stats.ttest_1samp(arm - base, 0).pvalue for arm in arms])) < 0.05
    assert wrong / 2000 <= 0.05


@pytest.mark.parametrize("n", [3, 4, 5, 6, 8, 10, 16, 20])
def test_the_detectable_effect_is_found_in_80_of_100_simulations(n):
    """The usual (t(.975) + t(.8)) / sqrt(n) is 5% too small for three seeds: 3.10, not 3.26.

    For 3 to 20 seeds it gives 3.10, 2.08, 1.66, 1.43, 1.15, 1.00, 0.75, 0.66.
    """
    found = detectable(1.0, n)
    drawn = np.random.default_rng(n).normal(found, 1, (40_000, n))
    share = np.mean(stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05)
    assert share == pytest.approx(0.8, abs=0.006)  # three standard errors
    shortcut = (stats.t.ppf(0.975, n - 1) + stats.t.ppf(0.8, n - 1)) / math.sqrt(n)
    assert shortcut - 0.01 < found < 1.06 * shortcut


def test_the_power_is_what_simulation_finds():
    generator = np.random.default_rng(6)
    found = [stats.ttest_1samp(generator.normal(1.2, 1, 6), 0).pvalue < 0.05 for _ in range(4000)]
    assert power(1.2, 1.0, 6) == pytest.approx(np.mean(found), abs=0.025)


def test_the_seeds_for_an_effect_are_the_fewest_that_reach_the_power():
    for effect in (0.3, 0.7, 1.5, 4.0):
        n = seeds_for(effect, 1.0)
        assert power(effect, 1.0, n) >= 0.8
        assert n == 2 or power(effect, 1.0, n - 1) < 0.8
    assert seeds_for(1.0, 0.0) == 2
    with pytest.raises(ValueError, match="an effect of 0"):
        seeds_for(0.0, 1.0)


@pytest.mark.parametrize(("hits", "n"), [(0, 9), (3, 9), (9, 9)])
def test_the_interval_of_a_share_is_wilsons(hits, n):
    from llama_ablate.evidence.intervals import wilson

    z, p = 1.959964, hits / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = wilson(hits, n)
    assert low == pytest.approx(max(0.0, centre - half), abs=1e-6)
    assert high == pytest.approx(min(1.0, centre + half), abs=1e-6)


@pytest.mark.parametrize("rows", [18, 1000, 100_000])
def test_two_seeds_and_many_rows_have_a_detectable_effect_too(rows):
    """With one degree of freedom t is Cauchy: an effect far from 0 is seen where |W| < effect / t.

    W is the normal deviate that the deviation is estimated from.
    """
    alpha = 0.05 / rows
    threshold = stats.cauchy.isf(alpha / 2)
    expected = stats.norm.ppf(0.9) * threshold / math.sqrt(2)
    assert detectable(0.01, 2, alpha=alpha) == pytest.approx(0.01 * expected, rel=1e-4)
