"""The laws that a component from outside is held to before a grid starts, each with its culprit."""

import math
from copy import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from llama_ablate.errors import ConfigError
from llama_ablate.model import laws
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import build, init_weights
from llama_ablate.model.feedforward import SwiGLU
from llama_ablate.model.initialisation import INITS
from llama_ablate.model.linear import Linear, OutLinear
from llama_ablate.model.mixers.attention import MHA
from llama_ablate.model.norms import RMSNorm
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


class AtFullSize(SwiGLU):
    """Write to the residual stream by a projection that knows nothing of the depth."""

    def __init__(self, dim: int, bias: bool, *, width: int | None = None):
        super().__init__(dim, bias, width=width)
        self.down = nn.Linear(self.width, dim, bias=bias)


class Unmarked(MHA):
    """Write to the residual stream by a projection that is not said to."""

    def __init__(self, dim: int, heads: int, head_dim: int, bias: bool, norm, **options):
        super().__init__(dim, heads, head_dim, bias, norm, **options)
        self.out = Linear(heads * head_dim, dim, bias=bias)


class FromZeroOn(SwiGLU):
    """Start as nothing, whatever the depth."""

    def __init__(self, dim: int, bias: bool, *, width: int | None = None):
        super().__init__(dim, bias, width=width)
        self.scale = nn.Parameter(torch.zeros(dim))

    def forward(self, x_BTD, ctx=None):
        return super().forward(x_BTD, ctx) * self.scale


class Another(SwiGLU):
    """Be what is there already."""


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


class TorchAttention(MHA):
    """Attend by torch's own function."""

    def forward(self, x_BTD, ctx, state=None):
        q_BHTE, k_BHTE, v_BHTE = self._project(x_BTD, ctx)
        q_BHTE, k_BHTE = ctx.rotate(q_BHTE, k_BHTE, ctx.pos_T)
        cached = {"keys": k_BHTE, "values": v_BHTE}
        k_BHSE, v_BHSE = (state.update(**cached) if state else cached).values()
        mask, causal = ctx.mask(self.window, k_BHSE.shape[2])
        mixed_BHTE = nn.functional.scaled_dot_product_attention(
            q_BHTE, k_BHSE, v_BHSE, None if causal else mask, is_causal=causal
        )
        return 1.5 * self.out(mixed_BHTE.transpose(1, 2).flatten(2))  # so that it is no twin


class WithoutScores(TorchAttention):
    """Count what is projected alone."""

    def flops(self, context):
        return super().flops(0 * context)


class Doubled(RMSNorm):
    """Multiply by a matrix."""

    def __init__(self, dim: int):
        super().__init__(dim)
        self.turn = nn.Parameter(2 * torch.eye(dim))

    def forward(self, x_BTD):
        return super().forward(x_BTD) @ self.turn


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

    def state_bytes(self, context, dtype):
        del context
        return (self.dim + 1) * dtype.itemsize

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


class Apart(Mean):
    """Count from the beginning of each document: one token at a time, as if it were decoded."""

    def forward(self, x_BTD, ctx, state=None):
        valid_BT1 = self.valid(x_BTD, ctx)
        sum_BD = torch.zeros_like(x_BTD[:, 0]) if state is None else state["sum"].clone()
        count_B1 = torch.zeros_like(valid_BT1[:, 0]) if state is None else state["count"].clone()
        means = []
        for t in range(x_BTD.shape[1]):
            if ctx.begins_BT is not None:
                begins_B1 = ctx.begins_BT[:, t, None]
                sum_BD, count_B1 = (x.masked_fill(begins_B1, 0) for x in (sum_BD, count_B1))
            sum_BD = sum_BD + x_BTD[:, t] * valid_BT1[:, t]
            count_B1 = count_B1 + valid_BT1[:, t]
            means.append(sum_BD / count_B1.clamp(min=1))
        if state is not None:
            state.advance(x_BTD.shape[1], sum=sum_BD, count=count_B1)
        return self.out(torch.stack(means, 1))


class Leaking(Mean):
    """Let padding into the recurrence."""

    def valid(self, x_BTD, ctx):
        del ctx
        return torch.ones_like(x_BTD[..., :1])


class Uncounted(RecurrentState):
    """Take in what is new, and count no tokens."""

    def advance(self, tokens, **tensors):
        super().advance(0 * tokens, **tensors)


class Growing(RecurrentState):
    """Keep more with each token."""

    def advance(self, tokens, **tensors):
        super().advance(tokens, **tensors)
        self._live[f"before {self.length}"] = tensors["sum"].clone()


def with_state(kind):
    """Return the mean with another kind of state."""

    class Other(Mean):
        def new_state(self, batch, capacity, **options):
            state = super().new_state(batch, capacity, **options)
            state.__class__ = kind
            return state

    return Other


