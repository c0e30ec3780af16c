"""How a process is set up to compute: the same numbers again, in the precision that it says."""

import os
from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from llama_ablate.config.experiment import Train
from llama_ablate.model.decoder import REGISTRIES, build, init_weights
from llama_ablate.training import compute as computing
from llama_ablate.training.compute import Compute, settle
from llama_ablate.training.losses import Objective, losses_of


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ))
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_float32_is_float32_whatever_the_process_was_set_to(device):
    """TF32 keeps 10 bits of a factor: a loss would be off by more than some variants differ."""
    torch.set_float32_matmul_precision("high")
    settle(1, device)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32


def test_on_a_gpu_kernels_repeat_their_bits_or_say_that_they_cannot():
    settle(1, "cuda")
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_on_a_cpu_operations_are_left_as_they_are():
    settle(1)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(("most", "rows"), [(4096, 8), (24 * 3 + 1, 3), (1, 1)])
def test_a_probe_takes_a_micro_batch_up_to_what_fills_the_device(spec, monkeypatch, most, rows):
    seen, update = [], computing.update
    monkeypatch.setattr(
        computing, "update", lambda *g, **k: seen.append(g[2][0].shape) or update(*g, **k)
    )
    monkeypatch.setitem(computing._PROBE_TOKENS, "cpu", most)
    recipe = Train.check({"steps": 1, "batch": 16, "accumulate": 2, "precision": "float32"})
    computing._fastest(spec(layers=1), recipe, "cpu", 1, rounds=1)
    assert set(seen) == {(rows, 25)}


COMPILED = Compute("cpu", 1, "float32", "math", compiled=True)


@pytest.fixture
def traced(monkeypatch):
    """Leave out the compiler, which takes a minute, and return what torch counts before it."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch._dynamo.reset()
    counters.clear()
    return counters["stats"]


class Line(torch.nn.Module):
    """What has the shape of an objective, and is traced in a millisecond."""

    def __init__(self, width):
        super().__init__()
        self.model = torch.nn.Linear(width, 1)
        self.model.positions = {}

    def forward(self, x):
        return self.model(x)


def test_each_of_many_objectives_in_one_process_is_compiled(traced):
    """torch recompiles a function at most eight times: more variants are timed in a process."""
    for width in range(1, 13):
        COMPILED.wrap(Line(width))(torch.zeros(1, width))
    assert traced["unique_graphs"] == 12


NEEDED = {"gqa": {"kv_heads": 1}, "moe": {"experts": 4, "width": 8}}
COMPONENTS = [(slot, name) for slot, registry in REGISTRIES.items() for name in registry]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of the inside of torch's compiler
@pytest.mark.parametrize(("slot", "name"), COMPONENTS)
def test_no_later_step_is_compiled_otherwise_than_the_first(spec, traced, slot, name):
    """Or a run that goes on from a checkpoint would compute its next step by the first's graph."""
    component = {"name": name, **NEEDED.get(name, {})}
    small = spec(layers=1, context=16, **{slot: component})
    objective = Objective(init_weights(build(small), 0), losses_of(Train.check({"steps": 1})))
    trained = COMPILED.wrap(objective)
    graphs = []
    for _ in range(3):
        trained(torch.randint(0, small.vocab, (4, 17)))[0].backward()
        graphs.append(traced["unique_graphs"])
    assert graphs == [1 if name != "moe" else graphs[0]] * 3


@pytest.mark.filterwarnings("ignore")  # of the inside of torch's compiler
def test_a_mixture_is_not_compiled_again_for_every_split_of_tokens_over_experts(spec, traced):
    mixed = spec(layers=1, dim=16, context=8, feedforward={"name": "moe", "experts": 4, "width": 8})
    objective = Objective(init_weights(build(mixed), 0), losses_of(Train.check({"steps": 1})))
    trained, text = COMPILED.wrap(objective), torch.Generator().manual_seed(0)
    graphs, losses = [], []
    for _ in range(5):
        tokens = torch.randint(0, mixed.vocab, (4, 9), generator=text)
        losses.append([float(part(tokens)[0].detach()) for part in (objective, trained)])
        graphs.append(traced["unique_graphs"])
    assert graphs[1:] == [graphs[1]] * 4  # a second pass may add one
    for plain, compiled in losses:
        assert compiled == pytest.approx(plain, abs=1e-6)
