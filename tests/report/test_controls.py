"""Controls: what they must show, from rows of a comparison made by hand."""

import math

import pandas as pd
import pytest

from llama_ablate.report import controls
from tests import plans


def check(role, verdict, difference, half=0.001, margin=0.02, reseed="init"):
    arm = plans.variant("v2", "arm", role=role, reseed=reseed if role == "aa" else "")
    table = plans.table([plans.variant(), arm], [])
    row = {
        "verdict": verdict,
        "unit": "nats",
        "difference": difference,
        "low": difference - half,
        "high": difference + half,
    }
    return controls.check(table, pd.DataFrame([dict.fromkeys(row, 0.0), row]), margin)[role]


def test_an_aa_arm_holds_only_where_it_is_equivalent_within_the_margin():
    assert check("aa", "equivalent", 0.003).why == "arm is equivalent within 0.02 nats"
    assert check("aa", "equivalent", 0.003).holds
    noisy = check("aa", "inconclusive", 0.003, half=0.05)
    assert not noisy.holds
    assert noisy.why == (
        "arm is not shown to be equivalent within 0.02 nats: +0.003 [-0.047, +0.053]"
    )
    assert not check("aa", "worse", 0.1).holds


def test_an_aa_arm_in_which_nothing_changes_needs_no_margin_and_not_one_bit_of_difference():
    assert check("aa", "inconclusive", 0.0, half=0.0, margin=None, reseed="none").holds
    fault = check("aa", "equivalent", 1e-9, half=0.0, reseed="none")
    assert (fault.holds, fault.why) == (False, "arm differs, though nothing was changed")


def test_a_positive_control_holds_where_it_harms_by_at_most_ten_margins():
    held = check("positive", "worse", 0.19)
    assert (held.holds, held.why) == (True, "arm is worse by 0.19 nats, 9.5 margins")
    catastrophe = check("positive", "worse", 0.56)
    assert not catastrophe.holds
    assert catastrophe.why == (
        "arm harms by 0.56 nats, 28 margins: it shows that a catastrophe is seen, not a "
        "difference of the margin's size"
    )


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        ("inconclusive", "arm is inconclusive"),
        ("equivalent", "arm is equivalent"),
        ("better", "arm is better"),
        ("collapsed", "arm collapsed: it shows that a catastrophe is seen"),
        ("diverged", "arm diverged: it shows that a catastrophe is seen"),
        ("failed", "arm failed"),
        ("too short", "arm is too short"),
    ],
)
def test_a_positive_control_that_is_not_worse_does_not_hold(verdict, why):
    result = check("positive", verdict, 0.01)
    assert not result.holds
    assert result.why.startswith(why)


def test_where_one_control_fails_it_alone_says_why():
    checks = {
        "aa": controls.Check(holds=True, why="x"),
        "positive": controls.Check(holds=False, why="y"),
    }
    assert controls.all_hold(checks) == controls.Check(holds=False, why="y")
    assert controls.all_hold({"aa": checks["aa"]}) == checks["aa"]


def test_a_control_without_a_pair_has_not_finished_and_one_without_a_margin_fails():
    assert check("aa", "pending", math.nan).why == "arm has not finished"
    assert not check("aa", "inconclusive", 0.0, margin=None).holds
    assert check("aa", "too short", 0.0) == controls.Check(holds=False, why="arm is too short")
    assert "the experiment states none" in check("positive", "worse", 0.1, margin=None).why
