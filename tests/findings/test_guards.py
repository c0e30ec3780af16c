"""Tasks and guards in a report: differences of answers, and what is worse whatever the loss."""

import math
from dataclasses import replace

import numpy as np
import pytest

from llama_ablate.evidence.item_error import item_error, least_error
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.hypotheses import judge_hypotheses
from llama_ablate.findings.others import compare_others, list_other_items
from tests import tables
from tests.evidence.rows import row_of, rows_of
from tests.metric_rows import make_values, of_run
from tests.tables import sentences_of as warnings

GUARD = {"metric": "cloze", "quantity": "accuracy", "worse": "lower", "worse_by": "0.05 points"}
#: Both are better in loss; one of them answers worse.
LOSSES = {
    "base": [2.00, 2.01, 2.02],
    "worse": [1.90, 1.91, 1.93],
    "as good": [1.90, 1.92, 1.92],
}


def right(share, seed):
    """Return 400 answers, of which a share is right: mostly the same ones in every seed."""
    luck = np.random.default_rng(0).random(400) + 0.02 * np.random.default_rng(seed).random(400)
    return (luck < share).astype(float)


ANSWERS = {
    "base": [right(0.8, s) for s in range(3)],
    "worse": [right(0.6, s) for s in range(3)],
    "as good": [right(0.8, s + 3) for s in range(3)],
}


def answered(frames, answers=ANSWERS, prints=None):
    """Add the answers of each run to frames made by hand, as the metric gives them."""
    (table,) = frames.tables
    rows, shares = [], []
    for run in table.planned.itertuples():
        shares.append(math.nan)
        for scores in answers.get(run.label, [])[run.seed : run.seed + 1]:
            shares[-1] = scores.mean()
            where = {"task": "own", "fingerprint": (prints or {}).get(run.label, "same")}
            given = scores, scores.mean(), "own_accuracy"
            rows.append(of_run(run, "cloze", "accuracy", *given, task="own"))
            rows.append(of_run(run, "cloze", "items", (400,), 400, "own_items", **where))
    planned = table.planned.assign(own_accuracy=shares)
    return replace(frames, tables=(replace(table, planned=planned, measured=make_values(rows)),))


def results_of(table):
    """Return the results of a table's guards, without those of the baseline."""
    rows = compare_others(table)
    return rows.loc[rows["result"] != "", "result"].tolist()


@pytest.fixture
def frames():
    def make(answers=ANSWERS, losses=LOSSES, prints=None, **experiment):
        plain = tables.frames({"": losses}, **{"guard": [GUARD], **experiment})
        return answered(plain, answers, prints)

    return make


def test_a_task_has_the_paired_difference_of_its_answers_with_the_error_of_its_items(frames):
    frame = compare_others(frames().table).set_index("label")
    assert frame.loc["base", "value"] == np.mean(ANSWERS["base"])
    labels = ("worse", "as good")
    differences = [np.subtract(ANSWERS[label], ANSWERS["base"]) for label in labels]
    errors = [item_error(own, least=1 / 402) for own in differences]
    pairs = [(error.se, error.df) for error in errors]
    expected, _ = rows_of([own.mean(1) for own in differences], pairs)
    row = frame.loc["worse"]
    assert row["difference"] == pytest.approx(differences[0].mean())
    assert (row["low"], row["high"]) == pytest.approx((expected["low"], expected["high"]))
    assert list(frame["verdict"]) == ["baseline", "worse", "inconclusive"]
    assert errors[0].se > 0.01  # of 400 items, beside that of three seeds
    assert least_error(400) == 1 / 402


def test_a_variant_that_is_better_in_loss_and_worse_in_a_guard_is_reported_everywhere(frames):
    found = frames(hypotheses=[{"variant": "worse", "direction": "better"}])
    rows = compare_variants(found.table)
    assert list(rows["verdict"]) == ["baseline", "better", "better"]
    assert list(rows["guard"]) == ["", "worse in own_accuracy", ""]
    assert any("worse in a guarded metric: 'worse' (own_acc" in line for line in warnings(found))
    (hypothesis,) = judge_hypotheses(found).to_dict("records")
    assert (hypothesis["result"], hypothesis["remark"]) == ("supported", "worse in own_accuracy")
    others = compare_others(found.table)
    assert list(others["result"]) == ["", "worse", "holds"]
    assert list(others["worse_by"]) == ["", *["0.05 points"] * 2]


