"""What is measured of variants is measured again where what it depends on has changed."""

import pytest

from llama_ablate import experiment
from llama_ablate.launch import measuring
from llama_ablate.plan import make
from llama_ablate.results import Store
from llama_ablate.training.engine import Engine


@pytest.fixture
def passes(experiment_file, tmp_path, monkeypatch):
    """Take the measures of an experiment with some settings; return how many passes there were."""
    store, file, taken = Store(tmp_path / "r"), experiment_file(measure="[kv_cache]"), []
    store.prepare()

    def call(_task, arms, *_given, **_more):
        taken.append(arms)
        return [{"kv_cache": {"values": {}, "samples": {}, "error": ""}} for _ in arms]

    monkeypatch.setattr(measuring.processes, "call", call)

    def measure(*sets, **more):
        engine = Engine(kernel=more.pop("kernel", "math"))
        plan = make(experiment.load(file, sets))
        measuring.measure_variants(store, plan, engine, lambda *_: None, **more)
        return len(taken)

    return measure


@pytest.mark.parametrize(
    "changed", ["train.batch=2", "train.accumulate=2", "train.precision=bfloat16",
                "train.kernel=fused", "data.tokenizer=chars"],
)  # fmt: skip
def test_speeds_are_measured_again_where_what_they_depend_on_was_edited(passes, changed):
    """In one folder 91,011 tokens/s of another batch was shown where a fresh one gives 22,397."""
    assert passes() == 1
    assert passes() == 1
    assert passes(changed) == 2


def test_speeds_stay_where_only_the_length_of_training_changes_and_follow_the_engine(passes):
    assert passes() == passes("train.steps=9", "seeds=3") == 1
    assert passes(kernel="fused") == 2
    assert passes(kernel="fused", again=True) == 3
