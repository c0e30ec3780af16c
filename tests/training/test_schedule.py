import math
from functools import partial

import pytest
import torch

from llama_ablate.config.experiment import Train
from llama_ablate.design.forecast import disk_bytes
from llama_ablate.model.decoder import new_model
from llama_ablate.training.compute import Compute
from llama_ablate.training.evaluation import losses, windows
from llama_ablate.training.loop import train
from llama_ablate.training.optimizers import OPTIMIZERS, optimizer_bytes
from llama_ablate.training.schedules import cooldown, learning_rate
from llama_ablate.training.spikes import spikes, stability_values
from tests import plans

COMPUTE = Compute("cpu", 1, "float32", "math")


def trained(spec, tokens, steps=20, saved=None, stop=lambda: False, dim=16, **config):
    model = new_model(spec(vocab=256, layers=1, dim=dim, context=16), 0)
    values = Train.check({"steps": steps, "batch": 4, "lr": 1e-2, "evals": 2, **config})
    more = {"saved": saved, "stop": stop}
    return model, train(model, tokens, values, steps=steps, seed=0, compute=COMPUTE, **more)


def test_a_wsd_schedule_is_flat_between_its_warm_up_and_its_fall():
    config = Train.check(
        {"steps": 1, "schedule": "wsd", "warmup": 0.1, "decay": 0.2, "lr": 1.0, "min_lr": 0.0}
    )
    rates = [learning_rate(config, step, 100) for step in range(100)]
    assert rates[9] < rates[10] == rates[79] == rates[80] == 1.0
    assert rates[90] == pytest.approx(0.5)
    assert rates[99] == pytest.approx(0.05)
    assert cooldown(config, 100) == 20


def test_the_fall_of_a_wsd_schedule_begins_after_its_warm_up():
    config = Train.check(
        {"steps": 1, "schedule": "wsd", "warmup": 0.5, "decay": 0.9, "lr": 1.0, "min_lr": 0.0}
    )
    rates = [learning_rate(config, step, 10) for step in range(10)]
    assert rates == pytest.approx([n / 6 for n in (1, 2, 3, 4, 5)] + [1.0, 0.8, 0.6, 0.4, 0.2])
    assert cooldown(config, 10) == 5


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"schedule": "constant", "warmup": 0.2}, [1 / 3, 2 / 3, *[1.0] * 8]),
        ({"schedule": "linear", "warmup": 0, "min_lr": 0.1}, [1 - 0.09 * n for n in range(10)]),
    ],
)
def test_a_schedule_holds_its_peak_or_falls_in_a_line_to_its_least(keys, expected):
    config = Train.check({"steps": 1, "lr": 1.0, **keys})
    assert [learning_rate(config, step, 10) for step in range(10)] == pytest.approx(expected)


def test_the_fall_of_a_wsd_schedule_may_be_one_minus_a_root():
    schedule = {"name": "wsd", "fall": "1-sqrt"}
    config = Train.check(
        {"steps": 1, "schedule": schedule, "warmup": 0, "decay": 0.4, "lr": 1.0, "min_lr": 0.1}
    )
    rates = [learning_rate(config, step, 10) for step in range(10)]
    assert rates[:7] == [1.0] * 7
    assert rates[7:] == pytest.approx([1 - 0.9 * math.sqrt(n / 4) for n in (1, 2, 3)])


def test_a_branch_is_the_run_that_would_have_ended_there(spec, tokens):
    wsd = {"schedule": "wsd", "warmup": 0, "decay": 0.25}
    _, long = trained(spec, tokens, steps=40, branches=[0.5], **wsd)
    model, short = trained(spec, tokens, steps=20, **wsd)
    alone = losses(model, windows(tokens.split("test"), 16), COMPUTE).mean()
    (branch,) = (v for v in long.values if v.name == "test_loss_at_1280_tokens_nats")
    assert branch.value == float(alone)
    assert branch.coordinates == {"split": "test", "share": 0.5, "tokens": 1280}
    assert short.steps_done == 20


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_branches_leave_the_run_as_it_is(spec, tokens, optimizer):
    wsd = {"schedule": "wsd", "warmup": 0, "decay": 0.25, "optimizer": optimizer}
    plain, _ = trained(spec, tokens, steps=24, **wsd)
    branched, _ = trained(spec, tokens, steps=24, branches=[0.25, 0.5], **wsd)
    for a, b in zip(plain.parameters(), branched.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("after", [17, 22])  # of 20: within the fall of a branch, and behind it
def test_a_run_that_stops_goes_on_with_identical_numbers(spec, tokens, tmp_path, after):
    config = {"schedule": "wsd", "warmup": 0, "decay": 0.25, "branches": [0.5]}
    whole, expected = trained(spec, tokens, steps=40, **config)
    stop = partial(next, iter([False] * after + [True] * 2))  # a branch, and the run itself
    _, first = trained(spec, tokens, steps=40, saved=tmp_path, stop=stop, **config)
    assert first.outcome == "cancelled"
    gone_on, ended = trained(spec, tokens, steps=40, saved=tmp_path, **config)
    assert repr(ended.values) == repr(expected.values)  # NaN is not equal to itself
    for a, b in zip(whole.parameters(), gone_on.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_a_checkpoint_is_as_large_as_the_forecast_of_the_disk_says(
    spec, tokens, tmp_path, optimizer
):
    stop = partial(next, iter([False, True]))
    model, _ = trained(spec, tokens, saved=tmp_path, stop=stop, dim=128, optimizer=optimizer)
    size = max(path.stat().st_size for path in tmp_path.glob("checkpoint-*"))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    kept = optimizer_bytes(model.spec, OPTIMIZERS.resolve(optimizer))
    run = plans.run("r", "v", optimizer_bytes=None if optimizer == "adamw" else kept)
    table = plans.table([plans.variant("v", parameters=parameters)], [run])
    plan = plans.document(table, train={"steps": 2})
    assert disk_bytes(plan, workers=1)["none"] == pytest.approx(3 * size, rel=0.05)


def test_a_spike_is_what_stands_far_above_the_hundred_before():
    calm = [1.0 + 0.01 * (i % 2) for i in range(200)]
    assert spikes(calm) == 0
    assert spikes([*calm[:150], 5.0, *calm[151:]]) == pytest.approx(1 / 100)
    assert spikes([*calm[:150], math.inf, *calm[151:]]) >= 1 / 100
    assert spikes([*calm[:150], 0.0, *calm[151:]]) == 0  # below is no spike
    assert math.isnan(spikes(calm[:100]))


def test_gradient_norms_are_summed_up_over_what_is_finite():
    values = stability_values([1.0, 2.0], [1.0, 3.0, math.nan, 2.0])
    numbers = {value.name: value.value for value in values}
    assert numbers["grad_norm_median"] == 2.0
    assert numbers["grad_norm_max"] == 3.0
