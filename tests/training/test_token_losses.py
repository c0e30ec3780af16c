"""Logits made some at a time: the losses of all at once, in a part of the memory."""

import pytest
import torch
import torch.nn.functional as F

from llama_ablate.errors import ConfigError
from llama_ablate.model.decoder import new_model
from llama_ablate.training import token_losses
from llama_ablate.training.losses import LOSSES, Objective

TOKENS = torch.randint(0, 61, (3, 13), generator=torch.Generator().manual_seed(1))
LOSS_NAMES = ["z_loss"]


@pytest.fixture
def some(monkeypatch):
    """Let logits be made of seven tokens at a time: 36 tokens are no multiple of it."""
    monkeypatch.setitem(token_losses.LOGITS, "cpu", 61 * 7 + 5)


def computed(spec, *losses, **changes):
    """Return the total, the parts and the gradients of an objective by name."""
    model = new_model(spec(init_std=0.3, **changes), 0)
    model.kernel = "math"
    objective = Objective(model, [LOSSES.resolve(entry) for entry in losses])
    total, parts = objective(TOKENS)
    (total / 2).backward()  # as with two micro-batches
    return total.item(), parts, {n: p.grad for n, p in objective.named_parameters()}


@pytest.mark.parametrize(
    "changes", [{}, {"tie": True}, {"logit_softcap": 3.0}], ids=["plain", "tied", "capped"]
)
def test_loss_and_gradients_are_those_of_all_logits_at_once(spec, monkeypatch, changes):
    whole = computed(spec, *LOSS_NAMES, **changes)
    monkeypatch.setitem(token_losses.LOGITS, "cpu", 61 * 8 + 5)  # four parts of 8 tokens, one of 4
    cut = computed(spec, *LOSS_NAMES, **changes)
    assert cut[0] == pytest.approx(whole[0], rel=1e-6)
    assert list(cut[1]) == ["cross_entropy", "z_loss"]
    torch.testing.assert_close(dict(cut[1]), dict(whole[1]), rtol=1e-6, atol=0)
    torch.testing.assert_close(cut[2], whole[2], rtol=1e-4, atol=2e-6)


@pytest.mark.usefixtures("some")
def test_gradients_are_as_near_to_those_of_float64_as_rounding_lets_them(spec):
    """By an implementation of its own: one softmax minus one at the target, over all tokens."""
    _, _, found = computed(spec)
    model = new_model(spec(init_std=0.3), 0).double()
    model.kernel = "math"
    hidden_ND = model.hidden(TOKENS[:, :-1]).flatten(0, 1).detach()
    targets_N = TOKENS[:, 1:].flatten()
    probability_NV = (hidden_ND @ model.head.weight.T).softmax(1).detach()
    wrong_NV = probability_NV - F.one_hot(targets_N, 61)
    expected = wrong_NV.T @ hidden_ND / len(targets_N) / 2
    torch.testing.assert_close(found["model.head.weight"].double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("some")
def test_no_more_logits_are_made_at_once_than_allowed(spec):
    model = new_model(spec(), 0)
    made = []
    model.head.register_forward_hook(
        lambda _module, _inputs, out: made.append(out.shape[:-1].numel())
    )
    Objective(model, [LOSSES.resolve(entry) for entry in LOSS_NAMES])(TOKENS)
    assert sum(made) == 36
    assert max(made) == 6  # six equal parts, where five of 7 would leave one token


@pytest.mark.usefixtures("some", "own")
def test_a_loss_that_asks_for_all_logits_gets_them_all(spec):
    """Not every function of logits is a mean over tokens: this one is of each sequence."""
    seen = []
    LOSSES.register("spread")(lambda logits: seen.append(logits.shape) or logits.std(1).mean())
    computed(spec, "spread")
    assert seen == [(3, 12, 61)]


@pytest.mark.usefixtures("own")
def test_a_loss_of_tokens_may_ask_for_targets_and_nothing_else(spec):
    LOSSES.register("both")(lambda token_logits, hidden: token_logits.mean() * hidden.mean())
    with pytest.raises(ConfigError, match="'both' asks for 'token_logits' and 'hidden'"):
        computed(spec, "both")
