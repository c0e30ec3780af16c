"""The faults of the source documents' own code, each put into a copy of ours and caught by a law.

A law that catches nothing is decoration; so each of these first holds for the sound model.
"""

import math

import pytest
import torch
from torch import nn

from llama_ablate.errors import ConfigError
from llama_ablate.model.counts import count
from llama_ablate.model.kernels import attend
from llama_ablate.model.norms import LayerNorm
from llama_ablate.model.state import DecoderState

from . import laws
from .conftest import LLAMA
from .laws import model_of


def swapped(part, make):
    """Return a Llama in which `make` has replaced a part of every layer."""
    model = model_of(LLAMA | {"norm": "layernorm"})
    for block in model.blocks:
        setattr(block, part, make(getattr(block, part)))
    return model


class Wrapped(nn.Module):
    """Stands in for a part, with its parameters and its answers to what the decoder asks."""

    def __init__(self, real):
        super().__init__()
        self.real = real

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("real"), name)

    def forward(self, *arguments):
        return self.real(*arguments)


class CacheInTheModule(Wrapped):
    """Llama 2 by hand: keys and values go into a buffer on every forward pass."""

    def __init__(self, real):
        super().__init__(real)
        self.register_buffer("cache_k", torch.zeros(2, 4, 24, 8))

    def forward(self, x_BTD, ctx, *_):
        q, k, v = self.real._project(x_BTD)
        q, k = ctx.rotate(q, k, ctx.pos_T)
        new = k.shape[2]
        self.cache_k[:, :, :new] = k
        return self.real.out(attend(q, self.cache_k[:, :, :new], v, ctx))


class KForV(Wrapped):
    """Llama 3 from scratch: the value heads are taken from the keys."""

    def forward(self, x_BTD, ctx, cache=None):
        q, k, _ = self.real._project(x_BTD)
        v = k
        q, k = ctx.rotate(q, k, ctx.pos_T)
        k, v = cache.update(k, v) if cache else (k, v)
        return self.real.out(attend(q, k, v, ctx))


class AlongTheSequence(LayerNorm):
    """The blog's formula: a feature is normalised over the positions, not a token over features."""

    def forward(self, x_BTD):
        mean, var = x_BTD.mean(1, keepdim=True), x_BTD.var(1, keepdim=True, unbiased=False)
        return (x_BTD - mean) / (var + self.eps).sqrt() * self.gain + self.bias


class UnbiasedDeviation(LayerNorm):
    """The primer's LayerNorm: divides by n - 1, with eps outside the root."""

    def forward(self, x_BTD):
        std = x_BTD.std(-1, keepdim=True)
        return (x_BTD - x_BTD.mean(-1, keepdim=True)) / (std + self.eps) * self.gain + self.bias


def test_sound_models_obey_every_law_used_here():
    for part in ("attn", "attn_norm", "ffn"):
        laws.training_touches_no_cache(swapped(part, Wrapped))
        laws.every_parameter_learns_and_the_loss_falls(swapped(part, Wrapped))
        laws.no_token_sees_the_future_and_each_sees_its_past(swapped(part, Wrapped))
        laws.cached_equals_full(swapped(part, Wrapped))


def test_a_cache_written_during_training_is_caught_by_training_touches_no_cache():
    """Its second backward pass goes through the graph of the first, which is gone."""
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        laws.training_touches_no_cache(swapped("attn", CacheInTheModule))


def test_k_used_for_v_is_caught_by_every_parameter_learns():
    with pytest.raises(AssertionError, match=r"attn.*\.v\.weight (has no gradient|never learns)"):
        laws.every_parameter_learns_and_the_loss_falls(swapped("attn", KForV))


def test_k_used_for_v_passes_the_usual_laws_and_is_why_they_are_not_enough():
    laws.cached_equals_full(swapped("attn", KForV))
    laws.no_token_sees_the_future_and_each_sees_its_past(swapped("attn", KForV))


def test_layer_0s_feed_forward_in_every_layer_is_caught_by_every_parameter_learns():
    model = model_of(LLAMA)
    first = model.blocks[0].ffn
    for block in model.blocks[1:]:
        block.ffn.register_forward_hook(lambda _m, inputs, _out: first(*inputs))
    with pytest.raises(AssertionError, match=r"blocks\.1\.ffn.*has no gradient|never learns"):
        laws.every_parameter_learns_and_the_loss_falls(model)


def test_normalising_along_the_sequence_is_caught_by_causality():
    def fault(real):
        made = AlongTheSequence(32, bias=True)
        made.load_state_dict(real.state_dict())
        return made

    with pytest.raises(AssertionError):
        laws.no_token_sees_the_future_and_each_sees_its_past(swapped("attn_norm", fault))
    with pytest.raises(AssertionError):
        laws.cached_equals_full(swapped("attn_norm", fault))


def test_an_unbiased_deviation_is_caught_by_the_formula_of_layernorm():
    """Off by 1 - sqrt((n - 1)/n): 0.78% at 64, which no law but the formula itself sees."""
    x = torch.randn(3, 5, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sound, faulty = LayerNorm(64, bias=True).double(), UnbiasedDeviation(64, bias=True).double()
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    formula = (x - mean) / (var + 1e-5).sqrt()
    torch.testing.assert_close(sound(x), formula, rtol=1e-12, atol=1e-12)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(faulty(x), formula, rtol=1e-3, atol=1e-3)
    share = (1 - faulty(x) / formula).abs().median().item()
    assert share == pytest.approx(1 - math.sqrt(63 / 64), rel=0.05)


def test_a_missing_factor_of_two_in_the_cache_is_caught_by_the_closed_form(monkeypatch):
    model = model_of(LLAMA)
    laws.cache_bytes_equal_the_closed_form(model, "mha", torch.float32)
    whole = DecoderState.nbytes.fget
    monkeypatch.setattr(DecoderState, "nbytes", property(lambda state: whole(state) // 2))
    with pytest.raises(AssertionError):
        laws.cache_bytes_equal_the_closed_form(model, "mha", torch.float32)
    monkeypatch.undo()
    attention = type(model.blocks[0].attn)
    monkeypatch.setattr(attention, "cached", property(lambda self: [(self.kv_heads, 8)]))
    count.cache_clear()
    try:
        with pytest.raises(AssertionError):
            laws.cache_bytes_equal_the_closed_form(model_of(LLAMA), "mha", torch.bfloat16)
    finally:
        count.cache_clear()


def test_the_first_cache_of_the_primer_fails_at_its_second_step_and_ours_does_not():
    """Keys kept as (B, S, H, E) and joined to (B, 1, D): a shape error, repaired by one layout."""
    kept, new = torch.zeros(1, 2, 8, 64), torch.zeros(1, 1, 512)
    with pytest.raises(RuntimeError, match="same number of dimensions: got 4 and 3"):
        torch.cat([kept, new], dim=1)
    model = model_of(LLAMA)
    cache = model.new_state(1, 4)
    for step in range(4):
        assert model(torch.tensor([[step]]), cache).shape == (1, 1, 61)
    with pytest.raises(ValueError, match="5 tokens do not fit a state of 4"):
        model(torch.tensor([[4]]), cache)


def test_an_attention_that_cannot_share_its_heads_is_refused_before_any_training():
    with pytest.raises(ConfigError, match="4 query heads do not divide into 3 kv_heads"):
        model_of(LLAMA | {"attention": {"name": "gqa", "kv_heads": 3}})
