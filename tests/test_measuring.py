"""What is measured of variants is measured again where what it depends on has changed."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from llama_ablate.config import experiment
from llama_ablate.config.spec import digest
from llama_ablate.design.plan import make
from llama_ablate.errors import ConfigError
from llama_ablate.launch import measurement
from llama_ablate.measure import METRICS
from llama_ablate.results import Store
from llama_ablate.results.metrics import Measurement, Value
from llama_ablate.training.compute import Compute
from tests import plans


@pytest.fixture
def passes(experiment_file, tmp_path, monkeypatch):
    """Take the metrics of an experiment with some settings; return how many passes there were."""
    store, file, taken = Store(tmp_path / "r"), experiment_file(measure="[kv_cache]"), []
    store.prepare()

    def call(_task, arms, entries, *_given, **_more):
        taken.append(arms)
        return [{METRICS.resolve(e).name: Measurement() for e in entries} for _ in arms]

    monkeypatch.setattr(measurement.processes, "call", call)

    def measure(*sets, **more):
        compute = Compute(kernel=more.pop("kernel", "math"))
        plan = make(experiment.load(file, sets))
        measurement.measure_variants(store, plan, compute, lambda *_: None, **more)
        return len(taken)

    return measure


@pytest.mark.parametrize(
    "changed",
    [
        "train.batch=2",
        "train.accumulate=2",
        "train.precision=bfloat16",
        "train.kernel=fused",
        "data.tokenizer=chars",
    ],
)
def test_speeds_are_measured_again_where_what_they_depend_on_was_edited(passes, changed):
    """In one folder 91,011 tokens/s of another batch was shown where a fresh one gives 22,397."""
    assert passes() == 1
    assert passes() == 1
    assert passes(changed) == 2


def test_speeds_stay_where_only_the_length_of_training_changes_and_follow_the_compute(passes):
    assert passes() == passes("train.steps=9", "seeds=3") == 1
    assert passes(kernel="fused") == 2
    assert passes(kernel="fused", again=True) == 3


def test_speeds_are_taken_in_processes_started_anew_and_sizes_once(
    experiment_file, tmp_path, monkeypatch
):
    calls = []

    def call(_task, arms, entries, _compute, rounds, *, anew, **_more):
        names = [METRICS.resolve(entry).name for entry in entries]
        calls.append((names, rounds, anew))
        speed = Value("x", float(len(calls)), samples=(float(len(calls)),) * rounds)
        return [{name: Measurement((speed,)) for name in names} for _ in arms]

    monkeypatch.setattr(measurement.processes, "call", call)
    store = Store(tmp_path / "r")
    store.prepare()
    plan = make(experiment.load(experiment_file(measure="[train_speed, kv_cache]")))
    measurement.measure_variants(store, plan, Compute(), lambda *_: None)
    assert calls == [(["kv_cache"], 1, False)] + [(["train_speed"], 3, True)] * 5
    for variant in plan.tables[0].variants:
        metrics = store.metrics_of([variant.id])[variant.id]
        (speed,) = metrics["train_speed"].rows
        turns = ((2.0,) * 3, (3.0,) * 3, (4.0,) * 3, (5.0,) * 3, (6.0,) * 3)
        assert (speed.value, speed.by_process) == (4.0, turns)
        assert metrics["kv_cache"].numbers == {"x": 1.0}


def test_a_metric_that_is_added_takes_a_pass_of_its_own_and_the_others_stay(passes):
    assert passes() == 1
    assert passes("measure=[kv_cache, train_speed]") == 6  # five processes
    assert passes("measure=[train_speed]") == 6


def test_what_a_finished_run_has_is_kept_unless_it_is_taken_again():
    length = METRICS.resolve({"name": "length", "times": [1, 2]})
    mark = digest(length.entry())
    has = {
        "": True,  # measured when the run finished
        mark: True,
        "other options": False,
    }
    for circumstances, kept in has.items():
        metric = Measurement((Value("x", 1.0),), circumstances=circumstances)
        records = [replace(plans.RECORD, metrics={"length": metric})]
        runs = SimpleNamespace(weights=lambda _id: "file", why_no_weights=lambda _id: "why")
        store = SimpleNamespace(records=lambda records=records: records, runs=runs)
        wanted = measurement._wanted(store, [length], again=False)
        assert wanted == ([] if kept else [(records[0], [length])])
        assert measurement._wanted(store, [length], again=True) == [(records[0], [length])]
        runs.weights = lambda _id: None
        with pytest.raises(ConfigError, match="'rope' s0 has no weights to measure: why"):
            measurement._wanted(store, [length], again=True)


def test_a_metric_that_failed_on_a_run_is_tried_again():
    gradients = METRICS.resolve("gradients")
    assert not measurement._has(Measurement(error="OSError: no"), gradients)
    assert measurement._has(Measurement((Value("x", 1.0),), "no dead units"), gradients)
    assert not measurement._has(None, gradients)
