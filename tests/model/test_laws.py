"""The laws that a component from outside is held to before a grid starts, each with its culprit."""

import math
from copy import copy

import numpy as np
import pytest
import torch
from torch import nn

from llama_ablate.errors import ConfigError
from llama_ablate.model import laws
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.counts import count
from llama_ablate.model.feedforward import SwiGLU
from llama_ablate.model.linear import OutLinear
from llama_ablate.model.mixers.attention import MHA
from llama_ablate.model.state import RecurrentState
from tests.conftest import LLAMA
from tests.laws import COMPONENTS


class NextToken(SwiGLU):
    """See the token that comes next."""

    def forward(self, x_BTD, ctx=None):
        return super().forward(x_BTD, ctx) + x_BTD.roll(-1, 1)


class Dropped(SwiGLU):
    """Draw random numbers in the forward pass."""

    def forward(self, x_BTD, ctx=None):
        return nn.functional.dropout(super().forward(x_BTD, ctx))


class Endless(SwiGLU):
    """Divide by zero."""

    def forward(self, x_BTD, ctx=None):
        return super().forward(x_BTD, ctx) / 0


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


class Crashing(SwiGLU):
    """Fail on purpose."""

    def forward(self, x_BTD, ctx=None):
        del ctx
        return {}[x_BTD.dtype]


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


#: What tells a component that it is trained.
SIGNS = {
    "module": lambda self, _x, _ctx: self.training,
    "gradients of the input": lambda _self, x_BTD, _ctx: x_BTD.requires_grad,
    "gradients": lambda *_: torch.is_grad_enabled(),
    "losses": lambda _self, _x, ctx: ctx.losses is not None,
    "dropout": lambda _self, _x, ctx: ctx.dropout is not None,
}


def next_token(sign, trained):
    """Return a network that sees the token that comes next in training, or outside of it."""

    class Later(SwiGLU):
        def forward(self, x_BTD, ctx):
            sees = sign(self, x_BTD, ctx) == trained
            return super().forward(x_BTD.roll(-1, 1) if sees else x_BTD, ctx)

    return Later


def counting(flops):
    """Return a network that counts other FLOPs than it takes."""

    class Counted(SwiGLU):
        def flops(self):
            return flops(super().flops())

        def forward(self, x_BTD, ctx=None):
            return 1.5 * super().forward(x_BTD, ctx)  # so that it is no twin

    return Counted


class AcrossTheBatch(SwiGLU):
    """Add what the other sequences hold at the same place."""

    def forward(self, x_BTD, ctx=None):
        return super().forward(x_BTD + x_BTD.mean(0, keepdim=True), ctx)


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


@pytest.fixture
def check(monkeypatch, spec):
    """Register a component as `theirs`, and hold it to the laws."""

    def held(slot, component, **changes):
        registry = REGISTRIES[slot]
        for kind in ("_components", "_schemas"):
            others = {k: v for k, v in getattr(registry, kind).items() if k != "theirs"}
            monkeypatch.setattr(registry, kind, others)
        registry.register("theirs")(component)
        return laws.check(spec(**LLAMA | {slot: "theirs"} | changes), slot)

    return held


@pytest.mark.parametrize(
    ("slot", "component", "said"),
    [
        ("feedforward", NextToken, "lets a token see tokens that come after it"),
        ("feedforward", Dropped, "a forward pass must not draw random numbers"),
        ("feedforward", Endless, "computes numbers that are not finite"),
        ("feedforward", Idle, "gives 'blocks.0.ffn.idle' no gradient"),
        ("feedforward", Unseeded, "starts from other weights each time"),
        ("feedforward", Unsaved, "draws something that is not saved"),
        ("feedforward", Crashing, "fails where 'finite' is checked: KeyError: torch.float32"),
        ("feedforward", AcrossTheBatch, "mixes the sequences of a batch"),
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


@pytest.mark.parametrize(("sign", "trained"), [*((s, True) for s in SIGNS), ("losses", False)])
def test_a_future_that_is_seen_in_training_alone_or_outside_of_it_alone_is_refused(
    check, sign, trained
):
    """Whatever a component tells training by."""
    with pytest.raises(ConfigError, match="'theirs' lets a token see tokens that come after it"):
        check("feedforward", next_token(SIGNS[sign], trained), dropout=0.1)


def test_a_batch_that_is_mixed_in_training_alone_is_refused(check):
    class Centred(SwiGLU):
        """Subtract the mean over the batch."""

        def forward(self, x_BTD, ctx):
            mixes = ctx.losses is not None
            return super().forward(x_BTD - x_BTD.mean(0) if mixes else x_BTD, ctx)

    with pytest.raises(ConfigError, match="'theirs' mixes the sequences of a batch"):
        check("feedforward", Centred, dropout=0.1)


@pytest.mark.parametrize("flops", [math.nan, "a few"])
def test_flops_that_are_no_number_are_refused_in_a_line(check, spec, flops):
    with pytest.raises(ConfigError):
        check("feedforward", counting(lambda _right: flops))
    with pytest.raises(ConfigError, match=r"^flops\(\) of Counted returns .* whole number$"):
        count(spec(**LLAMA | {"feedforward": "theirs"}))


class Ahead(REGISTRIES["feedforward"].get("relu")):
    """See the next token, in long texts, large batches or bfloat16 alone."""

    def sees(self, x_BTD):
        return x_BTD.shape[1] > 24

    def forward(self, x_BTD, ctx):
        y_BTD = super().forward(x_BTD, ctx)
        if self.sees(x_BTD):
            y_BTD = y_BTD + x_BTD.roll(-1, 1)
        return y_BTD


class AheadInBfloat16(Ahead):
    def sees(self, _x_BTD):
        return torch.is_autocast_enabled("cpu")


class Mixing(Ahead):
    def forward(self, x_BTD, ctx):
        y_BTD = REGISTRIES["feedforward"].get("relu").forward(self, x_BTD, ctx)
        return y_BTD + x_BTD.mean(0) if len(x_BTD) > 2 else y_BTD


@pytest.mark.parametrize(
    ("component", "words"),
    [
        (Ahead, r"tokens that come after it, in 4 sequences of 64"),
        (AheadInBfloat16, r"tokens that come after it, in bfloat16"),
        (Mixing, r"mixes the sequences of a batch, in 4 sequences of 64"),
    ],
)
def test_a_fault_that_needs_a_long_text_a_batch_or_bfloat16_is_found(check, component, words):
    with pytest.raises(ConfigError, match=words):
        check("feedforward", component, context=64)


#: Those that are least like the others; `test_contracts.py` holds all of them to most laws.
UNLIKE = ("gated_delta", "mla", "differential", "moe", "t5", "dyt", "parallel")
EACH = [
    pytest.param(slot, name, marks=[] if name in UNLIKE else [pytest.mark.full])
    for slot, name in COMPONENTS
]


@pytest.mark.parametrize(("slot", "name"), EACH)
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
