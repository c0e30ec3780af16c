"""On a GPU: the laws, the same bits again, float32 that is float32, and the commands."""

import math
import subprocess
from itertools import count

import numpy as np
import pytest
import torch

from llama_ablate.config.experiment import Train
from llama_ablate.measure import METRICS, Subject
from llama_ablate.measure.live_bytes import PeakMemory
from llama_ablate.model.decoder import new_model
from llama_ablate.results import Store
from llama_ablate.training import checkpoint
from llama_ablate.training.compute import Compute, choose, measured
from llama_ablate.training.evaluation import losses, windows
from llama_ablate.training.loop import train

from . import laws
from .commands import PYTHON
from .conftest import LLAMA
from .laws import ALONE, COMPONENTS, TOKENS, model_of, name_of
from .reliability.test_resume import bits
from .texts import prepared

if not torch.cuda.is_available():
    pytest.skip("torch sees no CUDA GPU here", allow_module_level=True)

COMPUTES = [
    Compute("cuda", 1, precision, kernel)
    for precision in ("float32", "bfloat16")
    for kernel in ("math", "fused")
]
FULL, HALF = COMPUTES[1], COMPUTES[3]
#: Large enough that a kernel spreads a sum over many blocks, which may then add in any order.
LARGE = {"vocab": 256, "dim": 128, "head_dim": 32, "context": 256}
QK_NORM = {"name": "gqa", "qk_norm": True}
STEPS = 10
RECIPE = Train.check({"steps": STEPS, "batch": 8, "lr": 3e-3, "evals": 2})


def compute_name(compute):
    return f"{compute.precision}-{compute.kernel}"


@pytest.fixture
def text(book):
    return prepared(book)


@pytest.mark.parametrize("combination", ALONE, ids=name_of)
@torch.no_grad()
def test_a_gpu_computes_the_logits_of_the_cpu_with_either_kernel(combination):
    model = model_of(combination, init_std=0.2)
    expected = model(TOKENS)
    for compute in (COMPUTES[0], FULL):
        found = compute.prepare(model)(TOKENS.cuda())
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("combination", ALONE, ids=name_of)
def test_the_laws_hold_on_a_gpu(combination, monkeypatch):
    def prepared(law=""):
        return COMPUTES[0].prepare(model_of(combination, **laws.CHANGES.get(law, {})))

    monkeypatch.setattr(laws, "TOKENS", TOKENS.cuda())
    with torch.device("cuda"):
        for law in ("causal", "cached_equals_full", "padding_changes_nothing", "documents_apart"):
            laws.obeys(prepared(law), law)
        laws.obeys(prepared("every_parameter_learns"), "every_parameter_learns")
        laws.each_token_sees_its_past(prepared())
        laws.both_kernels_compute_the_same(prepared())
        laws.looking_changes_nothing_and_shows_probabilities(prepared())


def test_the_kernels_of_flash_linear_attention_compute_what_plain_torch_does():
    """Forward, backward and from a state; where the extra `fla` is installed."""
    pytest.importorskip("fla")
    tokens = torch.randint(0, 256, (2, 200), generator=torch.Generator().manual_seed(0)).cuda()
    model = HALF.prepare(model_of(LLAMA | {"attention": "gated_delta"}, **LARGE))
    results = []
    for kernel in ("math", "fused"):
        model.kernel = kernel
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens)
            logits.float().logsumexp(-1).mean().backward()
            with torch.no_grad():
                state = model.new_state(2, 200)
                pieces = torch.cat([model(part, state) for part in tokens.split(100, 1)], 1)
        grads = torch.cat([p.grad.flatten() for p in model.parameters()])
        results.append((logits.detach().float(), pieces.float(), grads))
    for plain, fused in zip(*results, strict=True):
        assert (fused - plain).norm() < 0.03 * plain.norm()


