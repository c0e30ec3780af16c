"""Tasks and guards in a report: differences of answers, and what is worse whatever the loss."""

import json
from dataclasses import replace

import numpy as np
import pytest

from llama_ablate.commands.cli import main
from llama_ablate.evidence import simultaneous
from llama_ablate.evidence.item_error import item_error, least_error
from llama_ablate.findings import hypotheses, secondary
from llama_ablate.findings.rows import cells
from llama_ablate.findings.rows import frame as framed
from llama_ablate.findings.secondary import judge_secondary
from llama_ablate.findings.values import MeasuredValues, MetricRow
from llama_ablate.report.sections import SECTIONS
from llama_ablate.results import Results
from tests import tables
from tests.conftest import LEARNS
from tests.in_process import in_process, run_in_process
from tests.metric_rows import of_run
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
    rows, planned = [], []
    for run in table.planned:
        numbers = dict(run.numbers)
        for scores in answers.get(run.label, [])[run.seed : run.seed + 1]:
            share = numbers["own_accuracy"] = scores.mean()
            accuracy = of_run(run, "cloze", "accuracy", scores, share, "own_accuracy", task="own")
            where = {"task": "own", "fingerprint": (prints or {}).get(run.label, "same")}
            rows += [accuracy, of_run(run, "cloze", "items", (400,), 400, "own_items", **where)]
        planned.append(replace(run, numbers=numbers))
    measured = replace(table, planned=planned, metrics=MeasuredValues(rows))
    return replace(frames, tables=(measured,))


@pytest.fixture
def frames():
    def make(answers=ANSWERS, losses=LOSSES, prints=None, **experiment):
        plain = tables.frames({"": losses}, **{"guard": [GUARD], **experiment})
        return answered(plain, answers, prints)

    return make


def test_a_task_has_the_paired_difference_of_its_answers_with_the_error_of_its_items(frames):
    frame = framed(judge_secondary(frames().table)).set_index("label")
    assert frame.loc["base", "value"] == np.mean(ANSWERS["base"])
    differences = {label: np.subtract(own, ANSWERS["base"]) for label, own in ANSWERS.items()}
    del differences["base"]
    both = {label: own.mean(1).tolist() for label, own in differences.items()}
    errors = {label: item_error(own, least=1 / 402) for label, own in differences.items()}
    interval = simultaneous(both, text_errors=errors)["worse"]
    row = frame.loc["worse"]
    assert row["difference"] == pytest.approx(differences["worse"].mean())
    assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high))
    assert list(frame["verdict"]) == ["baseline", "worse", "inconclusive"]
    assert errors["worse"].se > 0.01  # of 400 items, beside that of three seeds
    assert least_error(400) == 1 / 402


def test_a_variant_that_is_better_in_loss_and_worse_in_a_guard_is_reported_everywhere(frames):
    found = frames(hypotheses=[{"variant": "worse", "direction": "better"}])
    table = found.table
    assert list(framed(table.comparison)["verdict"]) == ["baseline", "better", "better"]
    assert list(framed(table.comparison)["guard"]) == ["", "worse in own_accuracy", ""]
    shown = list(cells(table.comparison)["verdict"])
    assert shown == ["baseline", "better, worse in own_accuracy", "better"]
    mean = np.mean(np.array(ANSWERS["worse"]) - np.array(ANSWERS["base"]))
    said = f"Better in loss, but worse in a guarded metric: 'worse' (own_accuracy {mean:+.3f} ["
    assert any(line.startswith(said) for line in warnings(found))
    (hypothesis,) = framed(hypotheses.results(found)).to_dict("records")
    assert (hypothesis["result"], hypothesis["remark"]) == ("supported", "worse in own_accuracy")
    section = SECTIONS["other_metrics"].make(found, "other_metrics")
    assert list(section.frame["result"]) == ["", "worse", "holds"]
    assert list(section.cells["worse by"]) == ["", *["0.05 points lower"] * 2]


def test_a_guard_is_broken_only_where_the_whole_interval_lies_beyond_it(frames):
    """The difference is -0.18: by more than 0.05 for sure, perhaps by more than 0.17 or 0.2."""
    results = {
        allowed: frames(guard=[{**GUARD, "worse_by": allowed}]).table.guards[0].result
        for allowed in ("0.05 points", "0.17 points", "0.2 points", "0.4 points", "1%", "60%")
    }
    absolute, relative = ["worse", "undecided", "undecided", "holds"], ["worse", "holds"]
    assert list(results.values()) == absolute + relative


