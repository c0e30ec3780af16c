import math

import numpy as np
import pytest

from llama_ablate.evidence import verdicts
from llama_ablate.evidence.intervals import equivalence_p, power

NOISE = np.array([-0.1, 0.0, 0.1, 0.05])


@pytest.mark.parametrize(
    ("shift", "margin", "expected"),
    [
        (-1.0, None, "better"),
        (1.0, None, "worse"),
        (0.0, None, "inconclusive"),
        (0.0, 0.3, "equivalent"),
        (0.0, 0.05, "inconclusive"),
        (-1.0, 0.3, "better"),
        (-1.0, 2.0, "equivalent"),  # it is there for certain, and smaller than what matters
    ],
)
def test_one_row_alone(shift, margin, expected):
    assert verdicts({"a": NOISE + shift}, margin=margin)["a"].verdict == expected


def test_a_row_among_many_must_show_more():
    """t = 0.03 / (0.01 / sqrt(3)) = 5.2, p = 0.035: enough alone, not among six (0.21)."""
    values = np.array([0.02, 0.03, 0.04])
    alone = verdicts({"a": values})["a"]
    assert alone.p_holm == pytest.approx(0.0351, abs=0.0005)
    assert alone.verdict == "worse"
    others = {f"null {i}": NOISE[:3] * (1 + i / 10) for i in range(5)}
    among = verdicts({"a": values, **others})["a"]
    assert among.p_holm == pytest.approx(6 * alone.p_holm)
    assert among.verdict == "inconclusive"
    needed = among.seeds_needed  # an effect of three deviations, at 0.05 / 6
    assert power(3.0, 1.0, needed, 0.05 / 6) >= 0.8 > power(3.0, 1.0, needed - 1, 0.05 / 6)


def test_false_verdicts_on_equal_arms_are_at_most_5_in_100_tables():
    """Five arms that are the baseline but for noise, six seeds, 2,000 tables."""
    generator = np.random.default_rng(0)
    false = 0
    for _ in range(2000):
        base = generator.normal(size=6)
        table = {str(i): generator.normal(size=6) - base for i in range(5)}
        false += any(r.verdict != "inconclusive" for r in verdicts(table).values())
    assert false / 2000 <= 0.05


def test_false_equivalents_at_the_edge_of_the_margin_are_at_most_5_in_100_tables():
    """Five arms that differ by the margin, six seeds: uncorrected, one table in five has one."""
    generator = np.random.default_rng(2)
    edge = np.array([1.0, 1.0, -1.0, 1.0, -1.0])[:, None]
    false, uncorrected = 0, 0
    for _ in range(2000):
        values = edge + generator.normal(size=(5, 6)) / 4
        table = {str(i): row for i, row in enumerate(values)}
        false += any(r.verdict == "equivalent" for r in verdicts(table, margin=1.0).values())
        uncorrected += any(equivalence_p(row, 1.0) < 0.05 for row in values)
    assert false / 2000 <= 0.05
    assert uncorrected / 2000 > 0.15


def test_equivalence_is_corrected_for_the_rows_of_the_table():
    values = NOISE + 0.02
    alone = verdicts({"a": values}, margin=0.2)["a"]
    assert alone.verdict == "equivalent"
    among = verdicts({"a": values, **{str(i): NOISE + 9 for i in range(5)}}, margin=0.2)["a"]
    assert among.equivalence_p == pytest.approx(6 * alone.equivalence_p)
    assert among.verdict == "inconclusive"


def test_a_real_effect_is_found_among_equal_arms():
    generator = np.random.default_rng(1)
    found = 0
    for _ in range(300):
        table = {str(i): generator.normal(0, 0.01, 8) for i in range(4)}
        table["real"] = generator.normal(-0.03, 0.01, 8)
        found += verdicts(table)["real"].verdict == "better"
    assert found / 300 > 0.99


def test_an_inconclusive_row_says_how_many_seeds_would_tell():
    """sd 0.01: for a margin of 0.01 ten seeds, for an effect seen of 0.005 thirty-four."""
    values = np.array([-0.01, 0.0, 0.01]) + 0.005
    assert verdicts({"a": values}, margin=0.01)["a"].seeds_needed == 10
    assert verdicts({"a": values})["a"].seeds_needed == 34


def test_one_seed_says_nothing():
    row = verdicts({"a": [-1.0]}, margin=0.5)["a"]
    assert row.verdict == "inconclusive"
    assert row.seeds_needed is None
    assert math.isnan(row.p_holm)
    assert verdicts({}) == {}


def test_a_difference_of_nothing_at_all_needs_no_number_of_seeds():
    row = verdicts({"a": [0.0, 0.0, 0.0]})["a"]
    assert (row.verdict, row.seeds_needed) == ("inconclusive", None)
    assert verdicts({"a": [0.0, 0.0]}, margin=0.01)["a"].verdict == "equivalent"
