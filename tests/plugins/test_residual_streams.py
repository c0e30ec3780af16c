"""Blocks with several residual streams, each beside its paper's formula in float64."""

import pytest
import torch
from torch import nn

from llama_ablate.model.context import Context
from llama_ablate.model.decoder import new_model
from llama_ablate.model.positions import Position
from tests.conftest import make_spec
from tests.laws import TOKENS
from tests.model.test_blocks import Times

B, T, D = 2, 3, 5


@pytest.fixture(autouse=True)
def hyper(plugin):
    """Load the plug-in of hyper-connections; give its module."""
    return plugin("hyper_connections")


@pytest.fixture(autouse=True)
def residuals(plugin):
    """Load the plug-in of attention residuals; give its module."""
    return plugin("attention_residuals")


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def ready(block):
    """Return a block in float64 with every parameter random."""
    for i, p in enumerate(block.double().parameters()):
        p.data = random(*p.shape, seed=i)
    return block


def rms(x):
    return x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt()


@pytest.mark.parametrize("kind", ["static", "dynamic", "mhc"])
@torch.no_grad()
def test_hyper_connections_are_those_of_the_papers(hyper, kind):
    """By loops over streams: input sum_i r_i h_i, then stream j becomes sum_i M_ij h_i + w_j f."""
    N = 3
    sublayers = Times(2.0), Times(3.0)
    block = ready(hyper.HyperConnections(*sublayers, nn.Identity, D, 1, 9, streams=N, kind=kind))
    streams = random(B, T, N, D, seed=9)
    left = block(streams, Context(0, T, Position()))
    for part, f in zip((block.attn_streams, block.ffn_streams), sublayers, strict=True):
        after = torch.empty_like(streams)
        for b in range(B):
            for t in range(T):
                h = streams[b, t]
                read, mix, write = part.read, part.mix, part.write
                if kind == "dynamic":
                    shift = torch.stack([torch.tanh(part.project(rms(h[i]))) for i in range(N)])
                    read = read + part.scale[0] * shift[:, 0]
                    mix = mix + part.scale[1] * shift[:, 1 : N + 1]
                    write = write + part.scale[2] * shift[:, N + 1]
                if kind == "mhc":
                    shift = part.project(rms(h.flatten()))
                    read = 1 / (1 + torch.exp(-(read + part.scale[0] * shift[:N])))
                    mix = hyper.doubly_stochastic(mix + part.scale[1] * shift[N:-N].view(N, N))
                    write = 2 / (1 + torch.exp(-(write + part.scale[2] * shift[-N:])))
                out = f(sum(read[i] * h[i] for i in range(N)))
                for j in range(N):
                    after[b, t, j] = sum(mix[i, j] * h[i] for i in range(N)) + write[j] * out
        streams = after
    torch.testing.assert_close(left, streams)


@pytest.mark.parametrize("kind", ["static", "dynamic"])
@torch.no_grad()
def test_hyper_connections_start_as_the_residual_connection(kind):
    """The last norm does not see that four equal streams are summed."""
    blocks = {"name": "hyper-connections", "kind": kind}, "pre"
    specs = (make_spec(block=block, norm={"name": "rmsnorm", "eps": 0.0}) for block in blocks)
    hyper, plain = (new_model(spec, 0)(TOKENS) for spec in specs)
    torch.testing.assert_close(hyper, plain, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_attention_residuals_weigh_all_earlier_outputs(residuals):
    """h = sum_i softmax_i(w . rms(v_i)) v_i over the embedding and every output, Kimi 2026."""
    layers = 2
    sublayers = [(Times(2.0 + i), Times(5.0 + i)) for i in range(layers)]
    blocks = [
        ready(residuals.AttentionResiduals(*pair, nn.Identity, D, i, layers))
        for i, pair in enumerate(sublayers)
    ]
    x, ctx = random(B, T, D, seed=9), Context(0, T, Position())
    outputs = [x]

    def attended(query):
        scores = torch.stack([(rms(v) * query).sum(-1) for v in outputs])
        return (scores.softmax(0)[..., None] * torch.stack(outputs)).sum(0)

    stream = x
    for block, (attn, ffn) in zip(blocks, sublayers, strict=True):
        outputs.append(attn(x if block.attn_query is None else attended(block.attn_query)))
        outputs.append(ffn(attended(block.ffn_query)))
        stream = block(stream, ctx)
    torch.testing.assert_close(stream, attended(blocks[-1].out_query))
    assert blocks[0].attn_query is None
    assert blocks[0].out_query is None
