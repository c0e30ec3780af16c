import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence.rates import compare_rates, fisher, share


@pytest.mark.parametrize(("hits", "n"), [(0, 9), (3, 9), (9, 9), (1, 3)])
def test_the_interval_of_a_share_is_scipys_exact_one(hits, n):
    expected = stats.binomtest(hits, n).proportion_ci(0.95, method="exact")
    assert share(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_fishers_p_is_scipys_for_every_outcome_of_twelve_and_seven_runs():
    for a in range(13):
        for b in range(8):
            expected = stats.fisher_exact([[a, 12 - a], [b, 7 - b]]).pvalue
            assert fisher((a, 12), (b, 7)) == pytest.approx(expected, rel=1e-9)


def test_eleven_of_36_against_none_of_36_is_a_difference():
    row = compare_rates((11, 36), (0, 36))
    assert row["low"] > 0
    assert row["mean"] == pytest.approx(11 / 36)
    assert compare_rates((1, 36), (0, 36))["low"] < 0
    mirrored = compare_rates((0, 36), (11, 36))
    assert (mirrored["low"], mirrored["high"]) == (-row["high"], -row["low"])
    nothing = compare_rates((0, 0), (1, 3))
    assert np.isnan([nothing["mean"], nothing["low"]]).all()


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_the_interval_misses_no_pair_of_rates_more_often_than_it_may(alpha, volume):
    """Every outcome of two arms weighed by its probability: no simulation, no approximation."""
    n, m = volume((5, 4), (12, 12), (12, 12))
    found = [[compare_rates((i, n), (j, m), alpha) for j in range(m + 1)] for i in range(n + 1)]
    low, high = (np.array([[one[end] for one in row] for row in found]) for end in ("low", "high"))
    for difference in (0.0, 0.05, 0.3, 0.55, 0.9):
        for rate in np.linspace(0, 1 - difference, 41):
            chances = np.outer(
                stats.binom.pmf(np.arange(n + 1), n, min(1.0, rate + difference)),
                stats.binom.pmf(np.arange(m + 1), m, rate),
            )
            missed = (low > difference) | (high < difference)
            assert chances[missed].sum() <= alpha + 1e-9