def test_a_guard_is_broken_only_where_the_whole_interval_lies_beyond_it(frames):
    """The difference is -0.18: by more than 0.05 for sure, perhaps by more than 0.17 or 0.2."""
    results = [
        results_of(frames(guard=[{**GUARD, "worse_by": allowed}]).table)[0]
        for allowed in ("0.05 points", "0.17 points", "0.2 points", "0.4 points", "1%", "60%")
    ]
    absolute, relative = ["worse", "undecided", "undecided", "holds"], ["worse", "holds"]
    assert results == absolute + relative


@pytest.mark.parametrize("worse", ["higher", "lower"])
def test_a_guard_in_percent_compares_ratios_of_any_size_and_none_with_a_baseline_of_0(worse):
    """Thirty times as many are 2,900% more; 1 and -1 are no limits of a log ratio."""
    guard = {"metric": "kv", "quantity": "bytes", "worse": worse, "worse_by": "50%"}
    times = 30.0 if worse == "higher" else 1 / 30
    table = tables.frames({"": {"base": [2.0] * 3, "a": [2.1] * 3}}, guard=[guard]).table

    def rows(base):
        values = {"base": base, "a": [times * of for of in (10.0, 11.0, 10.5)]}
        count = [values[run.label][run.seed] for run in table.planned.itertuples()]
        runs = zip(table.planned.itertuples(), count, strict=True)
        measured = make_values(of_run(run, "kv", "bytes", (), n, "kv_bytes") for run, n in runs)
        planned = table.planned.assign(kv_bytes=count)
        return compare_others(replace(table, planned=planned, measured=measured)).iloc[1]

    row = rows([10.0, 11.0, 10.0])
    assert row["difference"] == pytest.approx(100 * (times * 1.05 ** (1 / 3) - 1))
    assert (row["result"], row["unit"], row["n"]) == ("worse", "%", 3)
    assert row["low"] < row["difference"] < row["high"]
    assert rows([10.0, 11.0, 0.0])["n"] == 2
    none = rows([0.0, 0.0, 0.0])
    assert (none["n"], none["result"]) == (0, "not measured")


def test_a_variant_without_runs_is_pending_and_one_without_the_number_not_measured(frames):
    answers = {"base": ANSWERS["base"], "as good": []}
    missing = frames(answers, {**LOSSES, "worse": ["pending"] * 3}).table
    assert results_of(missing) == ["pending", "not measured"]
    assert set(compare_variants(missing)["guard"]) == {""}


def test_a_run_that_was_too_short_answers_no_task_and_breaks_no_guard(frames):
    (table,) = frames().tables
    short = tables.changed(table.planned, lambda run: run.label == "base", too_short=True)
    rows = compare_others(replace(table, planned=short))
    assert list(rows["verdict"]) == ["baseline", "too short", "too short"]
    assert list(rows["result"]) == ["", "too short", "too short"]


ABOUT_ANSWERS = {"variant": "worse", "direction": "lower", "measure": "own_accuracy"}


def test_answers_to_other_items_are_not_compared_and_a_warning_says_so(frames):
    other = frames(prints={"worse": "edited"}, hypotheses=[ABOUT_ANSWERS])
    assert list_other_items(other.table) == ["own"]
    assert list(compare_others(other.table)["n"])[1:] == [0, 3]
    assert any("'own'" in line and "other items" in line for line in warnings(other))
    assert not any("other items" in line for line in warnings(frames()))
    (row,) = judge_hypotheses(other).to_dict("records")
    assert row["result"] == "undecidable"
    assert "other items" in row["why"]


def test_a_hypothesis_about_answers_has_the_error_of_the_items(frames):
    (row,) = judge_hypotheses(frames(hypotheses=[ABOUT_ANSWERS])).to_dict("records")
    differences = np.array(ANSWERS["worse"]) - np.array(ANSWERS["base"])
    alone = row_of(differences.mean(1))
    assert row["result"] == "supported"
    assert row["high"] - row["low"] > alone["high"] - alone["low"]


def test_a_hypothesis_about_a_number_that_is_counted_is_decided_by_that_number():
    stated = {"variant": "worse", "direction": "lower", "measure": "kv_cache_bytes"}
    plain = tables.frames({"": LOSSES}, hypotheses=[stated])
    (table,) = plain.tables
    sizes = {"base": 128.0, "worse": 64.0, "as good": 128.0}
    named = {"metric": "kv_cache", "name": "kv_cache_bytes", "quantity": "bytes"}
    counted = [
        {"variant": of.id, "label": of.label, "value": sizes[of.label], **named}
        for of in table.plan.variants
    ]
    found = replace(plain, tables=(replace(table, measured=make_values(counted)),))
    (row,) = judge_hypotheses(found).to_dict("records")
    assert (row["result"], row["difference"], row["low"]) == ("supported", -64, -64)
