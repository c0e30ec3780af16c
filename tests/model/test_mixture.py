"""The mixture of experts, held to loops over tokens and to two published implementations."""

import math
from types import SimpleNamespace

import pytest
import torch

from llama_ablate.config.experiment import Train
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import new_model
from llama_ablate.model.feedforward import SwiGLU
from llama_ablate.model.mixture import MixtureOfExperts
from llama_ablate.training.compute import Compute, update
from llama_ablate.training.losses import Objective

DIM = 6
EVALUATION = SimpleNamespace(losses=None)


class Training:
    """A context that keeps what components add to the loss."""

    def __init__(self):
        self.losses = {}

    def add_loss(self, name, value, weight):
        self.losses[name] = weight * value


def mixture(bias=False, **options):
    torch.manual_seed(0)
    built = MixtureOfExperts(DIM, bias, **{"width": 5, "experts": 4, **options})
    for parameter in built.parameters():
        parameter.data.normal_()
    return built.double()


def tokens(batch=3, length=7):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, DIM, dtype=torch.float64, generator=generator)


def one_token(moe, x_D):
    """Return the output of a token by itself: sort the scores, add up the best experts."""
    logits = (moe.router.weight @ x_D).tolist()
    score = {"softmax": lambda z: z.softmax(0), "sigmoid": torch.sigmoid}[moe.scoring]
    scores = score(moe.router.weight @ x_D)
    best = sorted(range(len(logits)), key=lambda n: -logits[n])[: moe.top_k]
    total = sum(scores[n] for n in best) if moe.top_k > 1 else 1.0
    y_D = sum(scores[n] / total * moe.experts[n](x_D, None) for n in best)
    return y_D if moe.shared is None else y_D + moe.shared(x_D, None)


KINDS = [
    {"top_k": 1},
    {"top_k": 1, "scoring": "sigmoid", "shared": 1},
    {"top_k": 3, "scoring": "sigmoid", "experts": 5, "shared": 2},
    {"top_k": 2, "inner": "geglu", "bias": True, "shared": 1},
]


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_outputs_and_gradients_are_those_of_a_loop_over_tokens(options):
    moe, x = mixture(**options), tokens().requires_grad_()
    ours = moe(x, EVALUATION)
    looped = torch.stack([torch.stack([one_token(moe, x_D) for x_D in row]) for row in x])
    torch.testing.assert_close(ours, looped, rtol=1e-12, atol=1e-12)
    wanted = [x, *moe.parameters()]
    direction = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad(ours, wanted, direction),
        torch.autograd.grad(looped, wanted, direction, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def copied(ours, theirs):
    """Fill the fused weights of a published mixture with those of ours."""
    with torch.no_grad():
        theirs.gate.weight.copy_(ours.router.weight)
        for n, expert in enumerate(ours.experts):
            joined = torch.cat([expert.gate.weight, expert.up.weight])
            theirs.experts.gate_up_proj[n].copy_(joined)
            theirs.experts.down_proj[n].copy_(expert.down.weight)
    return theirs


def test_softmax_routing_of_two_experts_is_that_of_mixtral():
    from transformers.models.mixtral import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=DIM, intermediate_size=5, num_local_experts=4, num_experts_per_tok=2
    )
    config._experts_implementation = "eager"
    moe = mixture(top_k=2).float()
    theirs = copied(moe, MixtralSparseMoeBlock(config))
    x = tokens().float()
    torch.testing.assert_close(moe(x, EVALUATION), theirs(x), rtol=1e-5, atol=1e-5)


def test_sigmoid_routing_with_a_bias_and_shared_experts_is_that_of_deepseek_v3():
    from transformers.models.deepseek_v3 import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    config = DeepseekV3Config(
        hidden_size=DIM,
        moe_intermediate_size=5,
        n_routed_experts=4,
        num_local_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=2,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
    )
    config._experts_implementation = "eager"
    moe = mixture(top_k=2, shared=2, scoring="sigmoid", balance="bias").float()
    theirs = copied(moe, DeepseekV3MoE(config))
    x = tokens().float()
    unmoved = moe(x, EVALUATION)
    with torch.no_grad():
        moe.balance_bias.copy_(torch.tensor([0.5, -0.25, 0.25, -0.5]))
        theirs.gate.e_score_correction_bias.copy_(moe.balance_bias)
        for name in ("gate", "up", "down"):
            weight = getattr(moe.shared, name).weight
            getattr(theirs.shared_experts, f"{name}_proj").weight.copy_(weight)
    assert not torch.allclose(moe(x, EVALUATION), unmoved, atol=1e-3), "the bias chooses"
    torch.testing.assert_close(moe(x, EVALUATION), theirs(x), rtol=1e-5, atol=1e-5)