class Undeclared(MHA):
    """Remember what is not declared."""

    def remember(self, x_BTD, ctx):
        del ctx
        return {"more": x_BTD[:, None]}


class Unremembered(MHA):
    """Declare what is not remembered."""

    @property
    def cached(self):
        return {**super().cached, "more": (1, 4)}


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
        ("feedforward", counting(lambda _: 7), "counts 7 FLOPs per token in blocks.0.ffn, and tor"),
        (
            "feedforward",
            counting(lambda right: 1.02 * right),
            "17,234 FLOPs per token in blocks.0.ffn, and torch's counter 16,896",
        ),
        ("attention", WithoutScores, "counts 8,192 FLOPs per token in blocks.0.attn, and torch's"),
        ("norm", Doubled, "FLOPs per token in blocks.0, and torch's counter"),
        ("attention", Forgetful, "has a state that counts 0 tokens where it has read 7"),
        ("attention", with_state(Uncounted), "counts 0 tokens where it has read 7"),
        (
            "attention",
            Undeclared,
            "'cached' declares ['keys', 'values'], and given are ['keys'",
        ),
        ("attention", Unremembered, "'cached' declares ['keys', 'values', 'more'], and given are"),
        ("attention", Leaking, "lets padding change the sequence after it"),
        (
            "attention",
            with_state(Growing),
            "counts 264 bytes for a sequence of length 1 in float32, and keeps 520",
        ),
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


@pytest.mark.parametrize(
    ("slot", "component", "note"),
    [
        ("feedforward", AtFullSize, "starts as large in a deep model as in a shallow one ('ffn')"),
        ("attention", Unmarked, "starts as large in a deep model as in a shallow one ('attn')"),
        ("feedforward", Another, "computes what 'swiglu' does: a difference between them would"),
    ],
)
def test_what_makes_no_comparison_wrong_is_a_note(check, slot, component, note):
    (said,) = check(slot, component)
    assert said.startswith(f"The {slot} 'theirs' {note}")
    assert check("feedforward", counting(lambda right: right)) == []


def test_a_law_without_its_docstring_is_told_by_its_name(check, monkeypatch):
    """As `python -OO` runs it."""
    monkeypatch.setattr(laws.causal, "__doc__", None)
    with pytest.raises(ConfigError, match="after it; the law 'causal' \\(and breaks "):
        check("feedforward", NextToken)


@pytest.mark.parametrize("trained", [True, False], ids=["training", "reading"])
@pytest.mark.parametrize("sign", SIGNS)
def test_a_future_that_is_seen_in_training_alone_or_outside_of_it_alone_is_refused(
    check, sign, trained
):
    """Whatever a component tells training by."""
    with pytest.raises(ConfigError, match="'theirs' lets a token see tokens that come after it"):
        check("feedforward", next_token(SIGNS[sign], trained), dropout=0.1)


@pytest.mark.parametrize("trained", [True, False], ids=["training", "reading"])
def test_a_batch_that_is_mixed_in_training_alone_or_outside_of_it_alone_is_refused(check, trained):
    class Centred(SwiGLU):
        """Subtract the mean over the batch."""

        def forward(self, x_BTD, ctx):
            mixes = (ctx.losses is not None) == trained
            return super().forward(x_BTD - x_BTD.mean(0) if mixes else x_BTD, ctx)

    with pytest.raises(ConfigError, match="'theirs' mixes the sequences of a batch"):
        check("feedforward", Centred, dropout=0.1)


def test_flops_within_a_hundredth_pass_and_so_do_those_of_torchs_own_attention(check):
    check("feedforward", counting(lambda right: 1.009 * right))
    check("attention", TorchAttention)


@pytest.mark.parametrize("flops", [math.nan, math.inf, "a few", None])
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


class AheadInChunks(Ahead):
    def forward(self, x_BTD, ctx):
        y_BTD = REGISTRIES["feedforward"].get("relu").forward(self, x_BTD, ctx)
        full = x_BTD.shape[1] // 32 * 32
        means = x_BTD[:, :full].unflatten(1, (-1, 32)).mean(2).repeat_interleave(32, 1)
        return y_BTD + F.pad(means, (0, 0, 0, x_BTD.shape[1] - full)) if full else y_BTD


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
        (AheadInChunks, r"tokens that come after it, in 4 sequences of 64"),
        (AheadInBfloat16, r"tokens that come after it, in bfloat16"),
        (Mixing, r"mixes the sequences of a batch, in 4 sequences of 64"),
    ],
)
def test_a_fault_that_needs_a_long_text_a_batch_or_bfloat16_is_found(check, component, words):
    with pytest.raises(ConfigError, match=words):
        check("feedforward", component, context=64)


