"""Residual streams other than one vector a token, each beside its paper's formula in float64."""

import pytest
import torch
from torch import nn

from llama_ablate.errors import ConfigError
from llama_ablate.model import laws
from llama_ablate.model.blocks import BLOCKS, PreNorm
from llama_ablate.model.context import Context
from llama_ablate.model.counts import count, forget
from llama_ablate.model.decoder import build, init_weights
from llama_ablate.model.feedforward import FEEDFORWARDS, SwiGLU
from llama_ablate.model.positions import Position
from llama_ablate.model.residuals import (
    AttentionResiduals,
    HyperConnections,
    doubly_stochastic,
)
from llama_ablate.model.state import RecurrentState, Stateful
from tests.conftest import LLAMA, SMALL, make_spec
from tests.laws import TOKENS

B, T, D = 2, 3, 5
HYPER = [{"name": "hyper-connections", "kind": kind} for kind in ("static", "dynamic", "mhc")]


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x, *_):
        return self.factor * x.sin()


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def ready(block):
    """Return a block in float64 with every parameter random."""
    for i, p in enumerate(block.double().parameters()):
        p.data = random(*p.shape, seed=i)
    return block


def model_of(block, **components):
    return init_weights(build(make_spec(**LLAMA | {"block": block} | components)), 0)


def rms(x):
    return x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt()


@pytest.mark.parametrize("kind", ["static", "dynamic", "mhc"])
@torch.no_grad()
def test_hyper_connections_are_those_of_the_papers(kind):
    """By loops over streams: input sum_i r_i h_i, then stream j becomes sum_i M_ij h_i + w_j f."""
    N = 3
    sublayers = Times(2.0), Times(3.0)
    block = ready(HyperConnections(*sublayers, nn.Identity, D, 1, 9, streams=N, kind=kind))
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
                    mix = doubly_stochastic(mix + part.scale[1] * shift[N:-N].view(N, N))
                    write = 2 / (1 + torch.exp(-(write + part.scale[2] * shift[-N:])))
                out = f(sum(read[i] * h[i] for i in range(N)))
                for j in range(N):
                    after[b, t, j] = sum(mix[i, j] * h[i] for i in range(N)) + write[j] * out
        streams = after
    torch.testing.assert_close(left, streams)