def test_a_guard_of_a_quantity_that_grows_worse_looks_at_the_other_side(frames):
    higher = frames(guard=[{**GUARD, "worse": "higher"}])
    assert list(framed(higher.table.guards)["result"]) == ["holds", "holds"]
    assert set(framed(higher.table.comparison)["guard"]) == {""}


def test_a_variant_without_runs_is_pending_and_one_without_the_number_not_measured(frames):
    missing = frames(
        {"base": ANSWERS["base"], "as good": []},
        {**LOSSES, "worse": ["pending"] * 3},
    )
    assert list(framed(missing.table.guards)["result"]) == ["pending", "not measured"]
    assert set(framed(missing.table.comparison)["guard"]) == {""}


def test_a_run_that_was_too_short_answers_no_task_and_breaks_no_guard(frames):
    (table,) = frames().tables
    short = tables.changed(table.planned, lambda run: run.label == "base", too_short=True)
    found = replace(table, planned=short)
    verdicts = list(framed(judge_secondary(found))["verdict"])
    assert verdicts == ["baseline", "too short", "too short"]
    assert set(framed(found.guards)["result"]) == {"too short"}


ABOUT_ANSWERS = {"variant": "worse", "direction": "lower", "measure": "own_accuracy"}


def test_answers_to_other_items_are_not_compared_and_a_warning_says_so(frames):
    other = frames(prints={"worse": "edited"}, hypotheses=[ABOUT_ANSWERS])
    assert secondary.other_items(other.table) == ["own"]
    assert list(framed(other.table.guards)["n"]) == [0, 3]
    assert any("'own'" in line and "other items" in line for line in warnings(other))
    assert not any("other items" in line for line in warnings(frames()))
    row = framed(hypotheses.results(other)).iloc[0]
    assert row["result"] == "undecidable"
    assert "other items" in row["why"]


def test_a_hypothesis_about_answers_has_the_error_of_the_items(frames):
    found = frames(hypotheses=[ABOUT_ANSWERS])
    row = framed(hypotheses.results(found)).iloc[0]
    differences = np.array(ANSWERS["worse"]) - np.array(ANSWERS["base"])
    alone = simultaneous({"x": list(differences.mean(1))})["x"]
    assert row["result"] == "supported"
    assert row["high"] - row["low"] > alone.high - alone.low


def test_a_hypothesis_about_a_number_that_is_counted_is_decided_by_that_number():
    stated = {"variant": "worse", "direction": "lower", "measure": "kv_cache_bytes"}
    plain = tables.frames({"": LOSSES}, hypotheses=[stated])
    (table,) = plain.tables
    cache = {"metric": "kv_cache", "unit": "bytes", "name": "kv_cache_bytes", "quantity": "bytes"}
    sizes = {"base": 128.0, "worse": 64.0, "as good": 128.0}
    counted = [
        MetricRow(variant=variant.id, label=variant.label, value=sizes[variant.label], **cache)
        for variant in table.plan.variants
    ]
    found = replace(plain, tables=(replace(table, metrics=MeasuredValues(counted)),))
    (row,) = framed(hypotheses.results(found)).to_dict("records")
    assert (row["result"], row["difference"]) == ("supported", -64)


def test_answers_go_from_a_file_of_items_to_every_output(experiment_file, tmp_path, capsys):
    lines = [
        {"context": "the", "choices": [" cat", " dog", "m"], "answer": i % 3} for i in range(9)
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, lines)), "utf-8")
    file = experiment_file(
        guard="{metric: cloze, worse_by: 1 points}",
        measure=f"[perplexity, {{name: cloze, task: '{tmp_path}/own.jsonl'}}]",
        train=LEARNS,
    )
    assert run_in_process(file, tmp_path / "results") == 0
    capsys.readouterr()
    results = tmp_path / "results" / "tiny"
    opened = Results.open(results)
    record = opened.record(next(iter(opened.finished)))
    (accuracy,) = (r for r in record.metrics["cloze"].rows if r.name == "own_accuracy")
    assert len(accuracy.samples) == 9
    assert sum(accuracy.samples) / 9 == pytest.approx(accuracy.value)
    with in_process():
        assert main(["report", str(results), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [(row["variant"], row["items"], row["result"]) for row in values["other_metrics"]] == [
        ("rmsnorm (baseline)", 9, ""),
        ("layernorm", 9, "holds"),
    ]
    assert "own" in (results / "report" / "tables" / "other-metrics.csv").read_text("utf-8")
    assert "own_accuracy" in (results / "report" / "report.html").read_text("utf-8")
