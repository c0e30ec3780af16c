"""Controls: a repeated baseline bounds a bias, a known harm shows that harm would be noticed."""

import math
from dataclasses import replace

import pytest

from llama_ablate.findings.compare import find_bias
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.controls import check_controls, list_failing
from llama_ablate.findings.factors import estimate_factors
from llama_ablate.findings.union import union
from llama_ablate.results import Store
from tests.evidence.rows import row_of
from tests.in_process import run_in_process
from tests.tables import BASE, NOISE, PRODUCT, SQUARE, changed, frames, move

#: Differences of a repeated baseline from the baseline by seed.
SHIFTS = [1e-4, 2e-4, 3e-4, 2e-4, 2e-4]


def of(losses, role="", reseed="", **more):
    """A table of a baseline, an arm that is 0.05 better, and one control."""
    arms = {"base": BASE, "arm": move(-0.05, 2.0), **({"control": losses} if losses else {})}
    changes = {"control": {"role": role, "reseed": reseed}} if losses else {}
    return frames({"": arms}, changes=changes, margin="0.02 nats", **more).table


def row(table, label="arm"):
    return compare_variants(table).set_index("label").loc[label]


def check(table):
    """The control of a table: which it is, whether it holds, and why."""
    (found,) = check_controls(table).itertuples()
    assert list_failing(table) == [f"'control' {found.why}"] * (found.result == "fails")
    return found.control, found.result, found.why


def test_a_repeated_baseline_that_is_equal_bit_for_bit_excludes_a_bias_and_widens_nothing():
    table, plain = of(BASE[:1], "aa", "none"), of(None)
    assert (find_bias(table), find_bias(plain)) == ((0, 0), None)
    ends = ["low", "high", "verdict"]
    assert row(table)[ends].tolist() == row(plain)[ends].tolist()
    assert row(table, "control")[["n", "low", "high", "verdict"]].tolist() == [1, 0, 0, "equal"]
    why = "equals the baseline bit for bit: the harness adds no difference between arms"
    assert check(table) == ("repeat", "holds", why)


def test_a_repeated_baseline_that_differs_widens_every_row_by_its_interval_on_one_side():
    table = of([loss + by for loss, by in zip(BASE, SHIFTS, strict=True)], "aa", "none")
    plain, own = row(of(None)), row_of(SHIFTS)
    assert own["low"] > 0
    assert find_bias(table) == pytest.approx((own["low"], own["high"]))
    assert row(table)["low"] == pytest.approx(plain["low"] - own["high"])
    assert row(table)["high"] == pytest.approx(plain["high"])
    why = "differs by +0.000200 [+0.000112, +0.000288] nats: every row is wider by that"
    assert check(table) == ("repeat", "holds", why)


def test_a_repeated_baseline_that_differs_in_its_one_seed_leaves_every_row_undecided():
    table = of([BASE[0] + 1e-9], "aa", "none")
    assert row(table)[["low", "high", "verdict"]].tolist() == [-math.inf, math.inf, "inconclusive"]
    why = "differs by +1e-09 nats in its one seed: nothing bounds that"
    assert check(table) == ("repeat", "fails", why)
    assert check(of(["failed"], "aa", "none")) == ("repeat", "fails", "failed")


@pytest.mark.parametrize("first", [0, 1])
def test_a_repeated_baseline_of_one_experiment_widens_the_rows_of_a_union_in_any_order(first):
    losses = {"base": BASE, "arm": move(-0.05, 2.0)}
    shifted = [loss + by for loss, by in zip(BASE, SHIFTS, strict=True)]
    changes = {"control": {"role": "aa", "reseed": "none"}}
    with_control = frames({"": losses | {"control": shifted}}, changes=changes)
    both = [frames({"": losses}), with_control]
    (joined,) = union([both[first], both[1 - first]]).tables
    assert find_bias(both[0].table) is None
    own = row_of(SHIFTS)
    assert find_bias(joined) == pytest.approx((own["low"], own["high"]))
    ends = ["low", "high", "difference", "verdict"]
    assert row(joined)[ends].tolist() == row(with_control.table)[ends].tolist()
    assert row(joined)["low"] < row(both[0].table)["low"]