def test_a_token_gets_the_same_alone_as_among_others():
    moe, x = mixture(capacity=0.5), tokens()
    alone = torch.cat([moe(x[1:2, t : t + 1], EVALUATION) for t in range(7)], 1)
    torch.testing.assert_close(moe(x, EVALUATION)[1:2], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_the_balance_loss_is_the_share_of_the_load_times_the_mean_score(scoring):
    moe, x, ctx = mixture(top_k=2, scoring=scoring, balance_weight=1.0), tokens(), Training()
    moe(x, ctx)
    load, mean = [0] * 4, [0.0] * 4
    for x_D in x.flatten(0, 1):
        z = (moe.router.weight @ x_D).tolist()
        raw = [math.exp(v) if scoring == "softmax" else 1 / (1 + math.exp(-v)) for v in z]
        for n in sorted(range(4), key=lambda n: -z[n])[:2]:
            load[n] += 1 / (21 * 2)
        for n in range(4):
            mean[n] += raw[n] / sum(raw) / 21
    expected = 4 * sum(f * p for f, p in zip(load, mean, strict=True))
    assert ctx.losses["balance"].item() == pytest.approx(expected, rel=1e-12)
    ctx.losses["balance"].backward()
    assert moe.router.weight.grad.abs().max() > 0
    assert moe.experts[0].up.weight.grad is None


def test_the_bias_moves_by_its_rate_towards_an_even_load_and_by_no_gradient():
    moe, x = mixture(top_k=2, scoring="sigmoid", balance="bias", balance_rate=0.125), tokens()
    assert "balance_bias" not in dict(moe.named_parameters())
    assert "balance_bias" in moe.state_dict()
    ctx = Training()
    for part in x.split(1):  # micro-batches of one step
        moe(part, ctx).sum().backward()
    assert ctx.losses == {}
    moe(10 * x, EVALUATION)  # evaluation counts for nothing
    load = moe.load(x)
    assert load.sum() == 21 * 2
    assert load.unique().numel() > 1
    moe.after_step(lambda value: value)
    expected = 0.125 * (21 * 2 / 4 - load.double()).sign()
    assert torch.equal(moe.balance_bias, expected)
    moe.after_step(lambda value: value)  # a step in which nothing was seen moves nothing
    assert torch.equal(moe.balance_bias, expected)


def test_capacity_drops_single_experts_of_a_token_and_leaves_the_shared_ones():
    moe, x = mixture(top_k=2, shared=1, capacity=0.75), tokens()
    y = moe(x, Training())
    most = math.ceil(0.75 * 7 * 2 / 4)
    partly = 0
    for b, row in enumerate(x):
        taken = [0] * 4
        for t, x_D in enumerate(row):
            scores = (moe.router.weight @ x_D).softmax(0)
            best = scores.topk(2).indices.tolist()
            expected = moe.shared(x_D, None)
            for n in best:
                taken[n] += 1
                if taken[n] <= most:
                    weight = scores[n] / scores[best].sum()
                    expected = expected + weight * moe.experts[n](x_D, None)
            partly += max(taken[n] for n in best) > most >= min(taken[n] for n in best)
            torch.testing.assert_close(y[b, t], expected, rtol=1e-12, atol=1e-12)
    assert partly, "some token keeps one expert and loses the other"


def test_rows_that_only_fill_up_change_no_output_and_no_gradient(monkeypatch):
    moe = mixture(bias=True).float()

    def step():
        moe.zero_grad()
        x = tokens(2, 200).float().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = moe(x, EVALUATION)
        y.float().square().mean().backward()
        return [y, x.grad, *(p.grad for p in moe.parameters() if p.grad is not None)]

    filled = step()
    monkeypatch.setattr("llama_ablate.model.mixture._rounded", int)
    for one, other in zip(filled, step(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_experts_are_chosen_in_float32_whatever_the_precision():
    moe, x = mixture().float(), tokens(20).float()
    with torch.autocast("cpu", torch.bfloat16):
        y = moe(x, EVALUATION)
        assert torch.equal(moe.load(x), mixture().float().load(x))
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), moe(x, EVALUATION), rtol=0.1, atol=0.1)


def test_active_parameters_and_flops_leave_out_the_experts_that_are_not_chosen(spec):
    moe = mixture(experts=5, top_k=2, shared=3)
    expert = 3 * DIM * 5
    assert sum(p.numel() for p in moe.parameters()) == 5 * DIM + (5 + 3) * expert
    assert moe.active_parameters() == 5 * DIM + (2 + 3) * expert
    assert moe.flops() == 2 * moe.active_parameters()
    options = {"name": "moe", "experts": 5, "top_k": 2, "shared": 1, "width": 12}
    counts = count(spec(feedforward=options, bias=False, layers=3))
    assert counts.parameters - counts.active_parameters == 3 * (5 - 2) * 3 * 32 * 12
    assert counts.non_embedding - counts.active_non_embedding == 3 * (5 - 2) * 3 * 32 * 12


def test_unless_given_a_width_a_token_passes_as_many_units_as_in_the_inner_network():
    assert SwiGLU(64, False).width == 176
    for options, width in (({}, 88), ({"top_k": 1, "shared": 2}, 59), ({"inner": "relu"}, 128)):
        moe = MixtureOfExperts(64, False, **options)
        assert moe.width == moe.experts[0].width == width
    assert mixture(width=5, shared=3).shared.width == 15  # one network of so many times the width


class Kept:
    """Stands in for an optimizer: keeps the gradients of its one step."""

    def __init__(self, model):
        self.model = model

    def step(self):
        self.gradients = {n: p.grad.clone() for n, p in self.model.named_parameters()}

    def zero_grad(self):
        self.model.zero_grad()


@pytest.mark.parametrize("options", [{}, {"scoring": "sigmoid", "capacity": 1.0}])
def test_a_step_in_parts_has_the_gradients_and_the_balance_loss_of_the_whole(spec, options):
    """A product of two means over a part is another function than over the whole step."""
    mixture = {"name": "moe", "experts": 4, "width": 8, "balance_weight": 0.1, **options}
    tokens = torch.randint(0, 61, (16, 25), generator=torch.Generator().manual_seed(0))
    found = []
    for number in (1, 4):
        model = new_model(spec(feedforward=mixture), 0).double()
        kept, compute = Kept(model), Compute("cpu", 1, "float32", "math")
        train = Train(steps=1, clip=0)
        means, _ = update(Objective(model, []), kept, tokens.chunk(number), train, compute)
        found.append((kept.gradients, means))
    (whole, losses), (cut, others) = found
    for name, value in losses.items():
        assert others[name].item() == pytest.approx(value.item(), rel=2e-7)
    torch.testing.assert_close(cut, whole, rtol=1e-9, atol=1e-14)
