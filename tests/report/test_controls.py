"""Controls: what bounds a bias, what shows that harm is seen, and what only shows the noise."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from llama_ablate.evidence import simultaneous
from llama_ablate.findings import controls
from llama_ablate.findings.controls import Check
from llama_ablate.findings.rows import frame as framed
from tests.tables import changed, frames

BASE = [2.0, 2.2, 2.1, 2.3, 2.15]
NOISE = [0.01, -0.01, 0.005, -0.005, 0.0]


def moved(by, noise=1.0):
    return [loss + by + noise * own for loss, own in zip(BASE, NOISE, strict=True)]


def of(losses, role="", reseed="", margin="0.02 nats", **more):
    """A table of a baseline, an arm that is 0.05 better, and one control."""
    arms = {"base": BASE, "arm": moved(-0.05, 2.0), **({"control": losses} if losses else {})}
    changes = {"control": {"role": role, "reseed": reseed}} if losses else {}
    return frames({"": arms}, changes=changes, margin=margin, **more).table


def row(table, label="arm"):
    return framed(table.comparison).set_index("label").loc[label]


def test_a_repeated_baseline_that_is_equal_bit_for_bit_bounds_the_bias_and_widens_nothing():
    table, plain = of(BASE[:1], "aa", "none"), of(None)
    assert table.bias.ends == (0, 0)
    assert row(table)["bias"] == ""
    assert row(table)["low"] == row(plain)["low"]
    assert row(table, "control")[["n", "low", "high", "verdict"]].tolist() == [
        1,
        0,
        0,
        "equal",
    ]
    assert table.controls["aa"] == Check(holds=True, why="control is equal bit for bit")


def test_without_a_repeated_baseline_the_bias_is_not_bounded_and_a_row_says_so():
    assert row(of(None))["bias"] == "not bounded"
    assert row(of([*BASE], "positive"))["bias"] == "not bounded"
    assert of(None).bias.ends is None
    none_decided = frames({"": {"base": BASE, "arm": moved(0.0, 2.0)}}).table
    assert not none_decided.is_decided


def test_a_repeated_baseline_that_differs_widens_every_row_by_its_interval_one_sidedly():
    noisy = [loss + shift for loss, shift in zip(BASE, [1e-4, 2e-4, 3e-4, 2e-4, 2e-4], strict=True)]
    table, plain = of(noisy, "aa", "none"), row(of(None))
    own = simultaneous({"": [1e-4, 2e-4, 3e-4, 2e-4, 2e-4]})[""]
    assert table.bias.ends == pytest.approx((own.low, own.high))
    assert own.low > 0
    assert row(table)["low"] == pytest.approx(plain["low"] - own.high)
    assert row(table)["high"] == pytest.approx(plain["high"])
    assert row(table)["p_corrected"] == pytest.approx(plain["p_corrected"])  # it leans to the left
    assert row(table)["bias"] == "within +0.000000 [+0.000112, +0.000288] nats"
    assert table.controls["aa"].holds
    assert "every row is wider by that" in table.controls["aa"].why


def test_p_stays_below_five_percent_just_where_a_widened_interval_leaves_out_0():
    interval = simultaneous({"a": [0.03, 0.05, 0.04, 0.06], "b": [0.0, 0.1, 0.2, 0.3]})["a"]
    for shift in np.linspace(0, 0.1, 41):
        wider = interval.widened((-shift / 3, shift))
        assert (wider.p < 0.05) == (wider.low > 0 or wider.high < 0)
        assert wider.high == pytest.approx(interval.high + shift / 3)
    assert interval.widened((0.0, 0.0)) is interval
    exact = simultaneous({"a": [0.5, 0.5]})["a"]
    assert exact.widened((0.0, 0.6)).p == 1
    assert exact.widened((0.0, 0.4)).p == 0


def test_a_repeated_baseline_that_differs_in_its_one_seed_has_no_interval_and_fails():
    table = of([BASE[0] + 1e-9], "aa", "none")
    assert table.bias.ends is None
    assert table.controls["aa"] == Check(
        holds=False, why="control differs by +1e-09 nats in its one seed"
    )
    assert of(["failed"], "aa", "none").controls["aa"].holds is False


def test_a_baseline_with_other_draws_is_no_veto_and_says_whether_a_word_stands_after_it():
    apart = of(moved(-0.06), "aa", "both")
    assert apart.controls == {}
    assert row(apart)["verdict"] == "better"
    assert row(apart)["bias"] == "not bounded; falls after the A/A"
    assert row(of(moved(0.0), "aa", "both"))["bias"] == "not bounded; stands after the A/A"
    (line,) = controls.told(apart.plan, apart.comparison, 0.02)
    assert (line.control, line.result) == ("calibration", "")
    assert line.why.startswith("control: -0.0600 [-0.0")
    assert line.why.endswith("] nats, leaves out 0")


def test_a_positive_control_is_seen_above_0_and_up_to_ten_margins_whatever_its_verdict():
    small = of(moved(0.009, 0.2), "positive")
    assert row(small, "control")["verdict"] == "equivalent"
    assert small.controls["positive"] == Check(True, "control harms by 0.009 nats, 0.45 margins")
    assert of(moved(0.19), "positive").controls["positive"].holds
    strong = of(moved(0.21), "positive").controls["positive"]
    assert not strong.holds
    assert strong.why.endswith(
        "it shows that a catastrophe is seen, not a difference of the margin's size"
    )
    unseen = of(moved(0.0), "positive").controls["positive"]
    assert not unseen.holds
    assert unseen.why.startswith("control was not seen to harm: +0.0000 [-0.0")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["collapsed"] * 5, "control collapsed: it shows that a catastrophe is seen"),
        (["diverged"] * 5, "control diverged: it shows that a catastrophe is seen"),
        (["error"] * 5, "control failed"),
        (["pending"] * 5, "control has not finished"),
    ],
)
def test_a_positive_control_without_a_loss_is_not_seen(words, why):
    check = of(words, "positive").controls["positive"]
    assert not check.holds
    assert check.why.startswith(why)


def test_a_positive_control_that_was_too_short_or_has_no_margin_is_not_seen():
    made = SimpleNamespace(verdict="too short", difference=0.1, low=0.1, high=0.1, unit="nats")
    assert controls.seen(made, 0.02) == Check(holds=False, why="is too short")
    assert (
        "the experiment states none"
        in controls.seen(SimpleNamespace(**{**vars(made), "verdict": "worse"}), None).why
    )
    assert controls.calibration(SimpleNamespace(**{**vars(made), "difference": math.nan}))


def test_a_difference_that_was_seen_needs_no_positive_control_and_always_a_bound_of_bias():
    checks = {"aa": Check(holds=True, why="x"), "positive": Check(holds=False, why="y")}
    assert controls.failing(checks, seen_to_differ=True) == ""
    assert controls.failing(checks, seen_to_differ=False) == "y"
    checks = {"aa": Check(holds=False, why="x"), "positive": Check(holds=True, why="y")}
    assert controls.failing(checks, seen_to_differ=True) == "x"


@pytest.mark.parametrize("margins", [0.5, 1.0, 2.0])
def test_a_fault_of_all_arms_but_the_baseline_is_always_caught(margins, volume):
    """Four arms, five seeds, a margin of three deviations; by an A/A arm within the margin: 32%.

    The repeated baseline has the fault too: no null row is better, worse or equivalent beyond it.
    """
    count, generator, margin = volume(200, 10_000, 10_000), np.random.default_rng(1), 3.0
    fault, false = margins * margin, 0
    for _ in range(count):
        rows = simultaneous(
            {str(i): list(fault + own) for i, own in enumerate(generator.normal(size=(4, 5)))}
        )
        wider = [row.widened((fault, fault)) for row in rows.values()]
        false += any(row.low > 0 or row.high < 0 for row in wider)
    assert false / count <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / count)


def test_a_fault_is_caught_through_the_whole_table():
    fault = [loss + 0.03 for loss in BASE]
    arms = {"base": BASE, "null": moved(0.03), "real": moved(-0.2), "again": fault}
    table = frames(
        {"": arms}, changes={"again": {"role": "aa", "reseed": "none"}}, margin="0.02 nats"
    ).table
    words = framed(table.comparison).set_index("label")["verdict"]
    assert words[["null", "real"]].tolist() == ["inconclusive", "better"]


def test_in_a_factorial_design_the_bias_weighs_as_the_baselines_cell_does():
    levels = {f"{n}{b}": {"norm": n, "block": b} for n in (0, 1) for b in (0, 1)}
    losses = {f"{n}{b}": moved(0.3 * n, 1 + n / 2 + b / 3) for n in (0, 1) for b in (0, 1)}
    design = {"design": "product", "axes": {"norm": ["a", "b"], "block": ["a", "b"]}}

    def ends(again, changes):
        from llama_ablate.findings import contrasts

        made = frames({"": losses | again}, levels=levels, changes=changes, variants=design)
        return framed(contrasts.factors(made.table)).set_index("factor").loc["norm"]

    plain = ends({}, {})
    fault = {"again": [loss + 0.04 for loss in losses["00"]]}
    wider = ends(fault, {"again": {"role": "aa", "reseed": "none"}})
    # Three of four cells carry it: one half of one side and all of the other, 0.04 x 1/2.
    assert plain["low"] - wider["low"] == pytest.approx(0.02)
    assert wider["high"] == pytest.approx(plain["high"])
    assert plain["bias"] == "not bounded"


def test_no_arm_is_called_equivalent_where_none_has_learned_more_than_token_frequencies():
    """At 0.05 nats below the loss of token frequencies; at 0.15 the same arms are equivalent."""
    arms = {"": {"base": BASE, "arm": moved(0.0)}}
    for gain, verdict in ((0.05, "no verdict"), (0.15, "equivalent")):
        plain = frames(arms, margin="0.05 nats").table
        numbers = {
            "validation_loss_nats": 2.0,
            "unigram_loss_nats": 2.0 + gain,
        }
        found = replace(plain, planned=changed(plain.planned, lambda _run: True, numbers))
        assert row(found)["verdict"] == verdict
        assert ("learned" in found.controls) == (verdict == "no verdict")
