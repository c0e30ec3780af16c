"""Mamba-2 beside transformers, and its state-space dual beside the recurrence in float64."""

import pytest
import torch

from llama_ablate.model.context import Context
from llama_ablate.model.decoder import build
from tests.conftest import make_spec
from tests.model.recurrences import LAWS, model_with
from tests.model.stepwise import assert_same_with_gradients, by_documents


@pytest.fixture(autouse=True)
def mamba2(plugin):
    """Load the plug-in; give its module."""
    return plugin("mamba2")


@pytest.mark.full
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("groups", [1, 2])
def test_over_sequences_longer_than_a_chunk_it(law, groups):
    law(model_with("mamba2", groups=groups))


@pytest.mark.parametrize(("groups", "bias"), [(1, False), (2, True)])
@torch.no_grad()
def test_a_layer_computes_what_that_of_transformers_does(mamba2, groups, bias):
    theirs = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    D, E, P = 32, 12, 16
    config = theirs.Mamba2Config(
        hidden_size=D,
        state_size=E,
        head_dim=P,
        num_heads=4,
        n_groups=groups,
        expand=2,
        use_conv_bias=bias,
        chunk_size=16,
        layer_norm_epsilon=1e-5,
        num_hidden_layers=1,
    )
    layer = theirs.Mamba2Mixer(config, 0).eval()
    options = {"state": E, "expand": 2, "groups": groups, "value_dim": P, "conv_bias": bias}
    ours = mamba2.Mamba2(D, 4, 8, False, **options)
    for i, parameter in enumerate(ours.parameters()):
        parameter.normal_(0, 0.4, generator=torch.Generator().manual_seed(i))
    joined = (ours.gate, ours.x, ours.b, ours.c, ours.step)
    layer.in_proj.weight.copy_(torch.cat([part.weight for part in joined]))
    layer.conv1d.weight.copy_(ours.conv.weight[:, None])
    if bias:
        layer.conv1d.bias.copy_(ours.conv.bias)
    layer.norm.weight.copy_(ours.gain)
    layer.out_proj.weight.copy_(ours.out.weight)
    for name in ("A_log", "dt_bias", "D"):
        getattr(layer, name).copy_(getattr(ours, name))
    x = torch.randn(2, 70, D, generator=torch.Generator().manual_seed(0))
    ctx = Context(0, 70, build(make_spec()).position)
    torch.testing.assert_close(ours(x, ctx), layer(x), rtol=1e-4, atol=1e-5)


def inputs(tokens, groups=2, heads=4, key=5, value=3):
    """Return what is read, written and kept of tokens, and a state."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(2, *shape, generator=generator, dtype=torch.float64).requires_grad_()

    c, b, x = (draw(tokens, *shape) for shape in ((groups, key), (groups, key), (heads, value)))
    return c, b, x, -draw(tokens, heads).square(), draw(heads, key, value)


def by_steps(c, b, x, decay, start):
    """h_t = a_t h_{t-1} + x_t b_t^T, y_t = h_t c_t, one head at a time."""
    groups, heads = b.shape[2], x.shape[2]
    outputs, last = [], []
    for head in range(heads):
        group, h = head // (heads // groups), start[:, head].mT
        reads = []
        for t in range(x.shape[1]):
            a = decay[:, t, head].exp()[:, None, None]
            h = a * h + x[:, t, head, :, None] * b[:, t, group, None]
            reads.append((h @ c[:, t, group, :, None]).squeeze(-1))
        outputs.append(torch.stack(reads, 1))
        last.append(h.mT)
    return torch.stack(outputs, 2), torch.stack(last, 1)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("tokens", [1, 16, 17, 50])
def test_chunks_compute_the_recurrence_and_its_gradients(mamba2, tokens, groups):
    given = inputs(tokens, groups)
    chunked, stepped = mamba2.state_space_dual(*given, chunk=16), by_steps(*given)
    assert_same_with_gradients(given, chunked, stepped)


@pytest.mark.parametrize("cuts", [[5, 6, 20], [15, 16, 17, 48]], ids=str)
def test_a_document_starts_from_nothing_wherever_in_a_chunk_it_begins(mamba2, cuts):
    """The first goes on from a state; with gradients, which reach no document from another."""
    given = inputs(50)
    begins = torch.zeros(2, 50, dtype=torch.bool)
    begins[:, cuts] = True
    chunked = mamba2.state_space_dual(*given, begins_BT=begins, chunk=16)
    stepped = by_documents(by_steps, given, cuts)
    assert_same_with_gradients(given, chunked, stepped)
