"""Multi-token prediction beside its papers' equations."""

import pytest
import torch

from llama_ablate.model.context import Context
from tests.training.test_losses import TOKENS, objective


@pytest.fixture(autouse=True)
def multi_token(plugin):
    """Load the plug-in; give its module."""
    return plugin("multi_token")


@torch.no_grad()
def test_a_sequential_layer_reads_the_hidden_state_and_the_next_tokens_embedding(spec):
    """Equations 21 to 25 of DeepSeek-V3, for two depths, one sequence at a time in float64."""
    entry = {"name": "multi_token", "weight": 0.25, "depth": 2}
    loss = objective(spec, entry).double()
    model, depths = loss.model, loss.losses["multi_token"].depths
    for name, gain in loss.losses.named_parameters():
        if name.endswith("gain"):
            gain.uniform_(0.5, 2.0)

    def rms(x, norm):
        return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.gain

    losses = [[], []]
    for row in TOKENS:
        h = model.hidden(row[None, :-1])
        for k, depth in enumerate(depths, start=1):
            length = len(row) - 1 - k
            known = model.embedding.weight[row[k : k + length]]
            both = [rms(h[0, :length], depth.hidden_norm), rms(known, depth.embedding_norm)]
            x = torch.cat(both, -1) @ depth.join.weight.T
            h = depth.block(x[None], Context(0, length, model.position, kernel="math"))
            logs = (depth.norm(h) @ model.head.weight.T).log_softmax(-1)[0]
            losses[k - 1] += [-logs[t, row[t + k + 1]].item() for t in range(length)]
    expected = 0.25 * sum(sum(of) / len(of) for of in losses) / 2
    assert loss(TOKENS)[1]["multi_token"].item() == pytest.approx(expected, rel=1e-6)


@torch.no_grad()
def test_independent_layers_predict_further_tokens_from_the_hidden_state_alone(spec):
    """With layers that add nothing, the logits are the model's own, one and two tokens later."""
    entry = {"name": "multi_token", "weight": 1.0, "depth": 2, "heads": "independent"}
    loss = objective(spec, entry).double()
    assert not [n for n, _ in loss.losses.named_parameters() if "join" in n or "embedding" in n]
    for depth in loss.losses["multi_token"].depths:
        depth.block.attn.out.weight.zero_()
        depth.block.ffn.down.weight.zero_()
        depth.block.attn.out.bias.zero_()
        depth.block.ffn.down.bias.zero_()
    hidden = loss.model.hidden(TOKENS[:, :-1])
    normed = hidden / (hidden.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    logs = loss.model.logits(normed).log_softmax(-1)
    means = []
    for k in (1, 2):
        own = [-logs[b, t, TOKENS[b, t + k + 1]] for b in range(3) for t in range(12 - k)]
        means.append(sum(own) / len(own))
    expected = sum(means) / 2
    torch.testing.assert_close(loss(TOKENS)[1]["multi_token"], expected, rtol=1e-6, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("heads", ["sequential", "independent"])
def test_further_tokens_are_predicted_within_a_document_as_in_each_alone(spec, heads):
    """A target in the next document counts nothing, and no extra layer sees another document."""
    entry = {"name": "multi_token", "weight": 0.5, "heads": heads}
    loss = objective(spec, entry, separator=0).double()
    text, cuts = TOKENS[:1].clamp(min=1), (5, 7)
    text[:, cuts] = 0
    assert text.shape[1] == 13
    alone = [text[:, first : last + 1] for first, last in ((0, 5), (5, 7), (7, 12))]
    sums = [loss(one)[1]["multi_token"] * (one.shape[1] - 2) for one in alone]
    torch.testing.assert_close(loss(text)[1]["multi_token"], sum(sums) / (12 - 1))