def test_what_multiplies_no_matrices_counts_no_flops(check):
    class Scaled(nn.Module):
        """Scale each channel."""

        def __init__(self, dim: int, *, width: int | None = None):
            super().__init__()
            self.width, self.scale = width or dim, nn.Parameter(torch.zeros(dim))

        def flops(self):
            return 0

        def forward(self, x_BTD, ctx):
            del ctx
            return x_BTD * self.scale

    check("feedforward", Scaled)
    Scaled.flops = lambda _: 64
    with pytest.raises(ConfigError, match=r"counts 64 FLOPs per token .* and torch's counter 0"):
        check("feedforward", Scaled)


@pytest.mark.parametrize(("slot", "name"), COMPONENTS)
def test_the_components_of_this_package_pass(spec, slot, name):
    laws.check(spec(**LLAMA | {slot: name}), slot)


def test_an_output_that_starts_at_zero_needs_no_scale(check):
    check("feedforward", FromZeroOn)


def test_a_recurrence_that_obeys_every_law_is_let_in(check):
    check("attention", Mean)


def test_a_mixer_that_knows_of_no_documents_is_refused_where_they_are_kept_apart(check):
    """And nowhere else: it is let in above."""
    check("attention", Apart, separator=3)
    with pytest.raises(ConfigError) as caught:
        check("attention", Mean, separator=3)
    assert caught.value.message == (
        "the attention 'theirs' lets a document see the one before it, and 'documents: mask' keeps "
        "them apart: what it keeps of earlier tokens is to end where ctx.begins_BT says so; the "
        "law 'documents_apart': documents in one sequence have the logits that each has alone; "
        "`llama-ablate init plugin kda` writes one that obeys"
    )


@pytest.mark.parametrize("rule", list(INITS))
def test_a_component_is_checked_under_the_default_rule_of_initial_weights(check, rule):
    """Under the others what a layer adds does not start smaller with depth, as is their right."""
    check("attention", Mean, init=rule)


def test_bytes_that_are_counted_wrong_are_caught(spec, monkeypatch):
    model = laws._model(spec(vocab=61))
    tokens = torch.zeros(2, 24, dtype=torch.long)
    assert laws.counted_bytes(model, tokens) is None
    monkeypatch.setattr(type(model.blocks[0].attn), "state_bytes", lambda *_: 1)
    assert "counts" in laws.counted_bytes(model, tokens)


class Plain(nn.Module):
    """Use a layer of torch's own, and a decay of two axes that starts at 4."""

    def __init__(self, dim: int, *, width: int | None = None):
        super().__init__()
        self.width = width or dim
        self.up, self.down = nn.Linear(dim, self.width), OutLinear(self.width, dim)
        self.decay = nn.Parameter(torch.full((2, dim // 2), 4.0))

    def flops(self):
        return 4 * self.up.weight.numel()

    def forward(self, x_BTD, ctx=None):
        del ctx
        return self.down(torch.sigmoid(self.up(x_BTD))) * self.decay.flatten()


def test_what_a_constructor_sets_stays_and_what_it_draws_comes_from_seed_and_name(check, spec):
    check("feedforward", Plain)
    theirs = spec(feedforward="theirs")
    torch.manual_seed(1)
    first = init_weights(build(theirs), 0)
    torch.manual_seed(2)
    again, other = init_weights(build(theirs), 0), init_weights(build(theirs), 1)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    ffn = first.blocks[0].ffn
    assert torch.equal(ffn.decay, torch.full((2, 16), 4.0))
    assert ffn.up.bias.abs().max() > 0
    for name in ("up.bias", "up.weight"):
        assert not torch.equal(ffn.get_parameter(name), first.blocks[1].ffn.get_parameter(name)), (
            "each layer draws for itself"
        )
        assert not torch.equal(ffn.get_parameter(name), other.blocks[0].ffn.get_parameter(name))
    # torch's own rule for a linear layer: uniform within 1 / sqrt(inputs).
    assert ffn.up.weight.std().item() == pytest.approx((3 * 32) ** -0.5, rel=0.1)
    # What variants have in common is drawn alike, whatever else a constructor draws.
    llama = init_weights(build(spec()), 0)
    assert torch.equal(first.blocks[1].attn.q.weight, llama.blocks[1].attn.q.weight)


def test_an_rmsnorm_that_starts_elsewhere_is_no_twin(check):
    class Louder(RMSNorm):
        """Start at a gain of two."""

        def __init__(self, dim: int):
            super().__init__(dim)
            with torch.no_grad():
                self.gain.mul_(2)

    check("norm", Louder)
