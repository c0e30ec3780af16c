"""The peak memory of a run, before it has any: what weights, state and activations take."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from llama_ablate.commands.cli import main
from llama_ablate.config.experiment import Train
from llama_ablate.design.forecast import fitting
from llama_ablate.launch import processes
from llama_ablate.measure.live_bytes import PeakMemory, _resident
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import build, init_weights
from llama_ablate.model.dropout import Dropout
from llama_ablate.results.record import Memory
from llama_ablate.training import peak
from llama_ablate.training.compute import KEPT_BLOCK, Compute, give_back, settle
from llama_ablate.training.evaluation import losses, windows
from llama_ablate.training.loop import train
from llama_ablate.training.peak import peak_bytes
from tests.conftest import make_spec
from tests.in_process import run_in_process

COMPUTE = Compute("cpu", 1, "float32", "math")
#: Gives memory back at once, as a GPU does, so that its forecasts are exact sums of tensors.
EXACT = Compute("cpu", 1, "float32", "math", ranks=1, shards=True)


def forecast(spec, compute=COMPUTE, **keys):
    return peak_bytes(spec, Train.check({"steps": 1, "batch": 4, **keys}), compute)


def test_what_an_optimizer_keeps_is_in_the_forecast_to_the_byte(spec):
    model = spec(dim=64, vocab=512)
    sgd = forecast(model, EXACT, optimizer={"name": "sgd", "momentum": 0.0})
    assert forecast(model, EXACT) - sgd == 8 * count(model).parameters


def test_a_copy_that_branches_go_back_to_and_an_average_are_in_the_forecast(spec):
    model = spec(dim=64, vocab=512)
    plain = forecast(model, EXACT)
    assert forecast(model, EXACT, average=3) - plain == 4 * count(model).parameters
    branched = forecast(model, EXACT, schedule="wsd", branches=[0.5])
    assert branched - plain == 12 * count(model).parameters


@pytest.mark.row("R28", "damage: a kept forecast of memory")
def test_a_forecast_that_was_changed_is_made_again(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_ABLATE_CACHE", str(tmp_path))
    made = forecast(spec())
    (file,) = (tmp_path / "memory").iterdir()
    monkeypatch.setattr(peak, "_peak", lambda *_: 7)
    assert forecast(spec()) == made
    file.write_text(file.read_text().replace(str(made), str(made + 10**9)))
    assert forecast(spec()) == 7


def test_a_forecast_takes_no_numbers_from_a_run_and_leaves_it_none(spec):
    """Those that dropout hashes are kept over steps: of a forecast they are not there at all."""
    model = spec(dim=64, context=32, dropout=0.5)
    masks, x = Dropout.of_step(model, 0, 0, 4), torch.ones(4, 32, 64)
    before = masks(x, "embedding")
    assert forecast(model) > 0
    assert type(masks(x, "embedding")) is torch.Tensor
    assert torch.equal(masks(x, "embedding"), before)


def test_activations_grow_with_the_rows_of_a_micro_batch(spec):
    model = spec(dim=64, context=128)
    few, many = (forecast(model, batch=batch) for batch in (256, 512))
    assert many > few + (1 << 20)
    assert forecast(model, batch=512, accumulate=2) == pytest.approx(few, rel=0.02)
    shared = Compute("cpu", 1, "float32", "math", ranks=2)
    assert forecast(model, shared, batch=512) == few


def test_shards_divide_weights_and_state(spec):
    model = spec(dim=64, vocab=512)
    cut = Compute("cpu", 1, "float32", "math", ranks=2, shards=True)
    apart = Compute("cpu", 1, "float32", "math", ranks=2)
    saved = forecast(model, apart) - forecast(model, cut)
    assert saved >= 12 * count(model).parameters / 2
    more = Compute("cpu", 1, "float32", "math", ranks=4, shards=True)
    some = forecast(model, more, batch=8)  # the rows of a rank are the same
    saved = forecast(model, cut) - some
    assert saved == pytest.approx(12 * count(model).parameters / 4, abs=2)


def test_of_a_mixture_in_bfloat16_on_a_cpu_nothing_is_forecast(spec):
    """For every number of rows oneDNN makes code, which takes more than the tensors."""
    model = spec(feedforward={"name": "moe", "experts": 4, "width": 8})
    assert forecast(model, Compute("cpu", 1, "bfloat16", "math")) is None
    assert forecast(model) is not None


def test_nothing_is_forecast_of_what_depends_on_values(spec):
    assert forecast(spec(dim=64, vocab=512), losses=["multi_token"]) is None  # draws a seed


@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 1.0, "shared": 1},
        {"balance": "bias", "scoring": "sigmoid"},
        {"balance": "none", "inner": "gelu", "experts": 64},
    ],
    ids=["capacity", "bias", "more experts than rows"],
)
def test_every_kind_of_mixture_has_a_forecast(spec, options):
    model = spec(feedforward={"name": "moe", "width": 8, **options}, layers=1)
    assert forecast(model, batch=1) > 0


def test_of_a_mixture_of_very_many_experts_nothing_is_forecast(spec, monkeypatch):
    monkeypatch.setattr(peak, "_EXPERTS", 24)
    moe = {"name": "moe", "width": 8}
    assert forecast(spec(feedforward={**moe, "experts": 2}, layers=2)) > 0
    assert forecast(spec(feedforward={**moe, "experts": 8}, layers=2)) is None


def test_what_a_mixture_keeps_of_a_token_does_not_depend_on_how_many_experts_there_are(spec):
    """As many rows of the same width, in other parts; the router's own numbers are few."""
    grows = []
    for experts in (8, 16):
        model = spec(feedforward={"name": "moe", "experts": experts, "top_k": 2, "width": 64})
        grows.append(forecast(model, EXACT, batch=64) - forecast(model, EXACT, batch=32))
    assert grows[0] == pytest.approx(grows[1], rel=0.05)


