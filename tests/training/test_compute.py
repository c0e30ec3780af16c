"""How a process is set up to compute: the same numbers again, in the precision that it says."""

import itertools
import json
import os
import random
import time
from functools import partial

import pytest
import torch
from torch._dynamo.utils import counters

from llama_ablate.commands.cli import main
from llama_ablate.config.experiment import Train
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import new_model
from llama_ablate.training import compute as computing
from llama_ablate.training.compute import Compute, choose, configure_process, measured
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
    configure_process(1, device)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32


def test_on_a_gpu_kernels_repeat_their_bits_or_say_that_they_cannot():
    configure_process(1)
    assert not torch.are_deterministic_algorithms_enabled()
    configure_process(1, "cuda")
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.fixture
def bfloat16(monkeypatch):
    """Let this machine multiply in bfloat16, or not."""
    return lambda has: monkeypatch.setattr(computing, "multiplies_bfloat16", lambda _device: has)


def asked(**changes):
    return Train.check({"steps": 1, "batch": 32, **changes})


def arithmetic(spec, train, device="cpu"):
    compute = choose(spec, train, device)
    return compute.precision, compute.kernel


def test_a_plan_computes_alike_whatever_a_clock_says(
    experiment_file, bfloat16, monkeypatch, tmp_path, capsys
):
    """By the times of one step, a loaded machine planned one file in two precisions."""
    bfloat16(has=True)
    sizes = "{dim: 64, layers: 1, heads: 4, context: 32}"
    file = experiment_file(model=sizes, train="{steps: 2, batch: 16}")
    chance, plans = random.Random(0), []
    monkeypatch.setattr(time, "perf_counter", lambda: chance.expovariate(1.0))
    for number in range(2):
        monkeypatch.setenv("LLAMA_ABLATE_CACHE", str(tmp_path / str(number)))
        assert main(["plan", str(file), "--device", "cpu", "--json"]) == 0
        plans.append(json.loads(capsys.readouterr().out)["compute"])
    assert {(plan["precision"], plan["kernel"]) for plan in plans} == {("bfloat16", "math")}
    assert len({plan["flops_per_s"] for plan in plans}) == 2  # its forecast does follow the clock


CHOICES = {  # by width, context and sequences of a micro-batch, where a CPU has bfloat16
    (32, 512, 1): ("float32", "fused"),  # 16,384 numbers
    (32, 513, 1): ("bfloat16", "fused"),
    (64, 512, 1): ("bfloat16", "math"),
    (16, 16, 4): ("float32", "fused"),
    (128, 16, 64): ("bfloat16", "math"),
    (16, 2048, 4): ("bfloat16", "fused"),
}


@pytest.mark.parametrize(("sizes", "expected"), CHOICES.items())
def test_a_choice_depends_on_device_sizes_and_what_was_asked_alone(spec, bfloat16, sizes, expected):
    dim, context, batch = sizes
    plain = {"dim": dim, "heads": 4, "head_dim": dim // 4, "context": context}
    others = ({"layers": 5}, {"vocab": 999}, {"heads": 2, "head_dim": dim // 2}, {"norm": "none"})
    for has in (True, False):
        bfloat16(has)
        chosen = {arithmetic(spec(**plain | other), asked(batch=batch)) for other in ({}, *others)}
        for other in ({"lr": 1.0}, {"optimizer": "muon"}, {"steps": 10**9}):
            chosen.add(arithmetic(spec(**plain), asked(batch=batch, **other)))
        assert chosen == {expected if has else ("float32", "fused")}


@pytest.mark.parametrize("has", [True, False])
def test_what_is_asked_for_is_taken_whatever_the_device_can(spec, bfloat16, has):
    bfloat16(has)
    for pair in itertools.product(("float32", "bfloat16"), ("math", "fused")):
        assert arithmetic(spec(), asked(precision=pair[0], kernel=pair[1])) == pair
    assert arithmetic(spec(), asked(precision="bfloat16")) == ("bfloat16", "math")
    # A micro-batch counts, not the batch that it is a part of.
    wide = spec(dim=64, head_dim=16, context=128)
    whole, parts = asked(batch=64), asked(batch=64, accumulate=64)
    assert arithmetic(wide, whole)[0] == ("bfloat16" if has else "float32")
    assert arithmetic(wide, parts)[0] == "float32"


@pytest.mark.parametrize(("most", "rows"), [(1e12, 8), (3.5, 3)])
def test_a_step_that_is_timed_has_a_micro_batch_or_as_much_of_it_as_is_quick(
    spec, monkeypatch, most, rows
):
    seen, losses, one = [], computing._Step.losses, spec(layers=1)
    a_sequence = count(one).train_flops_per_token * one.context
    monkeypatch.setattr(
        computing._Step, "losses", lambda step: seen.append(step.parts[0].shape) or losses(step)
    )
    monkeypatch.setitem(computing._TIMED_FLOPS, "cpu", most * a_sequence)
    timed = measured(one, asked(batch=16, accumulate=2), Compute("cpu", 1, "bfloat16"))
    assert seen == [(rows, 25)] * 4  # in bfloat16 and in float32, each once to warm up
    tried = dict(timed.tried_s)
    assert list(tried) == ["bfloat16 fused", "float32 fused"]
    assert timed.flops_per_s == pytest.approx(rows * a_sequence / tried["bfloat16 fused"])
    assert Compute.from_dict(timed.to_dict()) == timed


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
    objective = Objective(new_model(small, 0), losses_of(Train.check({"steps": 1})))
    trained = COMPILED.wrap(objective)
    graphs = []
    for _ in range(3):
        trained(torch.randint(0, small.vocab, (4, 17)))[0].backward()
        graphs.append(traced["unique_graphs"])
    assert graphs == [1 if name != "moe" else graphs[0]] * 3


@pytest.mark.filterwarnings("ignore")  # of the inside of torch's compiler
def test_a_mixture_is_not_compiled_again_for_every_split_of_tokens_over_experts(spec, traced):
    mixed = spec(layers=1, dim=16, context=8, feedforward={"name": "moe", "experts": 4, "width": 8})
    objective = Objective(new_model(mixed, 0), losses_of(Train.check({"steps": 1})))
    trained, text = COMPILED.wrap(objective), torch.Generator().manual_seed(0)
    graphs, losses = [], []
    for _ in range(4):
        tokens = torch.randint(0, mixed.vocab, (4, 9), generator=text)
        losses.append([float(part(tokens)[0].detach()) for part in (objective, trained)])
        graphs.append(traced["unique_graphs"])
    assert graphs[1:] == [graphs[1]] * 3  # a second pass may add one
    for plain, compiled in losses:
        assert compiled == pytest.approx(plain, abs=1e-6)
