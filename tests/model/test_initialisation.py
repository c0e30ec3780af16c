"""Rules of initial weights against their definitions, and beginnings that no rule touches."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.decoder import new_model
from llama_ablate.model.feedforward import SwiGLU
from llama_ablate.model.initialisation import INITS
from llama_ablate.model.linear import Linear
from tests.model.parameters import decayed, kinds

LAYERS, STD = 3, 0.03
SIZES = {"dim": 64, "head_dim": 16, "layers": LAYERS, "vocab": 300, "init_std": STD, "bias": True}
#: The deviation of each kind of matrix by the definition of the rule, of how many inputs it has.
DEVIATIONS = {
    "depth-scaled": {
        "embedding": lambda _: STD,
        "hidden": lambda _: STD,
        "out": lambda _: STD / math.sqrt(2 * LAYERS),
        "head": lambda _: STD,
    },
    "normal": dict.fromkeys(("embedding", "hidden", "out", "head"), lambda _: STD),
    # Uniform within a is of deviation a / sqrt(3).
    "torch": {
        "embedding": lambda _: 1.0,
        **dict.fromkeys(("hidden", "out", "head"), lambda inputs: 1 / math.sqrt(3 * inputs)),
    },
    "mup": {
        "embedding": lambda _: STD,
        "hidden": lambda inputs: 1 / math.sqrt(inputs),
        "out": lambda inputs: 1 / math.sqrt(inputs),
        "head": lambda inputs: 1 / inputs,
    },
}


@pytest.mark.parametrize("rule", list(INITS))
def test_every_rule_draws_the_distribution_that_it_is_defined_by(spec, rule):
    """Mean, deviation and fourth moment, each within five of its Monte Carlo errors."""
    model = new_model(spec(init=rule, **SIZES), 0)
    standard: dict[str, list] = {}
    for name, kind in kinds(model).items():
        if kind not in ("vector", "last"):
            weight = model.get_parameter(name).detach()
            deviation = DEVIATIONS[rule][kind](weight.shape[1])
            standard.setdefault(kind, []).append(weight.flatten() / deviation)
    assert set(standard) == set(DEVIATIONS[rule])
    for kind, parts in standard.items():
        z = torch.cat(parts).double()
        uniform = rule == "torch" and kind != "embedding"
        # Moments of the standard normal, and of the uniform of deviation 1: 3 and 9/5 the fourth,
        # 105 and 9 the eighth.
        fourth, eighth = (9 / 5, 9.0) if uniform else (3.0, 105.0)
        for power, moment, square in ((1, 0, 1), (2, 1, fourth), (4, fourth, eighth)):
            error = math.sqrt((square - moment**2) / len(z))
            assert (z**power).mean().item() == pytest.approx(moment, abs=5 * error), (kind, power)
        if uniform:
            assert z.abs().max().item() <= math.sqrt(3) * (1 + 1e-6)


@pytest.mark.parametrize("rule", list(INITS))
def test_biases_are_zero_but_for_torchs_which_are_uniform(spec, rule):
    model = new_model(spec(init=rule, **SIZES), 0)
    layers = [m for m in model.modules() if isinstance(m, Linear) and m.bias is not None]
    assert len(layers) == LAYERS * 7
    for layer in layers:
        bound = layer.weight.shape[1] ** -0.5
        if rule == "torch":
            assert 0.5 * bound < layer.bias.abs().max() <= bound
        else:
            assert layer.bias.abs().max() == 0


class Declared(SwiGLU):
    """Say of each parameter how it begins, and of some that they take no weight decay."""

    no_weight_decay = frozenset({"table"})

    def __init__(self, dim: int, bias: bool, *, width: int | None = None):
        super().__init__(dim, bias, width=width)
        start = partial(nn.init.constant_, val=4.0)
        self.gate = Linear(dim, self.width, start=start, decay=False)
        self.mix = Linear(dim, dim, bias=False, start=nn.init.eye_)
        self.own = nn.Linear(dim, dim)  # torch's, which waits for no rule
        self.table = nn.Parameter(torch.full((2, dim // 2), 4.0))


@pytest.fixture
def declared(monkeypatch):
    registry = REGISTRIES["feedforward"]
    for kind in ("_components", "_schemas"):
        monkeypatch.setattr(registry, kind, dict(getattr(registry, kind)))
    registry.register("declared")(Declared)


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("rule", list(INITS))
def test_what_is_declared_begins_as_it_says_and_decays_as_it_says(spec, rule):
    model = new_model(spec(init=rule, feedforward="declared"), 0)
    for block in model.blocks:
        ffn = block.ffn
        assert set(ffn.gate.weight.flatten().tolist()) == {4.0}
        assert ffn.gate.bias.abs().max() == 0
        assert torch.equal(ffn.mix.weight, torch.eye(32))
        assert set(ffn.table.flatten().tolist()) == {4.0}
        assert 0 < ffn.up.weight.std() < 1
        matrices = {name for name, decays in decayed(ffn).items() if decays}
        assert matrices == {f"{part}.weight" for part in ("mix", "up", "down", "own")}


@pytest.mark.usefixtures("declared")
def test_what_a_constructor_draws_comes_from_seed_and_name_alone(spec):
    models = []
    for state, seed in ((1, 0), (2, 0), (3, 1)):
        torch.manual_seed(state)
        models.append(new_model(spec(feedforward="declared"), seed))
    first, again, other = (model.blocks[0].ffn.own.weight for model in models)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, models[0].blocks[1].ffn.own.weight)
    # torch's own rule for a linear layer: uniform within 1 / sqrt(inputs).
    assert first.std().item() == pytest.approx((3 * 32) ** -0.5, rel=0.1)
    llama = new_model(spec(), 0)
    assert torch.equal(models[0].blocks[1].attn.q.weight, llama.blocks[1].attn.q.weight)
