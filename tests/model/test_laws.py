"""The laws that a component from outside is held to before a grid starts, each with its culprit."""

import math
from copy import copy

import numpy as np
import pytest
import torch
from torch import nn

from llama_ablate.errors import ConfigError
from llama_ablate.model import laws
from llama_ablate.model.blocks import Block, PreNorm
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.counts import count, forget
from llama_ablate.model.feedforward import SwiGLU
from llama_ablate.model.linear import OutLinear
from llama_ablate.model.mixers.attention import MHA
from llama_ablate.model.state import RecurrentState, Stateful
from tests.conftest import LLAMA, SMALL, make_spec
from tests.laws import COMPONENTS


def faulty(compute):
    """Return a network that returns `compute` of its output, its input, the context and itself."""

    class Faulty(SwiGLU):
        def forward(self, x_BTD, ctx=None):
            return compute(super().forward(x_BTD, ctx), x_BTD, ctx, self)

    return Faulty


def ahead_where(sees):
    """Return a network that sees the next token where `sees` says so of input, context, itself."""
    return faulty(lambda y, x, *others: y + x.roll(-1, 1) if sees(x, *others) else y)


class Idle(SwiGLU):
    """Have a parameter that nothing uses."""

    def __init__(self, dim: int, bias: bool, *, width: int | None = None):
        super().__init__(dim, bias, width=width)
        self.idle = nn.Parameter(torch.ones(3))


class Unseeded(SwiGLU):
    """Draw initial values from a generator that no seed reaches."""

    def __init__(self, dim: int, bias: bool, *, width: int | None = None):
        super().__init__(dim, bias, width=width)
        self.scale = nn.Parameter(torch.tensor(np.random.default_rng().normal(size=dim)).float())

    def forward(self, x_BTD, ctx=None):
        return super().forward(x_BTD, ctx) * self.scale


class Unsaved(SwiGLU):
    """Draw something that is not saved with the weights."""

    def __init__(self, dim: int, bias: bool, *, width: int | None = None):
        super().__init__(dim, bias, width=width)
        self.register_buffer("features", torch.randn(dim), persistent=False)

    def forward(self, x_BTD, ctx=None):
        return super().forward(x_BTD, ctx) * self.features


class Forgetful(MHA):
    """Leave the state alone."""

    def forward(self, x_BTD, ctx, state=None):
        del state
        return super().forward(x_BTD, ctx)


class FromZero(MHA):
    """Count positions from the start of a chunk."""

    def forward(self, x_BTD, ctx, state=None):
        from_zero = copy(ctx)
        from_zero.pos_T = ctx.pos_T - ctx.pos_T[0]
        return super().forward(x_BTD, from_zero, state)


def counting(flops):
    """Return a network that counts other FLOPs than it takes."""

    class Counted(SwiGLU):
        def flops(self):
            return flops(super().flops())

    return Counted


class Mean(nn.Module):
    """Mix tokens by their mean: about the least that has a recurrent state."""

    rotated = 0

    def __init__(self, dim: int):
        super().__init__()
        self.dim, self.out = dim, OutLinear(dim, dim)

    def new_state(self, batch, capacity, *, dtype, device):
        del capacity
        shapes = {"sum": (batch, self.dim), "count": (batch, 1)}
        at = {"dtype": dtype, "device": device}
        return RecurrentState({k: torch.zeros(shape, **at) for k, shape in shapes.items()})

    def flops(self, context):
        del context
        return 2 * self.out.weight.numel()

    def valid(self, x_BTD, ctx):
        """Return 1 for a token, and 0 for padding."""
        valid_BT1 = torch.ones_like(x_BTD[..., :1])
        return valid_BT1 if ctx.valid_BT is None else valid_BT1 * ctx.valid_BT[..., None]

    def forward(self, x_BTD, ctx, state=None):
        valid_BT1 = self.valid(x_BTD, ctx)
        sum_BTD, count_BT1 = (x_BTD * valid_BT1).cumsum(1), valid_BT1.cumsum(1)
        if state is not None:
            sum_BTD = sum_BTD + state["sum"][:, None]
            count_BT1 = count_BT1 + state["count"][:, None]
            state.advance(x_BTD.shape[1], sum=sum_BTD[:, -1], count=count_BT1[:, -1])
        return self.out(sum_BTD / count_BT1.clamp(min=1))


