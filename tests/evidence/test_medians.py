import math

import numpy as np
import pytest

from llama_ablate.evidence.medians import median, ratio


def test_the_interval_of_ten_values_is_from_the_second_to_the_ninth():
    """Binomial(10, 1/2): P(0 or 1 below) = 11/1024 = 0.011, P(up to 2) = 0.055 > 0.025."""
    found = median([5, 3, 8, 1, 9, 2, 7, 10, 4, 6])
    assert (found.value, found.low, found.high) == (5.5, 2, 9)


def test_six_values_give_their_range_and_fewer_no_interval():
    """P(0 below) = 1/64 = 0.016 for six, 1/32 = 0.031 for five."""
    found = median([6, 5, 4, 3, 2, 1])
    assert (found.low, found.high) == (1, 6)
    assert math.isnan(median([1, 2, 3, 4, 5]).low)


@pytest.mark.parametrize("n", [6, 10, 30])
def test_the_interval_holds_the_median_of_a_skewed_distribution_in_95_percent_or_more(n):
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        found = median(generator.exponential(size=n).tolist())
        held += found.low <= math.log(2) <= found.high
    # Three standard errors of 2,000 trials at 0.95 are 0.015.
    assert held / 2000 > 0.95 - 0.015


def test_ratios_are_taken_turn_by_turn():
    """The machine slowed tenfold in the second turn: the ratio did not."""
    assert ratio([2, 20, 2], [1, 10, 1]).value == 2
