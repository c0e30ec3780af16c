"""Audit files: findings beside what was claimed, and mistakes in one line."""

import math
import sys

import pytest
import torch

from analysis.claims import findings
from analysis.claims.__main__ import main
from benchmarks.components import BENCHES, Bench
from benchmarks.components.timing import AGAIN, Table
from llama_ablate.files.strict_json import read_json

FILE = """name: some audit
question: Does it hold?
findings:
  - {number: {name: kv_computations, what: mean}, at_least: 99, claims: [001-02], said: 99 times}
  - {number: future_seen, at_most: 0, claims: [001-01]}
"""


@pytest.fixture
def audit(tmp_path, monkeypatch):
    """Run an audit file as the command does: a function from its text to the exit code."""

    def run(text=FILE):
        file = tmp_path / "audit.yaml"
        file.write_text(text, "utf-8")
        monkeypatch.setattr(sys, "argv", ["", str(file), "--results", str(tmp_path / "out")])
        try:
            main()
        except SystemExit as stopped:
            return stopped.code
        return 0

    return run


def test_what_was_measured_stands_beside_what_was_claimed(audit, tmp_path, capsys):
    assert audit() == 0
    assert "99 times" in capsys.readouterr().out
    rows = read_json(tmp_path / "out" / "some-audit" / "findings.json")["findings"]
    assert [row["finding"] for row in rows] == ["refuted", "supported"]
    assert rows[0]["measured"] == 49.5
    assert "| refuted |" in (tmp_path / "out" / "some-audit" / "report.md").read_text("utf-8")
    assert findings.measured(tmp_path / "out")["some-audit"]["findings"] == rows


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kv_computations", "kv_computation", "is not a check; allowed"),
        ("what: mean", "waht: mean", "unknown key 'waht'"),
        (", at_least: 99", "", "needs 'at_least', 'at_most' or both"),
        ("number: future_seen", "table: a, case: b, to: c", "needs a 'bench' in the file"),
        ("number: future_seen, ", "", "takes either a 'number'"),
        ("question:", "bench: {name: nroms}\nquestion:", "did you mean 'norms'?"),
        (
            "name: kv_computations, what: mean",
            "name: part_parameters, part: foo",
            "KeyError: 'foo'",
        ),
        ("name: kv_computations, what: mean", "name: kv_computations, new: 0", "ZeroDivisionErr"),
        ("at_least: 99", "at_least: 99, at_most: 1", "at_least 99 is above at_most 1"),
        ("question:", "bench: {name: norms, dtype: foo}\nquestion:", "allowed: bfloat16, float32"),
        (
            "question:",
            "bench: {name: norms, dim: 65536, rows: 1048576}\nquestion:",
            "bench: dim 65536 x rows 1048576 need some 10,240 GiB, more than is free",
        ),
        ("question:", "bench: {name: norms, rounds: 1}\nquestion:", "bench.rounds"),
        ("question:", "bench: {name: norms, processes: 1}\nquestion:", "bench.processes"),
    ],
)
def test_an_audit_that_makes_no_sense_is_one_line(audit, tmp_path, capsys, old, new, message):
    assert audit(FILE.replace(old, new)) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "audit.yaml:" in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_case_that_could_not_be_timed_is_undecided():
    audit = findings.Audit.check(
        {
            "name": "x",
            "bench": {"name": "norms"},
            "findings": [{"table": "forward", "case": "a", "to": "b", "at_least": 1.0}],
        }
    )
    (row,) = findings.measure(audit, [])
    assert math.isnan(row["measured"])
    assert row["finding"] == "undecided"
    assert findings.written(row) == "not measured"


def _timed(again, more, processes=5):
    """Return a table in which b takes 1.5 times as long as a, with controls of given ratios."""
    seconds = {"a": 1.0, "b": 1.5, f"a{AGAIN}": again, "more": more}
    controls = {"aa": (f"a{AGAIN}", "a"), "positive": ("more", "a")}
    turns = {case: [[s]] * processes for case, s in seconds.items()}
    return Table("forward", "a", turns, {}, "", controls)


