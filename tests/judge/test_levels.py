"""Levels over a ledger: published examples, the formulas read anew, and simulated ledgers."""

import numpy as np
import pytest
from scipy.stats import norm

from llama_ablate.judge.levels import e_lond, family_wise, lord, weights

#: The example of Bioconductor's onlineFDR: p values, and the levels that its documentation prints.
P = [
    *(2.90e-08, 0.06743, 0.01514, 0.08174, 0.00171, 3.60e-05, 0.79149, 0.27201),
    *(0.28295, 7.59e-08, 0.69274, 0.30443, 0.00136, 0.72342, 0.54757),
]
IN_ORDER = [
    *(0.0002675839, 0.0024664457, 0.0005732818, 0.0004872805, 0.0004059066, 0.0003447286),
    *(0.0029745013, 0.0008450114, 0.0007305648, 0.0006243143, 0.0032185913, 0.0010617227),
    *(0.0009256825, 0.0008019657, 0.0007059610),
]
OVERLAPPING = [
    *(2.675839e-04, 5.819103e-05, 2.457817e-03, 5.649373e-04, 4.810068e-04, 4.011918e-04),
    *(3.410964e-04, 2.971630e-03, 8.426900e-04, 7.286513e-04, 6.227110e-04, 3.217229e-03),
    *(1.060551e-03, 9.246646e-04, 8.010731e-04),
]


#: As onlineFDR has the weights: over all whole numbers they sum to 1.
EVERY = (0.07720838 * np.log(2) / weights(1000)[0] * np.array(weights(1000))).tolist()


@pytest.mark.parametrize(("lag", "published"), [(0, IN_ORDER), (1, OVERLAPPING)])
def test_the_levels_are_those_of_a_published_example(lag, published):
    """Each test is decided before the next begins, or one later."""
    accepted, levels = [], []
    for test, p in enumerate(P, 1):
        levels.append(lord(test, accepted, EVERY, 0.05, 0.005))
        if p <= levels[-1]:
            accepted.append(test + lag)
    assert levels == pytest.approx(published, rel=2e-7)
    assert accepted == [1 + lag, 6 + lag, 10 + lag]


def read_anew(test, accepted, most, error, wealth):
    """LORD++ as the paper writes it, in float64 arrays."""
    places = np.arange(1, most + 1)
    gamma = np.log(np.maximum(places, 2)) / places / np.exp(np.sqrt(np.log(places)))
    gamma /= gamma.sum()
    times = np.sort([at for at in accepted if at < test]).astype(int)
    paid = np.where(np.arange(len(times)) == 0, error - wealth, error)
    return wealth * gamma[test - 1] + np.dot(paid, gamma[test - times - 1])


def test_the_levels_are_the_formulas_in_any_order_and_with_ties():
    draw, shares = np.random.default_rng(0), weights(500)
    for _ in range(200):
        test = int(draw.integers(1, 501))
        accepted = draw.integers(1, 600, size=int(draw.integers(0, 12))).tolist()
        expected = read_anew(test, accepted, 500, 0.05, 0.02)
        assert lord(test, accepted, shares, 0.05, 0.02) == pytest.approx(expected, rel=1e-9)
        known = sum(at < test for at in accepted)
        level = e_lond(test, accepted, shares, 0.05)
        assert level == pytest.approx(family_wise(test, shares, 0.05) * (1 + known), rel=1e-12)


@pytest.mark.parametrize("most", [1, 2, 30, 1000])
def test_the_weights_fall_and_sum_to_1(most):
    shares = weights(most)
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    assert sum(family_wise(n, shares, 0.05) for n in range(1, most + 1)) == pytest.approx(0.05)


def ledgers(count, share, effect, seed, *, lag=0, tests=1000):
    """Return of simulated ledgers: share of false acceptances, of ledgers with one, and power."""
    draw, shares = np.random.default_rng(seed), weights(tests)
    false, power = [], []
    for _ in range(count):
        true = draw.random(tests) < share
        p = norm.sf(draw.standard_normal(tests) + effect * true)
        accepted, right = [], 0
        for test in range(1, tests + 1):
            if p[test - 1] <= lord(test, accepted, shares, 0.05, 0.025):
                accepted.append(test + lag)
                right += true[test - 1]
        false.append((len(accepted) - right) / max(len(accepted), 1))
        power.append(right / max(true.sum(), 1))
    return np.mean(false), np.mean(np.array(false) > 0), np.mean(power)


#: What one test at 5% finds four times in five, at twice the seeds.
TWICE = (norm.ppf(0.95) + norm.ppf(0.8)) * 2**0.5


@pytest.mark.parametrize("lag", [0, 8])
def test_of_a_thousand_candidates_at_most_5_percent_of_what_is_accepted_is_false(lag, volume):
    false, _, power = ledgers(volume(20, 400, 400), 0.1, TWICE, 0, lag=lag)
    assert false <= 0.05
    assert power >= (0.73 if lag == 0 else 0.70)


def test_where_nothing_is_to_be_found_one_ledger_in_twenty_accepts_at_most(volume):
    count = volume(100, 2000, 2000)
    _, any_false, _ = ledgers(count, 0.0, 0.0, 1)
    assert any_false <= 0.05 + 2 * (0.05 * 0.95 / count) ** 0.5
