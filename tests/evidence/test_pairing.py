import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence import paired_effect, summary


def test_the_interval_of_a_worked_example():
    """Differences 1, 2, 3: mean 2, sd 1, t(0.975, 2) = 4.302653, half width 4.302653/sqrt(3)."""
    effect = paired_effect([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert effect.mean == pytest.approx(2.0)
    assert effect.high - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert effect.low == pytest.approx(2 - 4.302653 / math.sqrt(3), rel=1e-6)
    assert effect.n == 3


def test_p_and_interval_agree_with_scipys_paired_test():
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=8), generator.normal(size=8)
    effect, expected = paired_effect(list(a), list(b)), stats.ttest_rel(a, b)
    interval = expected.confidence_interval(0.95)
    assert effect.p == pytest.approx(expected.pvalue)
    assert (effect.low, effect.high) == pytest.approx((interval.low, interval.high))


def test_intervals_cover_the_true_difference_in_95_of_100():
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        shared = generator.normal(size=4)  # what pairing takes out
        a = shared + 0.3 + 0.2 * generator.normal(size=4)
        b = shared + 0.2 * generator.normal(size=4)
        effect = paired_effect(list(a), list(b))
        covered += effect.low <= 0.3 <= effect.high
    assert 0.93 <= covered / 2000 <= 0.97


def test_pairing_takes_out_what_seeds_share():
    shared = np.array([0.0, 10.0, -10.0, 5.0])
    changed = shared + np.array([0.9, 1.0, 1.1, 1.0])
    effect = paired_effect(list(changed), list(shared))
    assert 0.8 < effect.low < effect.high < 1.2


def test_one_seed_has_no_interval_and_none_has_no_mean():
    one = paired_effect([2.0], [1.5])
    assert one.mean == 0.5
    assert math.isnan(one.low)
    none = paired_effect([], [])
    assert math.isnan(none.mean)


def test_equal_values_have_a_difference_of_exactly_zero():
    same = paired_effect([1.0, 2.0], [1.0, 2.0])
    assert (same.mean, same.low, same.high, same.p) == (0, 0, 0, 1)


def test_unequal_lengths_cannot_be_paired():
    with pytest.raises(ValueError, match="2 values cannot be paired with 3"):
        paired_effect([1.0, 2.0], [1.0, 2.0, 3.0])


def test_a_summary_leaves_out_what_is_not_finite():
    found = summary([1.0, math.nan, 3.0, math.inf])
    assert (found.mean, found.n) == (2.0, 2)
    assert found.sd == pytest.approx(math.sqrt(2))
    assert math.isnan(summary([1.0]).sd)
    assert summary([]).n == 0


@pytest.mark.parametrize(("r", "times"), [(0.92, 12.5), (0.5, 2.0), (0.09, 1.1)])
def test_pairing_saves_the_runs_that_the_prototype_counted(r, times):
    """0.92 -> 12 times, 0.50 -> 2, 0.09 -> 1.1, as measured before this project."""
    generator = np.random.default_rng(0)
    shared, own, other = generator.normal(0, 1, (3, 200_000))
    a = math.sqrt(r) * shared + math.sqrt(1 - r) * own
    b = math.sqrt(r) * shared + math.sqrt(1 - r) * other
    assert paired_effect(list(a), list(b)).saved == pytest.approx(times, rel=0.01)


def test_pairing_saves_little_where_the_spreads_differ_however_high_the_correlation():
    effect = paired_effect([2.0, 4.0, 6.0, 8.0, 10.0], [0.1, 0.2, 0.3, 0.4, 0.5])
    assert effect.correlation == pytest.approx(1)
    # Variances 10 and 0.025; the differences 1.9, 3.8 ... 9.5 have 9.025.
    assert effect.saved == pytest.approx(10.025 / 9.025)


def test_the_correlation_of_fewer_than_five_pairs_is_not_told():
    """Three pairs along a line have r 1.00 and save hundreds of runs, by chance."""
    few = paired_effect([2.0, 4.0, 6.1, 8.0], [1.0, 3.0, 5.0, 7.0])
    assert few.low < few.mean < few.high
    assert math.isnan(few.correlation)
    assert math.isnan(few.saved)
