"""What a block and its parts may do beside `forward`: share tensors, keep state, count FLOPs."""

import pytest
import torch
from torch import nn

from llama_ablate.errors import ConfigError
from llama_ablate.model import laws
from llama_ablate.model.blocks import BLOCKS, PreNorm
from llama_ablate.model.context import Context
from llama_ablate.model.counts import count, forget
from llama_ablate.model.decoder import new_model
from llama_ablate.model.feedforward import FEEDFORWARDS, SwiGLU
from llama_ablate.model.positions import Position
from llama_ablate.model.state import RecurrentState, Stateful
from tests.conftest import LLAMA, SMALL, make_spec
from tests.laws import TOKENS


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x, *_):
        return self.factor * x.sin()


def model_of(block, **components):
    return new_model(make_spec(**LLAMA | {"block": block} | components), 0)


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


@pytest.fixture
def enter(monkeypatch):
    """Register a component as `theirs`, and return what the laws say of it."""

    def entered(registry, component):
        for kind in ("_components", "_schemas"):
            others = {k: v for k, v in getattr(registry, kind).items() if k != "theirs"}
            monkeypatch.setattr(registry, kind, others)
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


def test_a_feed_forward_network_may_keep_state_which_is_under_the_laws(enter):
    assert enter(FEEDFORWARDS, TokenShift) == "obeys"
    theirs = {"feedforward": "theirs"}
    plain, other = count(make_spec(**LLAMA)), count(make_spec(**LLAMA | theirs))
    assert other.state_bytes - plain.state_bytes == 2 * SMALL["layers"] * SMALL["dim"]


class ById(PreNorm):
    """Add a number of each token's id, which the decoder leaves in ctx.shared."""

    def forward(self, x_BTD, ctx, state=None):
        return super().forward(x_BTD + ctx.shared["tokens"][..., None].sin(), ctx, state)


def test_a_block_may_read_the_ids_of_the_tokens(enter):
    assert enter(BLOCKS, ById) == "obeys"