@pytest.mark.parametrize("compute", COMPUTES, ids=compute_name)
@pytest.mark.parametrize(("slot", "name"), [*COMPONENTS, ("attention", QK_NORM)], ids=str)
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(
    slot, name, compute, spec, text, tmp_path
):
    def trained(saved=None, stop_at=None):
        model = new_model(spec(**LARGE, **{slot: name}), 0)
        asked = count(checkpoint.latest(saved) if saved else 0)
        done = train(
            model,
            text,
            RECIPE,
            steps=STEPS,
            seed=0,
            compute=compute,
            saved=saved,
            stop=lambda: next(asked) == stop_at,
        )
        curve = [{**row, "train_s": None} for row in done.curve]
        return done.outcome, bits(model.cpu().state_dict()), curve

    whole = trained()
    assert whole[0] in ("ok", "collapsed")  # ten steps do not take every component far
    assert trained(tmp_path, stop_at=4)[0] == "cancelled"
    assert trained(tmp_path) == whole


def test_held_out_losses_are_those_of_float64_also_where_tf32_is_asked_for(spec):
    model = new_model(spec(**LARGE, init_std=0.1), 0)
    cut = windows(np.random.default_rng(0).integers(0, 256, 2000), 256)
    expected = losses(model.double(), cut, Compute())
    torch.set_float32_matmul_precision("high")
    found = losses(FULL.prepare(model.float()), cut, FULL)
    assert np.abs(found - expected).max() < 2e-5
    torch.set_float32_matmul_precision("high")
    try:
        assert np.abs(losses(model, cut, FULL) - expected).max() > 1e-4  # what it would have been
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_run_in_bfloat16_is_evaluated_in_float32(spec, text):
    model = FULL.prepare(new_model(spec(**LARGE, init_std=0.1), 0))
    cut = windows(text.split("test"), 256, 2000)
    assert np.array_equal(losses(model, cut, HALF), losses(model, cut, FULL))


@pytest.mark.parametrize("compute", [FULL, HALF], ids=compute_name)
@pytest.mark.parametrize("name", list(METRICS))
def test_every_metric_is_taken_of_a_model_on_a_gpu(name, compute, spec, text):
    model = compute.prepare(new_model(spec(**LARGE), 0))
    subject = Subject(model, text, RECIPE, compute)
    values = {v.name: v.value for v in METRICS.measure(METRICS.resolve(name), subject)}
    assert all(math.isfinite(value) for value in values.values())
    if name == "kv_cache":
        assert values["kv_cache_added_bytes"] == 2 * 2 * 128 * compute.dtype.itemsize


def test_peak_memory_is_what_torch_has_allocated_on_the_gpu():
    before = torch.cuda.memory_allocated()
    peak = PeakMemory("cuda")
    block = torch.ones(1 << 20, device="cuda")
    del block
    assert peak.read() - before == pytest.approx(4 << 20, rel=0.1)


def test_a_gpu_computes_in_bfloat16_where_it_has_it_and_its_speed_is_measured(spec):
    train_ = Train.check({"steps": 1, "batch": 8})
    compute = choose(spec(**LARGE), train_, "cuda")
    has = torch.cuda.get_device_capability() >= (8, 0)
    assert (compute.device, compute.kernel) == ("cuda", "fused")
    assert compute.precision == ("bfloat16" if has else "float32")
    timed = measured(spec(**LARGE), train_, compute)
    assert timed.flops_per_s > 0
    assert "float32 fused" in dict(timed.tried_s)


def test_commands_run_on_a_gpu_and_records_say_so(experiment_file, tmp_path):
    train_ = "{steps: 60, batch: 8, lr: 1e-2, evals: 2}"
    file = experiment_file(train=train_, measure="[perplexity, train_speed, kv_cache]")

    def said(*words):
        command = [PYTHON, "-m", "llama_ablate", *words, "--device", "cuda"]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    said("run", str(file), "--results", str(tmp_path))
    records = Store(tmp_path / "tiny").records()
    assert [record.outcome for record in records] == ["ok"] * 4
    for record in records:
        assert record.compute["device"] == "cuda"
        assert record.environment["gpu"] == torch.cuda.get_device_name()
        assert record.peak_memory_bytes > 0
    run = str(tmp_path / "tiny" / "baseline")
    words = ["generate", run, "--prompt", "the cat ", "--max-tokens", "8", "--temperature", "0"]
    text = said(*words)
    assert text.startswith("the cat ")
    assert said(*words, "--no-cache") == text
    said("attention", run, "--prompt", "the cat sat", "--out", str(tmp_path / "maps"))
    assert (tmp_path / "maps" / "attention.npz").is_file()
