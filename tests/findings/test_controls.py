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


def test_known_harm_is_noticed_above_0_from_one_to_ten_margins_and_changes_no_verdict():
    small = of(move(0.009, 0.2), "positive")
    assert row(small, "control")["verdict"] == "equivalent"
    too_weak = "harms by 0.009 nats, 0.45 times the margin: a harm so small decides nothing"
    assert check(small) == ("positive", "fails", too_weak)
    assert check(of(move(0.19), "positive"))[1] == "holds"
    too_strong = "it does not show that small harm would be noticed"
    name, result, why = check(of(move(0.22), "positive"))
    assert (name, result) == ("positive", "fails")
    assert why == f"harms by 0.22 nats, 11 times the margin: {too_strong}"
    table = of(move(0.0), "positive")
    assert check(table)[1] == "fails"
    assert check(table)[2].startswith("was not seen to harm: +0.0000 [-0.0")
    assert row(table).drop("places").equals(row(of(None)).drop("places"))
    other_way = of(move(-0.1), "positive")
    assert check(other_way)[:2] == ("positive", "fails")
    assert check(other_way)[2].startswith("went the other way, it was better: -0.1000 [-0.1")
    plain = frames({"": {"base": BASE, "control": move(0.5)}}, roles={"control": "positive"}).table
    assert check(plain)[2] == "harms by 0.5 nats; the experiment states no margin"


def test_known_harm_without_a_loss_is_not_noticed():
    lost = "collapsed: it does not show that small harm would be noticed"
    for word, why in {"collapsed": lost, "error": "failed", "pending": "has not finished"}.items():
        assert check(of([word] * 5, "positive")) == ("positive", "fails", why)

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
