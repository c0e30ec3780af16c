"""Faults put into our code, each caught by a law: those of the source documents' code, and others.

A law that catches nothing is decoration; so each of these first holds for the sound model.
"""

import pytest
import torch
from torch import nn

from llama_ablate.data import tokens as store
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.model import counts, decoder
from llama_ablate.model.context import Context
from llama_ablate.model.dropout import Dropout
from llama_ablate.model.initialisation import fill
from llama_ablate.model.kernels import attend
from llama_ablate.model.linear import parameters
from llama_ablate.model.mixture import MixtureOfExperts
from llama_ablate.model.norms import LayerNorm
from llama_ablate.model.state import RecurrentState
from llama_ablate.training import evaluation, loop, optimizer_laws, optimizers

from . import laws
from .conftest import LLAMA, make_spec
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
        q, k, v = self.real._project(x_BTD, ctx)
        q, k = ctx.rotate(q, k, ctx.pos_T)
        new = k.shape[2]
        self.cache_k[:, :, :new] = k
        return self.real.out(attend(q, self.cache_k[:, :, :new], v, ctx))


class KForV(Wrapped):
    """Llama 3 from scratch: the value heads are taken from the keys."""

    def forward(self, x_BTD, ctx, cache=None):
        q, k, _ = self.real._project(x_BTD, ctx)
        v = k
        q, k = ctx.rotate(q, k, ctx.pos_T)
        cached = {"keys": k, "values": v}
        k, v = (cache.update(**cached) if cache else cached).values()
        return self.real.out(attend(q, k, v, ctx))


class AlongTheSequence(LayerNorm):
    """The blog's formula: a feature is normalised over the positions, not a token over features."""

    def forward(self, x_BTD):
        mean, var = x_BTD.mean(1, keepdim=True), x_BTD.var(1, keepdim=True, unbiased=False)
        return (x_BTD - mean) / (var + self.eps).sqrt() * self.gain + self.bias


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


def test_k_used_for_v_passes_the_usual_laws_and_is_caught_by_every_parameter_learns():
    laws.cached_equals_full(swapped("attn", KForV))
    laws.no_token_sees_the_future_and_each_sees_its_past(swapped("attn", KForV))
    with pytest.raises(AssertionError, match=r"attn.*\.v\.weight (has no gradient|never learns)"):
        laws.every_parameter_learns_and_the_loss_falls(swapped("attn", KForV))


def test_normalising_along_the_sequence_is_caught_by_causality():
    def fault(real):
        made = AlongTheSequence(32, bias=True)
        made.load_state_dict(real.state_dict())
        return made

    with pytest.raises(AssertionError):
        laws.no_token_sees_the_future_and_each_sees_its_past(swapped("attn_norm", fault))
    with pytest.raises(AssertionError):
        laws.cached_equals_full(swapped("attn_norm", fault))


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


GATED_DELTA = LLAMA | {"attention": "gated_delta"}
MOE = LLAMA | {"feedforward": "moe"}
WINDOWS = LLAMA | {"attention": {"pattern": [{"name": "mha", "window": w} for w in (3, 5)]}}
#: A model that keeps documents apart, and positions by which one could tell.
APART = {"separator": 7}


def narrower_after_the_first_chunk(self, window, held, _real=Context._mask):
    """Let a later chunk see one token less far back."""
    return _real(self, window - bool(held), held)


def all_that_is_no_norm(model, _real=parameters):
    """Let weight decay take all but norms."""
    for name, parameter, kind, _ in _real(model):
        yield name, parameter, kind, "norm" not in name


def every_matrix(model, *rest, _real=fill):
    """Draw whatever has two axes, as every parameter of such a shape once was."""
    _real(model, *rest)
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.02)


def detached(self, x_MD, _real=MixtureOfExperts.scores):
    """Weigh experts by scores that no gradient goes through."""
    return _real(self, x_MD).detach()


def of_the_step(self, place, shape, like, _real=Dropout.mask):
    """Drop by one mask for all places of a kind."""
    return _real(self, place.rpartition(".")[2], shape, like)


def padding_counts(self, *arguments, _real=Context.__init__, **options):
    """Say nothing of padding to those that ask for it."""
    _real(self, *arguments, **options)
    self.valid_BT = None


def all_is_seen(self, *arguments, _real=Context.__init__, **options):
    """Mask as if a text were one document."""
    _real(self, *arguments, **options)
    self._seen_BT = None