def test_small_blocks_stay_held_with_their_holes_and_large_ones_are_given_back():
    block = KEPT_BLOCK // 2  # of less than 32 MiB
    with peak._Alive(keeps=True) as alive:
        small = torch.empty(block, dtype=torch.uint8)
        del small
        large = torch.empty(KEPT_BLOCK, dtype=torch.uint8)
        del large
        again = torch.empty(KEPT_BLOCK, dtype=torch.uint8)
        view = again[1:]
        del again
        assert view.numel() == KEPT_BLOCK - 1
        torch.empty(block // 2, dtype=torch.uint8)  # has room where the first was
    assert alive.most == round(peak._HOLES * block) + KEPT_BLOCK
    with peak._Alive(keeps=False) as alive:
        for _ in range(3):
            torch.empty(1000, dtype=torch.uint8)
    assert alive.most == 1000


def test_as_many_workers_start_as_fit_and_one_at_least():
    need = Memory(1000, "x")
    assert [fitting(need, free, COMPUTE) for free in (100, 1999, 5000)] == [1, 1, 5]
    two = Compute("cpu", 1, "float32", "math", ranks=2)
    assert fitting(need, 5000, two) == 2


def test_a_run_says_that_it_starts_fewer_workers_than_asked_for(
    experiment_file, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("llama_ablate.training.compute.free_bytes", lambda _device: 150 << 20)
    file = experiment_file(measure="[perplexity]")
    assert run_in_process(file, tmp_path / "out", "--workers", "4") == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "instead of" in line]
    assert len(said) == 1
    assert "2 worker(s) instead of 4: each needs up to" in said[0]
    assert "150 MiB are free" in said[0]


def test_a_plan_says_how_much_memory_a_worker_needs_and_for_which_variant(experiment_file, capsys):
    file = experiment_file("{axes: {feedforward: [{name: swiglu, width: 3000}]}}")
    assert main(["plan", str(file), "--device", "cpu", "--json"]) == 0
    need = json.loads(capsys.readouterr().out)["memory"]
    assert need["variant"] == "swiglu-width=3000"
    assert need["bytes"] > 100 << 20


def test_a_plan_names_what_has_no_forecast_of_memory(experiment_file, capsys):
    moe = "{name: moe, experts: 4, width: 500}"
    file = experiment_file(f"{{axes: {{feedforward: [{moe}]}}}}")
    words = ["plan", str(file), "--device", "cpu", "--set", "train.precision=bfloat16"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "a worker, most for 'baseline'; no forecast of 'moe-width=500-experts=4'" in said


#: Vocabulary, dim, layers, context, batch, precision, kernel.
SHAPES = [
    (256, 128, 4, 256, 32, "bfloat16", "math"),
    (8192, 256, 6, 256, 16, "bfloat16", "fused"),
    (32000, 192, 2, 128, 16, "float32", "math"),
    (256, 512, 8, 64, 4, "float32", "fused"),
    (128_000, 16, 1, 256, 8, "float32", "fused"),
]


def setup(*shape):
    """Return spec, train config and compute of a shape, or of experts and a shape."""
    *experts, vocab, dim, layers, context, batch, precision, kernel = shape
    sizes = {"vocab": vocab, "dim": dim, "layers": layers, "context": context}
    if experts:
        sizes["feedforward"] = {"name": "moe", "experts": experts[0], "top_k": 2}
    spec = make_spec(**sizes, heads=4, head_dim=dim // 4)
    keys = {"steps": 8, "batch": batch, "evals": 1, "precision": precision, "kernel": kernel}
    return spec, Train.check(keys), Compute("cpu", 1, precision, kernel)


def in_a_worker(task, *arguments):
    """Return what a task sends from a process like a worker's."""
    method = processes.context()
    took = method.SimpleQueue()
    worker = method.Process(target=task, args=(*arguments, took))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    return took.get()


def train_a_little(shape, took):
    """Send the bytes that a worker's process grows by while it trains."""
    spec, config, compute = setup(*shape)
    settle(1)
    memory, some = PeakMemory("cpu"), np.random.default_rng(0)
    tokens = SimpleNamespace(
        source=None,
        heldout=["validation"],
        vocab=spec.vocab,
        split=lambda _: some.integers(0, spec.vocab, 20_000),
        batch=lambda _s, _k, rows, context: some.integers(0, spec.vocab, (rows, context + 1)),
    )
    train(init_weights(build(spec), 0), tokens, config, steps=8, seed=0, compute=compute)
    took.put(memory.read())


#: Experts, and the rest as above.
MIXTURES = [
    (8, 256, 128, 4, 128, 16, "float32", "fused"),
    (4, 2048, 96, 4, 128, 32, "float32", "fused"),
    (16, 512, 256, 2, 128, 16, "float32", "math"),
]


@pytest.mark.full
@pytest.mark.parametrize("shape", [*SHAPES, *MIXTURES], ids=lambda shape: "x".join(map(str, shape)))
def test_the_forecast_is_within_15_percent_of_what_a_run_takes(shape):
    took = in_a_worker(train_a_little, shape)
    assert peak_bytes(*setup(*shape)) == pytest.approx(took, rel=0.15)


def evaluate_much(took):
    """Send the bytes that a process grows by from the evaluation of few to that of many tokens."""
    settle(1)
    model = COMPUTE.prepare(init_weights(build(make_spec(dim=16, vocab=1000, context=64)), 0))
    text, peaks = np.random.default_rng(0).integers(0, 1000, 300_000), []
    memory = PeakMemory("cpu")
    for size in (10_000, 300_000):
        losses(model, windows(text[:size], 64), COMPUTE)
        peaks.append(memory.read())
    took.put(peaks[1] - peaks[0])


def test_the_memory_of_an_evaluation_does_not_grow_with_its_text():
    """Losses that were kept batch by batch lay where freed logits had been: 591 MiB more."""
    assert in_a_worker(evaluate_much) < 60 << 20


def free_much(took):
    """Send the bytes that a process holds of 200 MiB that it freed, before and after."""
    settle(1)
    began = _resident()
    blocks = [torch.ones(1 << 18) for _ in range(200)]
    blocks.clear()
    freed = _resident()
    give_back()
    took.put((freed - began, _resident() - began))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's memory")
def test_freed_memory_is_kept_until_it_is_given_back():
    kept, given_back = in_a_worker(free_much)
    assert kept > 150 << 20
    assert given_back < 50 << 20
