"""Worked examples of the seams: each beside its formula in float64, and under the laws."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from llama_ablate.config.experiment import Train
from llama_ablate.model.context import Context
from llama_ablate.model.decoder import new_model
from llama_ablate.model.norms import RMSNorm
from llama_ablate.model.positions import Position
from llama_ablate.training import optimizer_laws
from llama_ablate.training.compute import Compute, update
from llama_ablate.training.losses import Objective
from llama_ablate.training.optimizers import OPTIMIZERS, evaluation_weights, make_optimizer
from tests.conftest import LLAMA, make_spec
from tests.training.test_optimizers import START, alone

T, D, H, E = 7, 8, 2, 4
LR, DECAY = 0.01, 0.5


@pytest.fixture(autouse=True)
def modules(plugin):
    """Load the worked examples; give their modules by name."""
    names = ("forgetting", "kda", "sam", "schedule_free", "sophia")
    return {name: plugin(name) for name in names}


def drawn(module, seed=0):
    """Return a module in float64 with drawn weights."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.double().parameters():
        parameter.data.normal_(0, 0.5, generator=generator)
    return module


@pytest.mark.parametrize("kernel", ["math", "fused"])
def test_forgetting_attention_is_its_formula_under_every_kernel(modules, kernel):
    """The laws compare it with a cache, token by token."""
    layer = drawn(modules["forgetting"].Forgetting(D, H, E, False, RMSNorm))
    x = torch.randn(1, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    q, k, v = (part(x).view(T, H, E).transpose(0, 1) for part in (layer.q, layer.k, layer.v))
    gates = layer.forget(x)[0].sigmoid()
    expected = torch.zeros(T, H, E, dtype=torch.float64)
    for head in range(H):
        for i in range(T):
            scores = [
                q[head, i] @ k[head, j] / math.sqrt(E) + gates[j + 1 : i + 1, head].log().sum()
                for j in range(i + 1)
            ]
            expected[i, head] = torch.stack(scores).softmax(0) @ v[head, : i + 1]
    expected = layer.out(expected.flatten(1))[None]
    found = layer(x, Context(0, T, Position(), kernel=kernel))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # gates are in float32
    weights = [*layer.parameters()]
    given = (torch.autograd.grad(one.square().sum(), weights) for one in (found, expected))
    for mine, theirs in zip(*given, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_kimi_delta_attention_is_its_formula(modules):
    layer = drawn(modules["kda"].KimiDelta(D, H, E))
    x = torch.randn(1, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    q, k, v, a, gate = (
        part(x)[0].view(T, H, E) for part in (layer.q, layer.k, layer.v, layer.decay, layer.gate)
    )
    q, k, write = F.normalize(q, dim=-1), F.normalize(k, dim=-1), layer.write(x)[0].sigmoid()
    read = torch.zeros(T, H, E, dtype=torch.float64)
    for head in range(H):
        S = torch.zeros(E, E, dtype=torch.float64)
        for t in range(T):
            k_t, b = k[t, head], write[t, head]
            forgotten = (torch.eye(E) - b * torch.outer(k_t, k_t)) @ torch.diag(
                a[t, head].sigmoid()
            )
            S = forgotten @ S + b * torch.outer(k_t, v[t, head])
            read[t, head] = S.T @ q[t, head]
    expected = layer.out((layer.norm(read) * gate.sigmoid()).flatten(1))[None]
    found = layer(x, Context(0, T, Position()))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # its matrix is in float32


CURVE = np.array([[1.0, 3.0, 0.5], [2.0, 0.1, 1.0]])


def steps_of(entry, count):
    """Return a weight after steps on the loss sum(CURVE * w^2) / 2, and its optimizer."""
    weight, curve = alone(START), torch.tensor(CURVE)
    train = {"lr": LR, "weight_decay": DECAY, "betas": (0.9, 0.95), "eps": 1e-8}
    optimizer = OPTIMIZERS.build(OPTIMIZERS.resolve(entry), weights=[weight], **train)

    def again(*, sampled=False):
        weight.parameter.grad = curve * weight.parameter.detach() * (2 if sampled else 1)
        return (curve * weight.parameter.detach().square()).sum() / 2

    again.tokens = 8
    for _ in range(count):
        again()
        optimizer_laws.do_step(optimizer, again)
    return weight.parameter.detach().numpy(), optimizer


def test_sam_is_adamw_at_the_gradient_uphill():
    w, mean, square = np.array(START), 0.0, 0.0
    for t in range(1, 4):
        gradient = CURVE * w
        uphill = CURVE * (w + 0.1 * gradient / np.linalg.norm(gradient))
        mean, square = 0.9 * mean + 0.1 * uphill, 0.95 * square + 0.05 * uphill**2
        step = mean / (1 - 0.9**t) / (np.sqrt(square / (1 - 0.95**t)) + 1e-8)
        w = w * (1 - LR * DECAY) - LR * step
    found, _ = steps_of({"name": "sam", "rho": 0.1}, 3)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-9)


def test_sophia_divides_by_the_curvature_of_drawn_targets_and_clips():
    w, mean, curvature = np.array(START), 0.0, 0.0
    for t in range(5):
        mean = 0.9 * mean + 0.1 * CURVE * w
        if t % 2 == 0:
            curvature = 0.95 * curvature + 0.05 * 8 * (2 * CURVE * w) ** 2
        ratio = np.clip(mean / (0.5 * curvature + 1e-15), -1, 1)
        w = w * (1 - LR * DECAY) - LR * ratio
    found, _ = steps_of({"name": "sophia", "rho": 0.5, "every": 2}, 5)
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-12)


def test_schedule_free_trains_between_steps_and_their_average_and_evaluates_the_average():
    x = z = np.array(START)
    square = 0.0
    for t in range(1, 6):
        y = 0.1 * z + 0.9 * x
        gradient = CURVE * y
        square = 0.95 * square + 0.05 * gradient**2
        z = z - LR * (gradient / (np.sqrt(square / (1 - 0.95**t)) + 1e-8) + DECAY * y)
        x = x + (z - x) / t
    found, optimizer = steps_of("schedule_free", 5)
    np.testing.assert_allclose(found, 0.1 * z + 0.9 * x, rtol=0, atol=1e-12)
    (parameter,) = optimizer.param_groups[0]["params"]
    before = parameter.detach().clone()
    with evaluation_weights(optimizer):
        np.testing.assert_allclose(parameter.detach().numpy(), x, rtol=0, atol=1e-12)
    assert torch.equal(parameter, before)
    optimizer.train = lambda: None  # whatever it leaves, each bit is put back
    with evaluation_weights(optimizer):
        assert not torch.equal(parameter, before)
    assert torch.equal(parameter, before)


def test_a_closure_has_the_gradient_of_the_step_and_that_of_targets_that_the_model_draws():
    """In parts of a batch too; drawn targets are those of the predictions in the long run."""
    model = new_model(make_spec(**LLAMA), 0)
    objective, seen = Objective(model), []
    tokens = torch.randint(0, model.spec.vocab, (64, 9), generator=torch.Generator().manual_seed(0))

    class Watcher(torch.optim.SGD):
        needs_closure = True

        def step(self, closure):
            gradients = [p.grad.clone() for p in model.parameters()]
            loss = closure()
            torch.testing.assert_close([p.grad for p in model.parameters()], gradients)
            drawn = closure(sampled=True)
            seen.append((float(loss), float(drawn), closure.tokens))

    optimizer = Watcher(model.parameters(), 0.0)
    compute = Compute("cpu", 1, "float32", "math")
    means, _ = update(objective, optimizer, tokens.chunk(4), Train(steps=1, batch=64), compute)
    ((loss, drawn_loss, count),) = seen
    assert loss == pytest.approx(float(means["cross_entropy"]))
    assert count == 64 * 8
    with torch.no_grad():
        logits = model(tokens[:, :-1]).log_softmax(-1)
    entropy = float(-(logits.exp() * logits).sum(-1).mean())
    assert drawn_loss == pytest.approx(entropy, abs=0.05)
    assert drawn_loss != loss
    assert make_optimizer(copy.deepcopy(model), Train(steps=1, optimizer="sam")).needs_closure