def any_window(self, window, visible, _real=Context.mask):
    """Keep one mask for all windows."""
    first = self._masks.setdefault("window", window)
    return _real(self, first, visible)


def first_part_alone(self, state_dict):
    """Restore the state of the first of several optimizers."""
    self._optimizers[0].load_state_dict(state_dict["parts"][0])
    self.param_groups = [g for optimizer in self._optimizers for g in optimizer.param_groups]


def with_all_parts(model, cut, compute):
    """Count in a held-out loss what components add to the loss of training."""
    nats, parts = evaluation.losses(model, cut, compute), {}
    with torch.no_grad():
        model.hidden(torch.from_numpy(cut[0][:, :-1]), losses=parts)
    return nats + sum(parts.values()).item()


def growing(self, tokens, **tensors):
    """Keep more tokens with each step."""
    self._live |= {"read": torch.zeros(self.length + tokens), **tensors}
    self.length += tokens


#: What is wrong, whose attribute stands for what, the law, the model it is held to, what it says.
FAULTS = {
    "the boundary of a chunk is off by one in a mask": (
        (Context, "_mask", narrower_after_the_first_chunk),
        (laws.cached_equals_full, WINDOWS, "decodes with a state to other logits"),
    ),
    "a gate's bias decays": (
        (optimizers, "parameters", all_that_is_no_norm),
        (laws.only_what_is_declared_decays, GATED_DELTA, r"attn\.A_log decays"),
    ),
    "initial values are overwritten": (
        (decoder, "fill", every_matrix),
        (laws.initial_values_are_those_declared, GATED_DELTA, r"overwrites .*attn\.conv\.weight"),
    ),
    "the router's gradient is cut": (
        (MixtureOfExperts, "scores", detached),
        (laws.every_parameter_learns_and_the_loss_falls, MOE, r"ffn\.router\.weight has no grad"),
    ),
    "layers share a dropout mask by its seed": (
        (Dropout, "mask", of_the_step),
        (
            laws.no_two_places_share_a_dropout_mask,
            LLAMA,
            r"blocks\.0\.weights has the mask of blocks\.1",
        ),
    ),
    "padding leaks into a recurrence": (
        (Context, "__init__", padding_counts),
        (laws.padding_changes_nothing, GATED_DELTA, "lets padding change the sequence"),
    ),
    "a layer has the mask of another's window": (
        (Context, "mask", any_window),
        (laws.each_layer_computes_what_it_does_alone, WINDOWS, "layer 1 is not what the pattern"),
    ),
    "attention sees the document before": (
        (Context, "__init__", all_is_seen),
        (laws.documents_apart, LLAMA | APART, "lets a document see the one before it"),
    ),
    "a state grows as it is read": (
        (RecurrentState, "advance", growing),
        (laws.counted_bytes, GATED_DELTA, "bytes for a sequence of length 1 in float32, and keeps"),
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_seeded_fault_is_caught_by_a_law_that_sound_code_obeys(what, monkeypatch):
    (owner, name, fault), (law, combination, words) = FAULTS[what]

    def hold():
        counts.forget()
        if law is laws.initial_values_are_those_declared:
            law(make_spec(**combination))
        else:
            law(model_of(combination, init_std=0.3))

    hold()
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(AssertionError, match=words):
        hold()
    monkeypatch.undo()
    counts.forget()


def test_an_optimizers_state_that_is_not_restored_is_caught_by_going_on_from_it(monkeypatch):
    muon = optimizers.OPTIMIZERS.resolve("muon")
    assert optimizer_laws.goes_on_from_its_state(muon) is None
    monkeypatch.setattr(optimizers.LazyOptimizer, "load_state_dict", first_part_alone)
    assert "to other numbers" in optimizer_laws.goes_on_from_its_state(muon)


def test_a_part_of_the_loss_in_the_held_out_loss_is_caught(monkeypatch, text):
    spec, losses = make_spec(**MOE, vocab=256), [{"name": "z_loss", "weight": 0.1}]
    laws.held_out_loss_is_cross_entropy_alone(spec, text, losses=losses)
    monkeypatch.setattr(loop, "losses", with_all_parts)
    with pytest.raises(AssertionError, match=r"held-out loss of .* where cross-entropy is"):
        laws.held_out_loss_is_cross_entropy_alone(spec, text, losses=losses)


@pytest.fixture
def text(book):
    """The tokens of a small text."""
    corpus = CORPORA.resolve({"name": "files", "path": str(book)})
    return store.prepare(corpus, TOKENIZERS.resolve("bytes"))
