"""What training minimises: closed forms of the losses, and their way through a run."""

import math

import pytest
import torch
import torch.nn.functional as F

from llama_ablate.config.experiment import Train
from llama_ablate.errors import ConfigError
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import new_model
from llama_ablate.training.compute import update
from llama_ablate.training.losses import LOSSES, Objective, z_loss

from .runs import BOTH, COMPUTE, MOE, trained

TOKENS = torch.randint(0, 61, (3, 13), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _loss_with_layers_of_its_own(plugin):
    """Load a plug-in whose loss is a module: what it has is trained, saved and counted."""
    plugin("multi_token")


def objective(spec, *losses, seed=0, **changes):
    model = new_model(spec(**{"init_std": 0.3, **changes}), seed)
    model.kernel = "math"
    return Objective(model, [LOSSES.resolve(entry) for entry in losses], seed)


def test_the_z_loss_is_the_weighted_mean_square_of_log_z():
    logits = torch.tensor([[[1.0, 1.0, 1.0], [0.0, math.log(2), math.log(3)]]], dtype=torch.float64)
    expected = ((1 + math.log(3)) ** 2 + math.log(6) ** 2) / 2
    assert z_loss(logits, weight=0.5).item() == pytest.approx(0.5 * expected, rel=1e-12)
    assert z_loss(logits).item() == pytest.approx(1e-4 * expected, rel=1e-12)


def test_the_gradient_of_the_z_loss_is_twice_log_z_times_the_softmax():
    logits = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    z_loss(logits, weight=1.0).backward()
    expected = 2 * logits.logsumexp(-1, keepdim=True) * logits.softmax(-1) / 6
    torch.testing.assert_close(logits.grad, expected)


def test_without_losses_the_total_is_cross_entropy_to_the_bit(spec):
    total, parts = objective(spec)(TOKENS)
    logits = new_model(spec(init_std=0.3), 0)
    logits.kernel = "math"
    expected = F.cross_entropy(logits(TOKENS[:, :-1]).flatten(0, 1), TOKENS[:, 1:].flatten())
    assert torch.equal(total, expected)
    assert list(parts) == ["cross_entropy"]


def test_the_total_is_the_sum_of_the_parts_and_cross_entropy_stays_plain(spec):
    plain, own = objective(spec, feedforward=MOE)(TOKENS)
    names = ["z_loss", {"name": "multi_token", "weight": 0.5}]
    total, parts = objective(spec, *names, feedforward=MOE)(TOKENS)
    assert set(parts) == {"cross_entropy", "balance", "z_loss", "multi_token"}
    assert all(value > 0 for value in parts.values())
    torch.testing.assert_close(total, sum(parts.values()))
    assert torch.equal(parts["cross_entropy"], own["cross_entropy"])
    torch.testing.assert_close(plain, own["cross_entropy"] + own["balance"])
    assert parts["balance"] > own["balance"] + 0.4, "the extra layer's experts are balanced too"


def test_extra_layers_are_drawn_from_seed_and_name_and_are_no_part_of_the_model(spec):
    entry = {"name": "multi_token", "depth": 2}
    one, again, other = (objective(spec, entry, seed=seed) for seed in (0, 0, 1))
    for name, value in one.losses.state_dict().items():
        assert torch.equal(value, again.losses.state_dict()[name]), name
        if value.dim() == 2:
            assert not torch.equal(value, other.losses.state_dict()[name]), name
    first, second = (depth.block.attn.q.weight for depth in one.losses["multi_token"].depths)
    assert not torch.equal(first, second)
    assert not torch.equal(first, one.model.blocks[-1].attn.q.weight)
    plain = objective(spec).model.state_dict()
    assert plain.keys() == one.model.state_dict().keys()
    assert all(torch.equal(value, one.model.state_dict()[name]) for name, value in plain.items())
    assert count(one.model.spec).parameters == sum(p.numel() for p in one.model.parameters())


def test_what_a_loss_may_not_ask_for_is_named(spec):
    class Asking(torch.nn.Module):
        def forward(self, logit):
            return logit.sum()

    LOSSES.register("asking")(Asking)
    with pytest.raises(ConfigError, match=r"asks for 'logit'; allowed: .*did you mean 'logits'"):
        objective(spec, "asking")
    with pytest.raises(ConfigError, match="supplies no size 'logit'"):
        LOSSES.register("function")(lambda logit: logit)


# --- in a run ---


def test_the_curve_has_a_column_for_each_part_and_the_train_loss_stays_plain(spec, tokens):
    _model, done = trained(spec, tokens, sizes={"feedforward": MOE}, losses=BOTH)
    first = done.curve[0]
    names = {"loss_balance_nats", "loss_z_loss_nats", "loss_multi_token_nats"}
    assert all(names <= set(point) for point in done.curve)
    model = new_model(spec(vocab=256, layers=1, feedforward=MOE), 0)
    batch = torch.from_numpy(tokens.batch(0, 0, 4, 24))
    expected = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).item()
    assert first["train_loss_nats"] == pytest.approx(expected, rel=1e-6)
    assert first["loss_multi_token_nats"] == pytest.approx(0.3 * math.log(256), rel=0.05)
    assert first["loss_z_loss_nats"] == pytest.approx(1e-4 * math.log(256) ** 2, rel=0.05)
    assert done.curve[-1]["loss_multi_token_nats"] < first["loss_multi_token_nats"]


def test_gradients_of_extra_layers_are_clipped_with_the_models(spec):
    loss = objective(spec, {"name": "multi_token", "weight": 100.0})
    config = Train.check({"steps": 1, "batch": 4, "clip": 0.5})
    before = [p.detach().clone() for p in loss.parameters()]
    plain = torch.optim.SGD(loss.parameters(), lr=1.0)
    _, norm = update(loss, plain, [TOKENS], config, COMPUTE)
    assert norm > 0.5
    moved = torch.stack([(p - b).norm() for p, b in zip(loss.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.5, rel=1e-4)
