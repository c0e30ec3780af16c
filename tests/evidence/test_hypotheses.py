import math

import numpy as np
import pytest

from llama_ablate.evidence import Expectation, simultaneous
from tests.evidence.test_intervals import most, named

NOISE = np.array([-0.004, 0.0, 0.004, 0.002, -0.002])


def result(direction, margin, shift, noise=NOISE):
    return Expectation(direction, margin).result(simultaneous({"": list(noise + shift)})[""])


@pytest.mark.parametrize(
    ("direction", "margin", "shift", "expected"),
    [
        ("better", 0.0, -0.05, "supported"),
        ("better", 0.0, 0.05, "refuted"),
        ("better", 0.0, 0.0, "undecided"),
        ("better", 0.04, -0.05, "supported"),
        ("better", 0.04, -0.01, "refuted"),  # better, and not by that much
        ("better", 0.04, -0.04, "undecided"),
        ("worse", 0.0, 0.05, "supported"),
        ("worse", 0.0, -0.05, "refuted"),
        ("worse", 0.04, 0.01, "refuted"),
        ("better", -0.04, 0.01, "supported"),  # not worse by 0.04
        ("better", -0.04, 0.05, "refuted"),
        ("equivalent", 0.01, 0.0, "supported"),
        ("equivalent", 0.01, 0.05, "refuted"),
        ("equivalent", 0.01, -0.05, "refuted"),
        ("equivalent", 0.001, 0.0, "undecided"),
    ],
)
def test_a_hypothesis_is_supported_refuted_or_undecided(direction, margin, shift, expected):
    assert result(direction, margin, shift) == expected


def test_the_same_difference_named_the_other_way_round_has_the_mirrored_result():
    interval = simultaneous({"": list(NOISE + 0.05)})[""]
    assert Expectation("worse", 0.04).result(interval) == "supported"
    assert Expectation("better", 0.04).result(-interval) == "supported"
    assert ((-interval).low, (-interval).high) == (-interval.high, -interval.low)


def decided(hypothesis, rows):
    return [hypothesis.result(interval) for interval in simultaneous(named(rows)).values()]


@pytest.mark.parametrize("direction", ["better", "worse"])
def test_a_list_of_hypotheses_at_their_edge_is_decided_either_way_in_5_of_100(direction, volume):
    """Three that are neither true nor false, six seeds: both ways together are false results."""
    tables, generator = volume(1_000, 10_000, 10_000), np.random.default_rng(0)
    wrong = 0
    for _ in range(tables):
        rows = generator.normal(size=(3, 6))
        wrong += any(r != "undecided" for r in decided(Expectation(direction, 0.0), rows))
    assert wrong / tables <= most(0.05, tables)


@pytest.mark.parametrize("margin", [0.05, 0.25, 1.0])
def test_a_true_equivalence_is_refuted_in_at_most_5_of_100(margin, volume):
    """The difference is the margin itself, in units of the standard error; three in a list."""
    tables, generator = volume(700, 10_000, 10_000), np.random.default_rng(1)
    wrong = 0
    for _ in range(tables):
        rows = margin / math.sqrt(6) + generator.normal(size=(3, 6))
        hypothesis = Expectation("equivalent", margin / math.sqrt(6))
        wrong += "refuted" in decided(hypothesis, rows)
    assert wrong / tables <= most(0.05, tables)


def test_an_undecided_hypothesis_counts_the_seeds_to_the_nearest_end_of_what_it_states():
    """Better by 0.05, at -0.055: 0.005 away, a quarter of a deviation; alone, some 130 seeds."""
    noise = np.array([-0.02, -0.02, 0.0, 0.02, 0.02])
    interval = simultaneous({"": list(noise - 0.055)})[""]
    hypothesis = Expectation("better", 0.05)
    assert hypothesis.result(interval) == "undecided"
    low, high = hypothesis.seeds_to_decide(interval)
    assert low <= 130 <= high
    assert low > 40  # it would be 4, were it the effect that had to be as large as the margin
    assert Expectation("better", 0.0).seeds_to_decide(interval) is None


def test_one_seed_decides_nothing_and_an_equivalence_needs_a_margin():
    interval = simultaneous({"": [-1.0]})[""]
    assert Expectation("better", 0.0).result(interval) == "undecided"
    with pytest.raises(ValueError, match="an equivalence needs a margin"):
        Expectation("equivalent", 0.0)