class Leaking(Mean):
    """Let padding into the recurrence."""

    def valid(self, x_BTD, ctx):
        del ctx
        return torch.ones_like(x_BTD[..., :1])


class Growing(Mean):
    """Keep all tokens, in a state that begins with none."""

    def forward(self, x_BTD, ctx, state=None):
        if state is not None:
            state._live["read"] = x_BTD
        return super().forward(x_BTD, ctx, state)


class Undeclared(MHA):
    """Remember what is not declared."""

    def remember(self, x_BTD, ctx):
        del ctx
        return {"more": x_BTD[:, None]}


class Misspelt(Mean):
    """Exempt from weight decay what is not there."""

    no_weight_decay = frozenset({"decay"})


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


class ById(PreNorm):
    """Add a number of each token's id, which the decoder leaves in ctx.shared."""

    def forward(self, x_BTD, ctx, state=None):
        return super().forward(x_BTD + ctx.shared["tokens"][..., None].sin(), ctx, state)


class Undropped(Block):
    """Drops what attention adds, and not what the feed-forward does."""

    final_norm = True

    def forward(self, x_BTD, ctx, state=None):
        x_BTD = x_BTD + ctx.drop(self.attn(self.attn_norm(x_BTD), ctx, state), "attn")
        return x_BTD + 2 * self.ffn(self.ffn_norm(x_BTD), ctx)


@pytest.fixture
def check(monkeypatch, spec):
    """Register a component as `theirs`, and hold it to the laws."""

    def held(slot, component, **changes):
        registry = REGISTRIES[slot]
        for kind in ("_components", "_schemas"):
            others = {k: v for k, v in getattr(registry, kind).items() if k != "theirs"}
            monkeypatch.setattr(registry, kind, others)
        registry.register("theirs")(component)
        forget()  # what was counted of another of that name
        return laws.check(spec(**LLAMA | {slot: "theirs"} | changes), slot)

    return held


@pytest.mark.parametrize(
    ("slot", "component", "said"),
    [
        ("feedforward", ahead_where(lambda *_: True), "lets a token see tokens that come after it"),
        ("feedforward", faulty(lambda y, *_: nn.functional.dropout(y)), "must not draw random"),
        ("feedforward", faulty(lambda y, *_: y / 0), "computes numbers that are not finite"),
        ("feedforward", Idle, "gives 'blocks.0.ffn.idle' no gradient"),
        ("feedforward", Unseeded, "starts from other weights each time"),
        ("feedforward", Unsaved, "draws something that is not saved"),
        ("feedforward", faulty(lambda y, *_: {}[y.dtype]), "fails where 'finite' is checked: Key"),
        ("feedforward", faulty(lambda y, x, *_: y + x.mean(0)), "mixes the sequences of a batch"),
        (
            "feedforward",
            counting(lambda right: 1.02 * right),
            "17,234 FLOPs per token in blocks.0.ffn, and torch's counter 16,896",
        ),
        ("attention", Forgetful, "has a state that counts 0 tokens where it has read 7"),
        (
            "attention",
            Undeclared,
            "'cached' declares ['keys', 'values'], and given are ['keys'",
        ),
        ("attention", Leaking, "lets padding change the sequence after it"),
        ("attention", Growing, "of length 1 in float32, and keeps 520"),
        ("attention", Misspelt, "exempts 'blocks.0.attn.decay' from weight decay"),
        ("attention", FromZero, "decodes with a state to other logits"),
    ],
)
def test_a_component_that_breaks_a_law_is_refused_by_name(check, slot, component, said):
    with pytest.raises(ConfigError) as caught:
        check(slot, component)
    assert caught.value.message.startswith(f"the {slot} 'theirs")
    assert said in caught.value.message
    assert caught.value.where == (slot,)


