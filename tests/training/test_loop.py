import hashlib
import io
import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from llama_ablate.config.experiment import Train
from llama_ablate.training import checkpoint
from llama_ablate.training.compute import Compute, choose
from llama_ablate.training.optimizers import OPTIMIZERS
from llama_ablate.training.schedules import learning_rate

from .runs import BIASED, BOTH, COMPUTE, MOE, WSD, numbers, same, stop_after, trained


def test_training_learns_and_keeps_a_curve(spec, tokens):
    _model, done = trained(spec, tokens)
    assert done.outcome == "ok"
    assert done.steps_done == 20
    assert [row["step"] for row in done.curve] == list(range(1, 21))
    assert done.curve[-1]["tokens"] == 20 * 4 * 24
    held_out = [row["validation_loss_nats"] for row in done.curve if "validation_loss_nats" in row]
    assert len(held_out) == 4
    assert held_out[-1] < 4.5 < math.log(256) < done.curve[0]["train_loss_nats"] + 0.1


def test_the_same_seed_trains_the_same_and_another_does_not(spec, tokens):
    one, two, other = (trained(spec, tokens, seed=s)[1].curve for s in (0, 0, 1))
    assert numbers(one) == numbers(two)
    assert numbers(one) != numbers(other)


def test_accumulation_sums_to_the_gradient_of_the_whole_batch(spec, tokens):
    whole, _ = trained(spec, tokens)
    parts, _ = trained(spec, tokens, accumulate=4)
    for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("keys", "reason", "whole"),
    [
        ({"lr": 1e30, "clip": 0.0}, "not finite by step", False),
        ({"lr": 3.0, "min_lr": 1.0, "warmup": 0.0}, "above chance", True),
    ],
)
def test_a_loss_that_is_not_finite_or_ends_above_chance_is_diverged(
    spec, tokens, keys, reason, whole
):
    _model, done = trained(spec, tokens, **keys)
    assert done.outcome == "diverged"
    assert reason in done.reason
    assert (done.steps_done == 20) == whole


def test_a_run_that_timed_out_goes_on_where_more_time_is_given(spec, tokens, tmp_path):
    _model, expected = trained(spec, tokens)
    _model, first = trained(spec, tokens, saved=tmp_path, timeout_s=0.03)
    _model, again = trained(spec, tokens, saved=tmp_path, timeout_s=0.03)
    assert first.outcome == again.outcome == "timeout"
    assert first.steps_done == again.steps_done < 20
    _model, done = trained(spec, tokens, saved=tmp_path, timeout_s=60.0)
    assert done.outcome == "ok"
    assert numbers(done.curve) == numbers(expected.curve)


def test_the_time_of_a_run_is_that_of_all_its_starts(spec, tokens, tmp_path, monkeypatch):
    """Each reading of the clock takes 0.1 s; no start alone takes two seconds."""
    clock, outcomes = itertools.count(), ["cancelled"]
    monkeypatch.setattr("time.perf_counter", lambda: next(clock) / 10)
    while outcomes[-1] == "cancelled":
        stop = partial(next, iter([False, False, True]))
        _model, done = trained(spec, tokens, saved=tmp_path, stop=stop, timeout_s=2.0)
        outcomes.append(done.outcome)
    assert len(outcomes) > 2
    assert outcomes[-1] == "timeout"
    assert done.steps_done < 20


#: A rate for each optimizer with which the small model learns in twenty steps.
RATES = {"lion": 1e-3}
RESUMED = [
    *(({"optimizer": name, "lr": RATES.get(name, 3e-3)}, (3, 5)) for name in OPTIMIZERS),
    ({"sizes": {"feedforward": MOE}, "losses": BOTH, "accumulate": 2}, (7,)),
    ({"sizes": {"feedforward": BIASED}, "losses": BOTH, "accumulate": 2}, (7,)),
    ({**WSD, "branches": [0.5], "steps": 40}, (17,)),  # within the fall of a branch
    ({**WSD, "branches": [0.5], "steps": 40}, (22,)),  # and behind it
]


@pytest.mark.parametrize(("config", "stops"), RESUMED, ids=str)
def test_a_run_learns_and_goes_on_bit_for_bit(spec, tokens, tmp_path, plugin, config, stops):
    plugin("multi_token")
    whole, expected = trained(spec, tokens, **config)
    assert expected.curve[-1]["validation_loss_nats"] < 5.0 < math.log(256)
    for after in stops:  # of the steps since the last stop
        stopped = trained(spec, tokens, saved=tmp_path, stop=stop_after(after), **config)[1]
        assert stopped.outcome == "cancelled"
    assert 7 <= stopped.steps_done <= 20
    gone_on, done = trained(spec, tokens, saved=tmp_path, **config)
    assert numbers(done.curve) == numbers(expected.curve)
    assert repr(done.values) == repr(expected.values)  # NaN is not equal to itself
    assert same(whole, gone_on)