def test_the_baseline_with_other_draws_cannot_fail_and_changes_no_row():
    for by, leaves in ((-0.06, "leaves out 0"), (0.0, "holds 0")):
        table = of(move(by), "aa", "both")
        assert find_bias(table) is None
        assert row(table)["low"] == row(of(None))["low"]
        name, result, why = check(table)
        assert (name, result) == ("redraw", "")
        assert why.startswith(f"{by:+z.4f} [")
        assert why.endswith(f"] nats, {leaves}")


@pytest.mark.parametrize(
    ("losses", "result", "why"),
    [
        (move(0.009, 0.2), "fails", "harms by 0.009 nats, 0.45 times the margin"),
        (move(0.19), "holds", "harms by 0.19 nats, 9.5 times the margin"),
        (move(0.22), "fails", "harms by 0.22 nats, 11 times the margin"),
        (move(0.0), "fails", "was not seen to harm: +0.0000 [-0.0"),
        (move(-0.1), "fails", "went the other way, it was better: -0.1000 [-0.1"),
        (["collapsed"] * 5, "fails", "collapsed"),
        (["error"] * 5, "fails", "failed"),
        (["pending"] * 5, "fails", "has not finished"),
    ],
)
def test_known_harm_holds_above_0_from_one_to_ten_margins_and_changes_no_row(losses, result, why):
    table = of(losses, "positive")
    name, found, told = check(table)
    assert (name, found, told[: len(why)]) == ("positive", result, why)
    assert row(table).drop("places").equals(row(of(None)).drop("places"))


def test_known_harm_that_was_too_short_fails():
    table = of(move(0.1), "positive")
    short = changed(table.planned, lambda run: run.role == "positive", too_short=True)
    assert check(replace(table, planned=short)) == ("positive", "fails", "is too short")


def test_in_a_factorial_design_the_bias_weighs_as_the_baselines_cell_does():
    losses = {
        cell: move(0.3 * at["norm"], 1 + at["norm"] / 2 + at["block"] / 3)
        for cell, at in SQUARE.items()
    }

    def ends(again, changes):
        made = frames({"": losses | again}, levels=SQUARE, changes=changes, variants=PRODUCT)
        return estimate_factors(made.table).set_index("factor")[["low", "high"]]

    fault = {
        "again": [loss + 0.04 + own / 1e9 for loss, own in zip(losses["00"], NOISE, strict=True)]
    }
    wider = ends(fault, {"again": {"role": "aa", "reseed": "none"}}) - ends({}, {})
    # Three of four cells carry it: of a factor all of one side and half of the other, in an
    # interaction it is twice on the side that is taken and once on the other.
    assert wider.loc["norm"].tolist() == pytest.approx([-0.04 / 2, 0], abs=1e-9)
    assert wider.loc["norm x block"].tolist() == pytest.approx([0, 0.04], abs=1e-9)


def test_no_arm_is_called_equivalent_where_none_has_learned_more_than_token_frequencies():
    """At 0.05 nats below the loss of token frequencies; at 0.15 the same arms are equivalent."""
    plain = frames({"": {"base": BASE, "arm": move(0.0)}}, margin="0.05 nats").table
    for gain, verdict in ((0.05, "inconclusive"), (0.15, "equivalent")):
        numbers = {"validation_loss_nats": 2.0, "unigram_loss_nats": 2.0 + gain}
        found = replace(plain, planned=changed(plain.planned, lambda _run: True, numbers))
        assert row(found)["verdict"] == verdict
        assert found.has_learned == (verdict == "equivalent")


def test_arms_of_other_draws_start_or_read_otherwise(experiment_file, tmp_path):
    file = experiment_file(controls="{aa: [init, order]}", margin="0.02 nats")
    assert run_in_process(file, tmp_path) == 0
    records = (record for record in Store(tmp_path / "tiny").records() if record.seed == 0)
    losses = {record.label: record.numbers["validation_loss_nats"] for record in records}
    assert len(losses) == len({*losses.values()}) == 4
