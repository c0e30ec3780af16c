"""What is measured of variants is measured again where what it depends on has changed."""

import pytest

from llama_ablate.config import experiment
from llama_ablate.design.plan import make
from llama_ablate.launch import measurement
from llama_ablate.results import Store
from llama_ablate.results.metrics import Measurement
from llama_ablate.training.compute import Compute


@pytest.fixture
def passes(experiment_file, tmp_path, monkeypatch):
    """Take the metrics of an experiment with some settings; return how many passes there were."""
    store, file, taken = Store(tmp_path / "r"), experiment_file(measure="[kv_cache]"), []
    store.prepare()

    def call(_task, arms, *_given, **_more):
        taken.append(arms)
        return [{"kv_cache": Measurement()} for _ in arms]

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
