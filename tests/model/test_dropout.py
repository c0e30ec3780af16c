"""Dropout: masks that are a function of seed, step, place and row."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from llama_ablate.config.experiment import Model, Train
from llama_ablate.config.spec import DropoutRates
from llama_ablate.design import variants
from llama_ablate.model.components import spec_from
from llama_ablate.model.decoder import new_model
from llama_ablate.model.dropout import Dropout
from llama_ablate.training.compute import Compute, update
from llama_ablate.training.losses import Objective
from tests.conftest import make_spec
from tests.laws import dropout_masks

TOKENS = torch.randint(0, 61, (4, 13), generator=torch.Generator().manual_seed(1))
PLACES = ("embedding", "blocks.0.attn", "blocks.0.ffn", "blocks.0.weights", "blocks.1.attn")


def dropout(rates=0.3, seed=0, step=0, batch=4, first=0):
    return Dropout(DropoutRates.of(rates), seed, step, batch, first)


def mask(place="blocks.0.attn", shape=(4, 9, 16), **changes):
    return dropout(**changes).mask(place, shape, torch.empty(0))[0]


def model_of(**changes):
    return new_model(make_spec(**{"init_std": 0.3} | changes), 0)


def masks_of(model, **changes):
    return dropout_masks(model, TOKENS, dropout(**changes))


@pytest.mark.parametrize("rate", [0.1, pytest.param(0.5, marks=pytest.mark.full)])
def test_a_mask_drops_its_rate_of_the_numbers_independently(rate):
    """Counts of matrices are binomial; no number goes with another, near, far, or elsewhere."""
    n, side = 20_000, 16
    kept = mask(shape=(n, side, side), batch=n, rates=rate).flatten(1).double()
    size, spread = side * side, rate * (1 - rate)
    assert kept.unique().tolist() == [0, 1]
    assert kept.mean() == pytest.approx(1 - rate, abs=5 * (spread / kept.numel()) ** 0.5)
    assert kept.sum(1).var() == pytest.approx(size * spread, rel=5 * (2 / n) ** 0.5)
    z = (kept - (1 - rate)) / spread**0.5
    pairs = z.T @ z / n  # of all numbers of a matrix, over the matrices
    off = pairs[~torch.eye(size, dtype=torch.bool)]
    assert off.abs().max() < 6 / n**0.5
    assert off.square().mean().sqrt() * n**0.5 == pytest.approx(1, abs=0.02)
    rows = z[:2000] @ z[:2000].T / size  # of all matrices, over their numbers
    off = rows[~torch.eye(2000, dtype=torch.bool)]
    assert off.square().mean().sqrt() * size**0.5 == pytest.approx(1, abs=0.02)
    other = mask("blocks.0.ffn", (n, side, side), batch=n, rates=rate).flatten(1) - (1 - rate)
    assert abs((z * other).mean()) < 5 * (spread / z.numel()) ** 0.5


def test_what_is_kept_is_scaled_so_that_the_mean_stays_in_sixteen_bits_too():
    x = torch.ones(4, 500, 500)
    for dtype in (torch.float32, torch.bfloat16):
        y = dropout(0.1)(x.to(dtype), "blocks.0.attn")
        assert y.dtype == dtype
        assert y.float().mean().item() == pytest.approx(1, abs=3e-3)
    assert dropout(0.1)(x, "embedding").unique().tolist() == pytest.approx([0, 1 / 0.9])


def test_masks_are_the_same_for_the_same_place_and_differ_between_places_steps_and_seeds():
    settings = [
        {"place": place, "seed": seed, "step": step}
        for place in PLACES
        for seed in (0, 1)
        for step in (0, 1, 2)
    ]
    masks = [mask(**setting) for setting in settings]
    assert all(torch.equal(m, mask(**setting)) for m, setting in zip(masks, settings, strict=True))
    for one, other in itertools.combinations(masks, 2):
        agree = (one == other).double().mean().item()
        assert agree == pytest.approx(0.7**2 + 0.3**2, abs=0.15)
    rows = mask(shape=(2, 4, 9, 16), batch=2).flatten(0, 1)  # sequences, and heads of one
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(rows, 2))


@pytest.mark.parametrize("shape", [(5, 16), (3, 5, 7)])
def test_some_rows_have_their_part_of_the_whole_batchs_mask(shape):
    whole = mask(shape=(4, *shape))
    for first, count in ((0, 2), (2, 2), (1, 3), (3, 1)):
        part = mask(shape=(count, *shape), first=first)
        assert torch.equal(part, whole[first : first + count])


def test_each_kind_of_place_has_its_own_rate():
    rates = {"embedding": 0.0, "attention": 0.5, "sublayer": 0.9}
    seen = masks_of(model_of(), rates=rates)
    assert seen["embedding"] is None
    for layer in (0, 1):
        assert seen[f"blocks.{layer}.weights"].mean() == pytest.approx(0.5, abs=0.05)
        for part in ("attn", "ffn"):
            assert seen[f"blocks.{layer}.{part}"].mean() == pytest.approx(0.1, abs=0.05)


@torch.no_grad()
def test_dropout_stands_where_nanogpt_has_it():
    """A GPT-2 written out in float64, with masks after embedding, softmax and both sub-layers."""
    model = model_of(position="learned", norm="layernorm", feedforward="gelu").double()
    masks, rate, E, H = masks_of(model), 0.3, 8, 4
    logits = model(TOKENS, dropout=dropout(rate))

    def drop(x, place):
        return x * masks[place] / (1 - rate)

    def norm(x, part):
        return F.layer_norm(x, (32,), part.gain, part.bias)

    T = TOKENS.shape[1]
    x = model.embedding.weight[TOKENS] + model.position.table.weight[:T]
    x = drop(x, "embedding")
    for i, block in enumerate(model.blocks):
        h = norm(x, block.attn_norm)
        q, k, v = (
            part(h).view(4, T, H, E).transpose(1, 2)
            for part in (block.attn.q, block.attn.k, block.attn.v)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(E)
        scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
        weights = drop(scores.softmax(-1), f"blocks.{i}.weights")
        mixed = (weights @ v).transpose(1, 2).reshape(4, T, 32)
        x = x + drop(block.attn.out(mixed), f"blocks.{i}.attn")
        h = F.gelu(block.ffn.up(norm(x, block.ffn_norm)))
        x = x + drop(block.ffn.down(h), f"blocks.{i}.ffn")
    expected = norm(x, model.norm) @ model.head.weight.T
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_every_way_to_compute_attention_drops_the_same_weights_and_has_its_gradient(kv_heads):
    """Spelled out with maps, by the hand-derived kernel, and where the fused one was asked for."""
    outputs = []
    for kernel, maps in (("math", []), ("math", None), ("fused", None)):
        model = model_of(attention={"name": "gqa", "kv_heads": kv_heads}).double()
        model.kernel = kernel
        model.zero_grad()
        logits = model(TOKENS, maps=maps, dropout=dropout())
        logits.square().sum().backward()
        outputs.append([logits.detach(), *(p.grad for p in model.parameters())])
    for other in outputs[1:]:
        for one, two in zip(outputs[0], other, strict=True):
            torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_evaluation_has_no_dropout_and_a_rate_of_zero_changes_no_bit():
    model, without = model_of(dropout=0.5), model_of()
    assert torch.equal(model(TOKENS), without(TOKENS))
    assert torch.equal(without(TOKENS, dropout=dropout(0.0)), without(TOKENS))
    assert not torch.equal(model(TOKENS, dropout=dropout(0.5)), without(TOKENS))
    assert Dropout.for_step(without.spec, 0, 0, 4) is None
    assert Dropout.for_step(model.spec, 3, 7, 4) == dropout(0.5, seed=3, step=7)


def test_a_step_in_micro_batches_is_that_of_the_whole_batch():
    """And test_ranks.py shares one between processes, dropout and all."""

    def stepped(parts, step):
        model = model_of().double()
        optimizer, train = torch.optim.SGD(model.parameters(), lr=1.0), Train(steps=1, clip=0)
        compute, drop = Compute("cpu", 1, "float32", "math"), dropout(step=step)
        update(Objective(model), optimizer, TOKENS.chunk(parts), train, compute, dropout=drop)
        return [*model.parameters()]

    whole, split, unlike = stepped(1, 0), stepped(4, 0), stepped(1, 1)
    torch.testing.assert_close(split, whole, rtol=1e-9, atol=1e-12)
    assert not all(map(torch.equal, unlike, whole))


def resolved(**values):
    return variants.resolve(Model.check({"dim": 16, "heads": 2, **values}))


def test_one_rate_and_the_same_for_each_place_are_one_architecture_and_no_rate_is_the_default():
    each = dict.fromkeys(("embedding", "attention", "sublayer"), 0.1)
    assert resolved(dropout=0.1).id == resolved(dropout=each).id
    assert resolved(dropout=0.0).id == resolved(dropout={}).id == resolved().id
    assert "dropout" not in resolved().identity()
    some = resolved(dropout={"attention": 0.1})
    assert len({resolved(dropout=0.1).id, some.id, resolved().id}) == 3
    for spec in (some, resolved(dropout=0.1), resolved()):
        assert spec_from(spec.to_dict()) == spec
        assert resolved(dropout=spec.to_dict()["dropout"]) == spec
    older = {key: value for key, value in resolved().to_dict().items() if key != "dropout"}
    assert spec_from(older) == resolved()