def test_flops_within_a_hundredth_are_let_in(check):
    check("feedforward", counting(lambda right: 1.009 * right))


#: Faults that show in some passes only: networks, and the end of what is said of them.
HIDDEN = {
    "training mode": (ahead_where(lambda _x, _ctx, self: self.training), "after it"),
    "gradients of the input": (ahead_where(lambda x, *_: x.requires_grad), "after it"),
    "gradients": (ahead_where(lambda *_: torch.is_grad_enabled()), "after it"),
    "losses": (ahead_where(lambda _x, ctx, _: ctx.losses is not None), "after it"),
    "no losses": (ahead_where(lambda _x, ctx, _: ctx.losses is None), "after it"),
    "dropout": (ahead_where(lambda _x, ctx, _: ctx.dropout is not None), "after it"),
    "length": (ahead_where(lambda x, *_: x.shape[1] > 24), "after it, in 4 sequences of 64"),
    "bfloat16": (ahead_where(lambda *_: torch.is_autocast_enabled("cpu")), "after it, in bfloat16"),
    "batch": (faulty(lambda y, x, *_: y + x.mean(0) * (len(x) > 2)), "batch, in 4 sequences of 64"),
    "losses of a batch": (
        faulty(lambda y, x, ctx, _: y + x.mean(0) * (ctx.losses is not None)),
        "mixes the sequences of a batch",
    ),
}


@pytest.mark.parametrize("where", HIDDEN)
def test_a_fault_that_shows_in_some_passes_only_is_found(check, where):
    component, said = HIDDEN[where]
    with pytest.raises(ConfigError, match=f"'theirs' .*{said}"):
        check("feedforward", component, dropout=0.1, context=64)


@pytest.mark.parametrize("flops", [math.nan, "a few"])
def test_flops_that_are_no_number_are_refused_in_a_line(check, spec, flops):
    with pytest.raises(ConfigError):
        check("feedforward", counting(lambda _right: flops))
    with pytest.raises(ConfigError, match=r"^flops\(\) of Counted returns .* whole number$"):
        count(spec(**LLAMA | {"feedforward": "theirs"}))


@pytest.mark.parametrize(("slot", "name"), COMPONENTS[::5])
def test_the_components_of_this_package_pass(spec, slot, name):
    laws.check(spec(**LLAMA | {slot: name}), slot)


def test_a_mixer_that_knows_of_no_documents_is_refused_where_they_are_kept_apart(check):
    """And nowhere else: below it is let in."""
    with pytest.raises(ConfigError, match="'theirs' lets a document see the one before it, and"):
        check("attention", Mean, separator=3)


@pytest.mark.parametrize("rule", ["depth-scaled", "mup"])
def test_a_recurrence_that_obeys_every_law_is_let_in_whatever_the_rule_of_initial_weights(
    check, rule
):
    check("attention", Mean, init=rule)


def test_flops_are_compared_also_where_the_kernel_skips_scores_of_later_keys():
    laws.check(make_spec(**LLAMA, context=512), "attention")


def test_a_feed_forward_network_may_keep_state_which_is_counted(check, spec):
    check("feedforward", TokenShift)
    plain, other = count(spec()), count(spec(feedforward="theirs"))
    assert other.state_bytes - plain.state_bytes == 2 * SMALL["layers"] * SMALL["dim"]


def test_a_block_may_read_the_ids_of_the_tokens(check):
    check("block", ById)


def test_a_block_that_forgets_dropout_is_refused_where_there_is_some(check):
    check("block", Undropped)
    check("block", REGISTRIES["block"].get("pre"), dropout=0.1)
    with pytest.raises(ConfigError, match=r"'theirs' does not drop all .* ctx\.drop"):
        check("block", Undropped, dropout=0.1)
