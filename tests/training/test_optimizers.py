import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from llama_ablate.config.experiment import Train
from llama_ablate.model.decoder import build, new_model
from llama_ablate.model.parametrization import Scale
from llama_ablate.training.compute import update
from llama_ablate.training.losses import Objective
from llama_ablate.training.optimizers import (
    OPTIMIZERS,
    Weight,
    list_weights,
    make_optimizer,
    optimizer_bytes,
    set_learning_rate,
    state_bytes,
)

from .runs import COMPUTE, same

#: Each optimizer, and each of its options once with another value than its default.
ENTRIES = [
    *OPTIMIZERS,
    {"name": "muon", "momentum": 0.8},
    {"name": "muon", "nesterov": False},
    {"name": "muon", "ns_steps": 3},
    {"name": "muon", "adjust": "original"},
    {"name": "muon", "adam_lr": 0.25},
    {"name": "lion", "beta1": 0.5},
    {"name": "lion", "beta2": 0.5},
]
TOKENS = torch.randint(0, 61, (2, 25), generator=torch.Generator().manual_seed(0))


def train_config(**changes):
    return Train.check({"steps": 5, "lr": 1e-2, "weight_decay": 0.3, "clip": 0.0, **changes})


def model_of(spec, **sizes):
    return new_model(spec(bias=True, **sizes), 0)


def trained(model, optimizer, train, steps=3):
    for step in range(steps):
        update(Objective(model), optimizer, [TOKENS.roll(step, 1)], train, COMPUTE)
    return model


def alone(values, decays=True):
    """Return a weight of the blocks, in float64."""
    parameter = nn.Parameter(torch.tensor(values, dtype=torch.float64))
    return Weight("blocks.0.w", parameter, decays=decays, hidden=True)


def stepped(entry, weight, gradients, *, lr, weight_decay):
    """Return what a weight is after steps along given gradients."""
    train = {"lr": lr, "weight_decay": weight_decay, "betas": (0.9, 0.95), "eps": 1e-8}
    optimizer = OPTIMIZERS.build(OPTIMIZERS.resolve(entry), weights=[weight], **train)
    set_learning_rate(optimizer, lr)
    for gradient in gradients:
        weight.parameter.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    return weight.parameter.detach()


START = [[0.5, -1.0, 2.0], [0.25, 0.0, -3.0]]
GRADIENTS = [
    [[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]],
    [[-4.0, 1.0, 0.5], [2.0, -0.1, 5.0]],
    [[0.3, 0.2, -0.7], [-9.0, 0.4, 0.0]],
    [[1.0, 1.0, 1.0], [1.0, -1.0, 1.0]],
]


@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.99), (0.5, 0.6)])
@pytest.mark.parametrize("decays", [True, False])
def test_lion_is_the_program_of_its_paper(beta1, beta2, decays):
    """Chen et al. 2023, program 1: update = sign(interp(g, m, b1)); m = interp(g, m, b2)."""
    entry = {"name": "lion", "beta1": beta1, "beta2": beta2}
    found = stepped(entry, alone(START, decays), GRADIENTS, lr=0.1, weight_decay=0.2)
    for i, row in enumerate(START):
        for j, start in enumerate(row):
            w, m = start, 0.0
            for gradient in GRADIENTS:
                g = gradient[i][j]
                c = beta1 * m + (1 - beta1) * g
                w -= 0.1 * (((c > 0) - (c < 0)) + (0.2 * w if decays else 0.0))
                m = beta2 * m + (1 - beta2) * g
            assert found[i, j].item() == pytest.approx(w, rel=1e-13, abs=1e-13)


def test_adamw_is_torchs_with_matrices_alone_decaying_bit_for_bit(spec):
    train, model = train_config(), model_of(spec)
    twin = copy.deepcopy(model)
    parameters = list(twin.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.3},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    theirs = torch.optim.AdamW(groups, lr=1e-2, betas=train.betas, eps=train.eps, fused=True)
    trained(twin, theirs, train)
    assert same(trained(model, make_optimizer(model, train), train), twin)


@pytest.mark.parametrize(
    "options",
    [
        {"momentum": 0.8, "nesterov": False, "ns_steps": 3},
        {"adjust": "original", "adam_lr": 0.25},
    ],
)
def test_muon_is_torchs_for_matrices_of_the_blocks_and_adamw_for_the_rest(spec, options):
    train = train_config(optimizer={"name": "muon", **options})
    model = model_of(spec)
    twin = copy.deepcopy(model)
    matrices = [p for p in twin.blocks.parameters() if p.dim() == 2]
    others = [p for p in twin.parameters() if all(p is not m for m in matrices)]
    muon = torch.optim.Muon(
        matrices,
        lr=1e-2,
        weight_decay=0.3,
        momentum=options.get("momentum", 0.95),
        nesterov=options.get("nesterov", True),
        ns_steps=options.get("ns_steps", 5),
        adjust_lr_fn=options.get("adjust", "match_rms_adamw"),
    )
    groups = [
        {"params": [p for p in others if p.dim() >= 2], "weight_decay": 0.3},
        {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0},
    ]
    rate = 1e-2 * options.get("adam_lr", 1.0)
    adamw = torch.optim.AdamW(groups, lr=rate, betas=train.betas, eps=train.eps, fused=True)
    assert len(matrices) == 2 * 7  # q, k, v, out; gate, up, down
    for step in range(3):
        loss = nn.functional.cross_entropy(
            twin(TOKENS.roll(step, 1)[:, :-1]).flatten(0, 1), TOKENS.roll(step, 1)[:, 1:].flatten()
        )
        loss.backward()
        for optimizer in (muon, adamw):
            optimizer.step()
            optimizer.zero_grad()
    assert same(trained(model, make_optimizer(model, train), train), twin)


def test_filters_of_a_convolution_are_no_matrix_of_a_linear_layer(spec):
    """To orthogonalize a table of numbers would mean nothing."""
    model = model_of(spec)
    model.blocks[0].attn.register_parameter("filters", nn.Parameter(torch.zeros(3, 4)))
    hidden = {weight.name for weight in list_weights(model) if weight.hidden}
    assert "blocks.0.attn.q.weight" in hidden
    assert not hidden & {"blocks.0.attn.filters", "embedding.weight", "head.weight"}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_weights_scale_is_a_factor_of_its_rate(name):
    """A weight of scale 0.5 is stepped as one alone at half the rate."""
    scaled = replace(alone(START), scale=lambda _update: Scale(rate=0.5))
    found, plain = (
        stepped(name, weight, GRADIENTS, lr=rate, weight_decay=0.1)
        for weight, rate in ((scaled, 0.02), (alone(START), 0.01))
    )
    assert torch.equal(found, plain)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_bytes_counted_on_the_distinct_layers_are_those_of_the_whole_model(spec, optimizer):
    """A tied head, and layers that differ: the first and the last are unlike the others."""
    pattern = {"pattern": ["mha", "gated_delta"], "layers": {-1: "mqa"}}
    deep = spec(layers=7, attention=pattern, tie=True)
    whole = make_optimizer(Objective(build(deep)), train_config(optimizer=optimizer))
    assert optimizer_bytes(deep, OPTIMIZERS.resolve(optimizer)) == state_bytes(whole)