@pytest.mark.parametrize(
    ("again", "more", "bounds", "finding", "interval", "controls"),
    [
        (1.0, 1.1, {"at_least": 1.2}, "supported", (1.5, 1.5), "hold"),
        # The same code again took a fifth longer: so may the ratio be, and no more.
        (1.2, 1.1, {"at_least": 1.2}, "supported", (1.25, 1.5), "hold in 0 of 1 tables"),
        (1.3, 1.1, {"at_least": 1.2}, "undecided", (1.5 / 1.3, 1.5), "hold in 0 of 1 tables"),
        (0.8, 1.1, {"at_most": 1.6}, "undecided", (1.5, 1.875), "hold in 0 of 1 tables"),
        # A difference was seen, whether or not the positive control's was.
        (1.0, 1.0, {"at_least": 1.2}, "supported", (1.5, 1.5), "hold in 0 of 1 tables"),
        (1.6, 1.0, {"at_least": 0.9}, "no verdict", (1.5 / 1.6, 1.5), "hold in 0 of 1 tables"),
        (1.6, 1.1, {"at_least": 0.9}, "supported", (1.5 / 1.6, 1.5), "hold in 0 of 1 tables"),
    ],
)
def test_the_same_code_timed_again_widens_a_ratio_and_near_one_a_difference_must_be_seen(
    again, more, bounds, finding, interval, controls
):
    ratio = {"table": "forward", "case": "b", "to": "a", **bounds}
    bench = {"name": "norms"}
    audit = findings.Audit.check({"name": "x", "bench": bench, "findings": [ratio]})
    table = _timed(again, more)
    (row,) = findings.measure(audit, [table])
    why = "the control fails: more: 1.00x [1.00, 1.00]" if finding == "no verdict" else ""
    assert (row["finding"], row["why"]) == (finding, why)
    assert (row["measured"], row["low"], row["high"]) == pytest.approx((1.5, 1.5, 1.5))
    wide = findings.judged(audit.findings[0], row, [table.to_dict()])
    assert (wide["low"], wide["high"]) == pytest.approx(interval)
    assert findings.timing_controls({"tables": [table.to_dict()]}) == controls
    assert findings.timing_controls({"tables": []}) == "in the check itself"


def test_an_audit_for_a_gpu_is_not_tested_elsewhere_and_what_is_there_stays(
    audit, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    there = tmp_path / "out" / "some-audit" / "findings.json"
    there.parent.mkdir(parents=True)
    there.write_text("{}", "utf-8")
    assert audit(FILE.replace("question:", "bench: {name: norms, device: cuda}\nquestion:")) == 0
    assert capsys.readouterr().out == "some audit: not tested: no GPU\n"
    assert there.read_text("utf-8") == "{}"


@pytest.mark.usefixtures("in_process")
def test_an_audit_says_where_it_was_timed_and_whether_its_controls_hold(
    audit, tmp_path, monkeypatch
):
    bench = Bench(lambda _setup: [_timed(1.0, 1.1, processes=1)], lambda _tables: [])
    monkeypatch.setitem(BENCHES, "norms", bench)
    ratio = "  - {table: forward, case: b, to: a, at_least: 1.2}\n"
    named = "bench: {name: norms, processes: 3, rounds: 5, device: cpu}\nquestion:"
    assert audit(FILE.replace("question:", named) + ratio) == 0
    folder = tmp_path / "out" / "some-audit"
    values = read_json(folder / "findings.json")
    assert (values["setup"]["device"], values["setup"]["processes"]) == ("cpu", 3)
    assert values["findings"][-1]["finding"] == "supported"
    report = (folder / "report.md").read_text("utf-8")
    assert "cpu, 1 threads, float32; 3 processes of 5 rounds each" in report
    assert f"A/A holds: a{AGAIN}: 1.00x [1.00, 1.00]" in report
    assert "positive control holds: more: 1.10x [1.10, 1.10]" in report


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.06, 1.09, "supported"),
        (1.05, 1.10, "supported"),
        (1.04, 1.09, "undecided"),
        (1.06, 1.11, "undecided"),
        (1.11, 1.20, "refuted"),
        (0.90, 1.04, "refuted"),
    ],
)
def test_an_interval_within_the_bounds_supports_and_one_outside_refutes(low, high, verdict):
    finding = findings.Finding.check({"number": "future_seen", "at_least": 1.05, "at_most": 1.10})
    assert finding.verdict((low + high) / 2, low, high) == verdict