def test_damaged_checkpoints_and_foreign_files_start_the_run_again(spec, tokens, tmp_path, capsys):
    _model, expected = trained(spec, tokens)
    trained(spec, tokens, saved=tmp_path, stop=stop_after(7))
    (file,) = tmp_path.glob("checkpoint-7-*.pt")
    whole = file.read_bytes()
    flipped = bytes([*whole[:5000], whole[5000] ^ 1, *whole[5001:]])
    for content in (b"", b"junk", whole[: len(whole) // 2], whole[:-1], flipped):
        file.write_bytes(content)
        assert checkpoint.load(tmp_path) is None
        assert "is damaged and skipped" in capsys.readouterr().err
    _model, done = trained(spec, tokens, saved=tmp_path)
    assert numbers(done.curve) == numbers(expected.curve)


def test_a_checkpoint_never_runs_code(tmp_path, capsys):
    import os
    import pickle

    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    for write in (lambda f: pickle.dump(Payload(), f), lambda f: torch.save({"x": Payload()}, f)):
        content = io.BytesIO()
        write(content)
        digest = hashlib.sha256(content.getvalue()).hexdigest()
        (tmp_path / f"checkpoint-7-{digest[:32]}.pt").write_bytes(content.getvalue())
    assert checkpoint.latest(tmp_path) == 7
    assert checkpoint.load(tmp_path) is None
    assert capsys.readouterr().err.count("skipped") == 2
    assert not (tmp_path / "ran").exists()


def test_the_learning_rate_warms_up_linearly_and_falls_as_a_cosine():
    train = Train.check({"steps": 1, "lr": 1.0, "warmup": 0.1, "min_lr": 0.1})
    rates = [learning_rate(train, step, 1000) for step in range(1000)]
    assert rates[0] == pytest.approx(1 / 101)
    assert rates[49] == pytest.approx(50 / 101)
    assert rates[100] == 1.0
    assert rates[550] == pytest.approx(0.55)  # half way down the cosine
    assert rates[-1] == pytest.approx(0.1, abs=1e-4)
    assert max(rates) == 1.0


def test_compiling_is_chosen_where_asked(spec):
    plain, always = (
        choose(spec(), Train.check({"steps": 1, "compile": word}), "cpu")
        for word in ("never", "always")
    )
    assert "compiled" not in plain.to_dict()  # as it was before: no id and no record changes
    assert always.compiled
    assert Compute.from_dict(always.to_dict()) == always


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of the inside of torch's compiler
def test_a_compiled_run_has_the_curve_of_one_that_is_not(spec, tokens):
    _, plain = trained(spec, tokens)
    _, compiled = trained(spec, tokens, compute=replace(COMPUTE, compiled=True))
    for one, other in zip(plain.curve, compiled.curve, strict=True):
        assert one["train_loss_nats"] == pytest.approx(other["train_loss_nats"], abs=1e-4)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of the inside of torch's compiler
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_compiled_run_goes_on_bit_for_bit(spec, tokens, tmp_path, precision):
    compiled = replace(COMPUTE, precision=precision, compiled=True)
    whole, expected = trained(spec, tokens, compiled)
    torch._dynamo.reset()  # as in a process of its own
    stopped = trained(spec, tokens, compiled, saved=tmp_path, stop=stop_after(8))[1]
    assert stopped.outcome == "cancelled"
    torch._dynamo.reset()
    gone_on, done = trained(spec, tokens, compiled, saved=tmp_path)
    assert numbers(done.curve) == numbers(expected.curve)
    assert same(whole, gone_on)


def test_bfloat16_autocast_trains_close_to_float32(spec, tokens):
    _, full = trained(spec, tokens)
    _, half = trained(spec, tokens, compute=Compute("cpu", 1, "bfloat16", "math"))
    ends = [done.curve[-1]["validation_loss_nats"] for done in (full, half)]
    assert abs(ends[0] - ends[1]) < 0.05
    assert ends[0] != ends[1]


def test_a_checkpoint_of_another_compute_is_not_gone_on_from(spec, tokens, tmp_path, capsys):
    expected = trained(spec, tokens)[1].curve
    other = replace(COMPUTE, kernel="fused")
    assert trained(spec, tokens, other, saved=tmp_path, stop=stop_after(5))[1].steps_done == 5
    assert numbers(trained(spec, tokens, saved=tmp_path)[1].curve) == numbers(expected)
    assert "started again" in capsys.readouterr().err
    assert checkpoint.latest(tmp_path) == 0


def test_what_a_kill_left_of_a_checkpoint_goes_with_the_next(tmp_path):
    (tmp_path / ".partial-step-3").write_bytes(b"half")
    checkpoint.save(tmp_path, 4, {"step": 4})
    assert [path.name.split("-")[:2] for path in tmp_path.iterdir()] == [["checkpoint", "4"]]
