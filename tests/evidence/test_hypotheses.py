import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence import Hypothesis, evaluate

NOISE = np.array([-0.004, 0.0, 0.004, 0.002, -0.002])


def result(direction, margin, shift, noise=NOISE):
    return evaluate([(Hypothesis(direction, margin), list(noise + shift))])[0].result


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


def test_the_p_values_are_scipys_one_sided_tests():
    values = list(NOISE - 0.01)
    tested = evaluate([(Hypothesis("better", 0.005), values)])[0]
    test = stats.ttest_1samp(values, -0.005, alternative="less")
    assert tested.p_for == pytest.approx(test.pvalue)
    assert tested.p_against == pytest.approx(1 - test.pvalue)


def test_more_hypotheses_ask_more_of_each():
    values = list(NOISE * 2 - 0.005)
    alone = evaluate([(Hypothesis("better", 0.0), values)])[0]
    hypotheses = [(Hypothesis("better", 0.0), values)] + [
        (Hypothesis("better", 0.0), list(NOISE))
    ] * 9
    among = evaluate(hypotheses)[0]
    assert among.p_for == pytest.approx(10 * alone.p_for)


def test_false_results_are_at_most_5_in_100_lists():
    """Three hypotheses at the edge of being true, six seeds: none may be supported or refuted."""
    generator = np.random.default_rng(0)
    wrong = 0
    for _ in range(2000):
        hypotheses = [
            (Hypothesis("better", 0.0), generator.normal(0, 1, 6).tolist()) for _ in range(3)
        ]
        wrong += any(t.result == "supported" for t in evaluate(hypotheses))
    assert wrong / 2000 <= 0.05


def test_an_undecided_hypothesis_says_how_many_seeds_would_tell():
    tested = evaluate([(Hypothesis("equivalent", 0.003), list(NOISE))])[0]
    assert tested.result == "undecided"
    assert tested.seeds_needed == 11  # a margin of 0.95 deviations


def test_one_seed_decides_nothing_and_an_equivalence_needs_a_margin():
    tested = evaluate([(Hypothesis("better", 0.0), [-1.0])])[0]
    assert tested.result == "undecided"
    assert math.isnan(tested.p_for)
    with pytest.raises(ValueError, match="an equivalence needs a margin"):
        evaluate([(Hypothesis("equivalent", 0.0), [0.0, 0.1])])
