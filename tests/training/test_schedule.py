import math

import pytest

from llama_ablate.config.experiment import Train
from llama_ablate.design.forecast import disk_bytes
from llama_ablate.training.evaluation import losses, windows
from llama_ablate.training.optimizers import OPTIMIZERS, optimizer_bytes
from llama_ablate.training.schedules import cooldown, learning_rate
from llama_ablate.training.spikes import spikes, stability_values
from tests import plans

from .runs import BIASED, BOTH, COMPUTE, WSD, same, stop_after, trained


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
    _, long = trained(spec, tokens, steps=40, branches=[0.5], **WSD)
    model, short = trained(spec, tokens, steps=20, **WSD)
    alone = losses(model, windows(tokens.split("test"), 24), COMPUTE).mean()
    (branch,) = (v for v in long.values if v.name == "test_loss_at_1920_tokens_nats")
    assert branch.value == float(alone)
    assert branch.coordinates == {"split": "test", "share": 0.5, "tokens": 1920}
    assert short.steps_done == 20


@pytest.mark.parametrize(
    "config",
    [
        *({"optimizer": name} for name in OPTIMIZERS),
        {"sizes": {"feedforward": BIASED}, "losses": BOTH},
    ],
    ids=str,
)
def test_branches_leave_the_run_as_it_is(spec, tokens, plugin, config):
    plugin("multi_token")
    plain, _ = trained(spec, tokens, steps=24, **WSD, **config)
    branched, done = trained(spec, tokens, steps=24, branches=[0.25, 0.5], **WSD, **config)
    assert sum("_loss_at_" in value.name for value in done.values) == 4
    assert same(plain, branched)
    biases = [value for name, value in plain.state_dict().items() if name.endswith("balance_bias")]
    assert all(bias.abs().max() > 0 for bias in biases)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_a_checkpoint_is_as_large_as_the_forecast_of_the_disk_says(
    spec, tokens, tmp_path, optimizer
):
    more = {"saved": tmp_path, "stop": stop_after(1), "sizes": {"dim": 128}}
    model, _ = trained(spec, tokens, optimizer=optimizer, **more)
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