def test_mixing_of_mhc_has_rows_and_columns_that_sum_to_one():
    shares = doubly_stochastic(random(4, 6, 6))
    assert (shares > 0).all()
    for dim in (-1, -2):
        torch.testing.assert_close(shares.sum(dim), torch.ones(4, 6).double(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("block", HYPER[:2])
@torch.no_grad()
def test_hyper_connections_start_as_the_residual_connection(block):
    """The last norm does not see that four equal streams are summed."""
    norm = {"name": "rmsnorm", "eps": 0.0}
    hyper, plain = (model_of(name, norm=norm)(TOKENS) for name in (block, "pre"))
    torch.testing.assert_close(hyper, plain, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_attention_residuals_weigh_all_earlier_outputs():
    """h = sum_i softmax_i(w . rms(v_i)) v_i over the embedding and every output, Kimi 2026."""
    layers = 2
    sublayers = [(Times(2.0 + i), Times(5.0 + i)) for i in range(layers)]
    blocks = [
        ready(AttentionResiduals(*pair, nn.Identity, D, i, layers))
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


@torch.no_grad()
def test_x0_mixes_the_embedding_into_what_enters_each_layer():
    """x0=8, mix (1/2, 1/4): 6, then 6 + 0 = 6; in the second layer 6/2 + 8/4 = 5."""
    ctx = Context(0, 1, Position())
    first, second = (PreNorm(Times(0.0), Times(0.0), nn.Identity, x0=True) for _ in range(2))
    for block in (first, second):
        block.x0_mix.copy_(torch.tensor([0.5, 0.25]))
    x = first(torch.full((1, 1, 1), 8.0), ctx)
    assert x == 6
    assert second(x, ctx) == 5


@torch.no_grad()
def test_x0_starts_as_the_model_without():
    for name in ("pre", "post", "sandwich", "parallel"):
        assert torch.equal(model_of({"name": name, "x0": True})(TOKENS), model_of(name)(TOKENS))


@pytest.mark.parametrize(
    "other", ["pre", "attention-residuals", {"name": "hyper-connections", "streams": 2}]
)
def test_blocks_with_different_streams_are_no_pattern(other):
    with pytest.raises(ConfigError, match="keep different residual streams") as caught:
        model_of({"pattern": ["hyper-connections", other]})
    assert caught.value.where == ("block",)


@pytest.mark.parametrize("streams", [0, 1, -3, 65])
def test_a_number_of_streams_that_cannot_be_is_refused(streams):
    with pytest.raises(ConfigError, match=f"streams {streams}: must be from 2 to 64"):
        model_of({"name": "hyper-connections", "streams": streams})


def test_what_streams_cost_is_the_closed_form():
    """Of each of 2 L sub-layers: N (N + 1) D of mixing, and weights as the papers have them."""
    d, n, sublayers = SMALL["dim"], 4, 2 * SMALL["layers"]
    plain = count(make_spec(**LLAMA))
    own = n * n + 2 * n
    projected = {"static": 0, "dynamic": d * (n + 2), "mhc": n * d * own}
    for block in HYPER:
        kind = block["kind"]
        counts = count(make_spec(**LLAMA | {"block": block}))
        parameters = own + projected[kind] + (kind != "static") * 3
        assert counts.parameters - plain.parameters == sublayers * parameters
        flops = 2 * (projected[kind] * (n if kind == "dynamic" else 1) + n * (n + 1) * d)
        assert counts.flops_per_token - plain.flops_per_token == sublayers * flops
    counts = count(make_spec(**LLAMA | {"block": "attention-residuals"}))
    assert counts.parameters - plain.parameters == sublayers * d  # none before the first, one last
    assert counts.flops_per_token == plain.flops_per_token


@pytest.fixture
def enter(monkeypatch):
    """Register a component as `theirs`, and return what the laws say of it."""

    def entered(registry, component):
        for kind in ("_components", "_schemas"):
            monkeypatch.setattr(registry, kind, dict(getattr(registry, kind)))
        registry.register("theirs")(component)
        forget()  # what was counted of another of that name
        try:
            laws.check(make_spec(**LLAMA | {registry.slot: "theirs"}), registry.slot)
        except ConfigError as error:
            return error.message
        return "obeys"

    return entered


class TokenShift(Stateful, SwiGLU):
    """A feed-forward network that reads the token before, as RWKV's does."""

    def forward(self, x_BTD, ctx):
        state = ctx.state(self)
        last = x_BTD[:, :1] * 0 if state is None else state["last"]
        before_BTD = torch.cat([last, x_BTD[:, :-1]], 1)
        if ctx.valid_BT is not None:
            before_BTD = before_BTD * (ctx.pos_T > 0)[..., None]
        if state is not None:
            state.advance(x_BTD.shape[1], last=x_BTD[:, -1:])
        return super().forward((x_BTD + before_BTD) / 2, ctx)

    def new_state(self, batch, _capacity, *, dtype, device):
        dim = self.up.in_features
        return RecurrentState({"last": torch.zeros(batch, 1, dim, dtype=dtype, device=device)})

    def state_bytes(self, _context, dtype):
        return self.up.in_features * dtype.itemsize


class Unadvanced(TokenShift):
    """Leave the state as it was made."""

    def forward(self, x_BTD, ctx):
        state = ctx.state(self)
        y_BTD = super().forward(x_BTD, ctx)
        if state is not None:
            state.length = 0
        return y_BTD


class Uncounted(TokenShift):
    """Keep more than it says."""

    def state_bytes(self, *_):
        return 0


def test_a_feed_forward_network_may_keep_state(enter):
    assert enter(FEEDFORWARDS, TokenShift) == "obeys"
    theirs = {"feedforward": "theirs"}
    plain, other = count(make_spec(**LLAMA)), count(make_spec(**LLAMA | theirs))
    assert other.state_bytes - plain.state_bytes == 2 * SMALL["layers"] * SMALL["dim"]


@pytest.mark.parametrize(
    ("component", "said"),
    [
        (Unadvanced, "has a state that counts 0 tokens where it has read 7"),
        (Uncounted, "bytes for 1 tokens, and keeps"),
    ],
)
def test_the_state_of_a_feed_forward_network_is_under_the_laws(enter, component, said):
    assert said in enter(FEEDFORWARDS, component)


class WithoutFlops(HyperConnections):
    """Count nothing of its own."""

    def flops(self, _context):
        return 0


class Careless(PreNorm):
    """Leave in ctx.shared what is of no token."""

    def forward(self, x_BTD, ctx, state=None):
        ctx.shared["mean"] = x_BTD.mean((0, 1))
        return super().forward(1.5 * x_BTD, ctx, state)


class ById(PreNorm):
    """Add a number of each token's id, which the decoder leaves in ctx.shared."""

    def forward(self, x_BTD, ctx, state=None):
        return super().forward(x_BTD + ctx.shared["tokens"][..., None].sin(), ctx, state)


@pytest.mark.parametrize(
    ("component", "said"),
    [
        (WithoutFlops, "FLOPs per token in blocks.0, and torch's counter"),
        (Careless, "leaves 'mean' of shape (32,) in ctx.shared"),
        (ById, "obeys"),
    ],
)
def test_a_block_is_held_to_what_it_counts_and_shares(enter, component, said):
    assert said in enter(BLOCKS, component)
