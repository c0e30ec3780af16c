import math

import numpy as np
import pytest
from scipy import stats

from llama_ablate.evidence import Claim, examine

NOISE = np.array([-0.004, 0.0, 0.004, 0.002, -0.002])


def finding(direction, margin, shift, noise=NOISE):
    return examine([(Claim(direction, margin), list(noise + shift))])[0].finding


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
def test_a_claim_is_supported_refuted_or_undecided(direction, margin, shift, expected):
    assert finding(direction, margin, shift) == expected


def test_the_p_values_are_scipys_one_sided_tests():
    values = list(NOISE - 0.01)
    found = examine([(Claim("better", 0.005), values)])[0]
    test = stats.ttest_1samp(values, -0.005, alternative="less")
    assert found.p_for == pytest.approx(test.pvalue)
    assert found.p_against == pytest.approx(1 - test.pvalue)


def test_more_claims_ask_more_of_each():
    values = list(NOISE * 2 - 0.005)
    alone = examine([(Claim("better", 0.0), values)])[0]
    claims = [(Claim("better", 0.0), values)] + [(Claim("better", 0.0), list(NOISE))] * 9
    among = examine(claims)[0]
    assert among.p_for == pytest.approx(10 * alone.p_for)


def test_false_findings_are_at_most_5_in_100_lists():
    """Three claims at the edge of being true, six seeds: for or against, neither may be found."""
    generator = np.random.default_rng(0)
    wrong = 0
    for _ in range(2000):
        claims = [(Claim("better", 0.0), generator.normal(0, 1, 6).tolist()) for _ in range(3)]
        wrong += any(t.finding == "supported" for t in examine(claims))
    assert wrong / 2000 <= 0.05


def test_an_undecided_claim_says_how_many_seeds_would_tell():
    found = examine([(Claim("equivalent", 0.003), list(NOISE))])[0]
    assert found.finding == "undecided"
    assert found.seeds_needed == 11  # a margin of 0.95 deviations


def test_one_seed_decides_nothing_and_an_equivalence_needs_a_margin():
    found = examine([(Claim("better", 0.0), [-1.0])])[0]
    assert found.finding == "undecided"
    assert math.isnan(found.p_for)
    with pytest.raises(ValueError, match="an equivalence needs a margin"):
        examine([(Claim("equivalent", 0.0), [0.0, 0.1])])
