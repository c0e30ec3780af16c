import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence.rates import p_of_rates, rate_difference, share


@pytest.mark.parametrize(("hits", "n"), [(0, 9), (3, 9), (9, 9), (1, 3)])
def test_the_ends_of_the_interval_of_a_share_leave_each_tail_2_5_percent(hits, n):
    low, high = share(hits, n)
    assert (low == 0) == (hits == 0)
    assert (high == 1) == (hits == n)
    if hits:
        assert stats.binom.sf(hits - 1, n, low) == pytest.approx(0.025, abs=1e-6)
    if hits < n:
        assert stats.binom.cdf(hits, n, high) == pytest.approx(0.025, abs=1e-6)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_the_interval_of_a_share_holds_any_rate_in_95_percent(n):
    ends = [share(hits, n) for hits in range(n + 1)]
    for rate in np.linspace(0.001, 0.999, 400):
        weights = stats.binom.pmf(range(n + 1), n, rate)
        held = sum(w for w, (low, high) in zip(weights, ends, strict=True) if low <= rate <= high)
        assert held >= 0.95 - 1e-9


def test_eleven_of_36_against_none_of_36_is_a_difference():
    """What post-norm and pre-norm runs of twelve layers did; Fisher's exact test has p = 0.0004."""
    interval = rate_difference((11, 36), (0, 36), family=5)
    assert interval.low > 0
    assert interval.p == pytest.approx(5 * 0.0004, abs=0.001)
    assert stats.fisher_exact([[11, 25], [0, 36]]).pvalue == pytest.approx(0.0004, abs=5e-5)
    assert rate_difference((1, 36), (0, 36)).low < 0


@pytest.mark.parametrize(
    ("first", "second"), [((3, 3), (0, 3)), ((4, 12), (1, 12)), ((5, 6), (1, 6))]
)
def test_p_is_below_five_percent_just_where_the_interval_leaves_out_zero(first, second):
    interval = rate_difference(first, second)
    assert (interval.p < 0.05) == (interval.low > 0)
    mirrored = rate_difference(second, first)
    assert (mirrored.low, mirrored.high) == (-interval.high, -interval.low)


def test_three_of_three_against_none_has_the_chance_of_a_fair_coin_on_both_sides():
    """Of a share r the chance is r^3 (1 - r)^3, at most 1/64, and as much on the other side."""
    assert p_of_rates((3, 3), (0, 3)) == pytest.approx(2 / 64)


@pytest.mark.parametrize("n", [2, 5, 12])
def test_p_falls_with_every_further_hit_above_the_other_share(n):
    for other in range(n + 1):
        found = [p_of_rates((hits, n), (other, n)) for hits in range(other, n + 1)]
        assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_the_interval_misses_no_pair_of_rates_more_often_than_it_may(alpha, volume):
    """Every outcome of two arms weighed by its probability: no simulation, no approximation."""
    n, m = volume((5, 4), (12, 12), (12, 12))
    intervals = [
        [rate_difference((i, n), (j, m), alpha=alpha) for j in range(m + 1)] for i in range(n + 1)
    ]
    low, high = (
        np.array([[getattr(i, end) for i in row] for row in intervals]) for end in ("low", "high")
    )
    for difference in (0.0, 0.05, 0.3, 0.55, 0.9):
        for rate in np.linspace(0, 1 - difference, 41):
            chances = np.outer(
                stats.binom.pmf(np.arange(n + 1), n, min(1.0, rate + difference)),
                stats.binom.pmf(np.arange(m + 1), m, rate),
            )
            missed = (low > difference) | (high < difference)
            assert chances[missed].sum() <= alpha + 1e-9


def test_an_arm_without_runs_has_no_rate():
    interval = rate_difference((0, 0), (1, 3))
    assert math.isnan(interval.mean)
    assert math.isnan(interval.low)
