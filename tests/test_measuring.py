"""What is measured of variants is measured again where what it depends on has changed."""

import json
import math

import pytest

from llama_ablate.config import experiment
from llama_ablate.design.plan import make
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.others import compare_others
from llama_ablate.launch import measurement
from llama_ablate.measure.turns import half_width, joined
from llama_ablate.report import page
from llama_ablate.results import Results, Store
from llama_ablate.results.record import Measurement, Value
from llama_ablate.training.compute import Compute
from tests.in_process import run_in_process


@pytest.fixture
def passes(experiment_file, tmp_path, monkeypatch):
    """Take the metrics of an experiment with some settings; return how many passes there were."""
    store, file, taken = Store(tmp_path / "r"), experiment_file(measure="[kv_cache]"), []
    store.prepare()

    def call(_task, arms, choices, *_given, **_more):
        taken.append(arms)
        return [{choice.name: Measurement() for choice in choices} for _ in arms]

    monkeypatch.setattr(measurement.processes, "call", call)
    monkeypatch.setattr(Store, "records", lambda _self: [])

    def measure(*sets, **more):
        compute = Compute(kernel=more.pop("kernel", "math"))
        plan = make(experiment.load(file, sets)).model_copy(update={"compute": compute})
        metrics = measurement.metrics_of(plan)
        measurement.measure_variants(store, plan, metrics, lambda *_: None, **more)
        return len(taken)

    return measure


@pytest.mark.parametrize("changed", ["train.batch=2", "data.tokenizer=chars"])
def test_speeds_are_measured_again_where_what_they_depend_on_was_edited(passes, changed):
    """In one folder 91,011 tokens/s of another batch was shown where a fresh one gives 22,397."""
    assert passes() == passes("train.steps=9", "seeds=3") == 1
    assert passes(changed) == 2


@pytest.mark.parametrize(("a_process_s", "processes"), [(0, 5), (200, 4), (1000, 2)])
def test_speeds_are_taken_in_processes_started_anew_for_ten_minutes_and_sizes_once(
    experiment_file, tmp_path, monkeypatch, a_process_s, processes
):
    calls, now = [], [0.0]

    def call(_task, arms, choices, _compute, rounds, limit_s, *, anew, **_more):
        names = [choice.name for choice in choices]
        calls.append((names, rounds, limit_s, anew))
        now[0] += a_process_s * anew
        speed = Value("x", float(len(calls)), samples=(float(len(calls)),) * rounds)
        return [{name: Measurement((speed,)) for name in names} for _ in arms]

    monkeypatch.setattr(measurement.processes, "call", call)
    monkeypatch.setattr(measurement.time, "monotonic", lambda: now[0])
    store = Store(tmp_path / "r")
    store.prepare()
    file = experiment_file(measure="[{name: train_speed, paired: true}, kv_cache]")
    plan = make(experiment.load(file)).model_copy(update={"compute": Compute()})
    metrics = measurement.metrics_of(plan)
    measurement.measure_variants(store, plan, metrics, lambda *_: None)
    once = [(["kv_cache"], 1, math.inf, False)]
    assert calls == once + [(["train_speed"], 3, 120.0, True)] * processes
    for variant in plan.tables[0].variants:
        metrics = store.metrics_of([variant.id])[variant.id]
        (speed,) = metrics["train_speed"].rows
        turns = tuple((2.0 + i,) * 3 for i in range(processes))
        assert (speed.value, speed.by_process) == (1.5 + processes / 2, turns)
        assert metrics["kv_cache"].numbers == {"x": 1.0}


def test_a_speed_that_is_not_paired_takes_one_process_or_none_and_leaves_what_was(passes):
    assert passes("measure=[train_speed]") == 0  # which is that of the runs
    assert passes("measure=[decode_speed]") == 1
    assert passes("measure=[{name: decode_speed, paired: true}]") == 6
    assert passes("measure=[decode_speed]") == 6


def test_a_paired_pass_goes_on_to_ten_processes_where_an_interval_stays_wide():
    def arm(*speeds):
        rows = [Value("x", v, "train_speed", samples=(v,) * 3, turns=(3,)) for v in speeds]
        return joined([Measurement((row,)) for row in rows])

    base, like = arm(1.0, 2.0, 1.0), arm(1.01, 2.0, 1.0)
    unlike = arm(1.5, 2.0, 1.0)
    assert half_width([base, like], [0, 0], "train_speed") < 0.05
    assert half_width([base, like, unlike], [0, 0, 0], "train_speed") > 0.05
    assert half_width([base, unlike], [0, 1], "train_speed") == 0  # of another table


def test_a_metric_whose_options_were_changed_is_measured_again_from_weights_or_not_read(
    experiment_file, tmp_path, monkeypatch, capsys
):
    """A finished run kept the answers to the old tasks, a guard looked at them, nothing said so."""
    monkeypatch.setattr(page, "write", lambda *_: ("nowhere", []))

    def run(words):
        task = tmp_path / f"{words}.jsonl"
        lines = [{"context": "the", "choices": [" cat", " dog"], "answer": i % 2} for i in range(4)]
        task.write_text("\n".join(map(json.dumps, lines)), "utf-8")
        measure = f"[perplexity, {{name: cloze, task: '{task}'}}]"
        file = experiment_file(guard="{metric: cloze, worse_by: 1 points}", measure=measure)
        assert run_in_process(file, tmp_path / "r") == 0
        table = Frames.of(Results.open(tmp_path / "r" / "tiny")).table
        rows = compare_others(table)
        judged = rows[rows["result"].ne("")]
        guarded = [*zip(judged["measure"], judged["result"], strict=True)]
        tasks = {*rows["task"]} - {""}
        return tasks, guarded, capsys.readouterr().err

    for words in ("first", "second"):
        tasks, guarded, _ = run(words)
        assert tasks == {words}
        assert guarded == [(f"{words}_accuracy", "too short")]  # of so few steps
    for weights in (tmp_path / "r").rglob("*.safetensors"):
        weights.unlink()
    tasks, guarded, notes = run("third")
    assert not tasks
    assert guarded == [("cloze accuracy", "not measured")]
    assert "cloze was not measured of 2 of 2 finished runs of 'rmsnorm (baseline)'" in notes
    assert "second.jsonl', and the file now states 'cloze task=" in notes
