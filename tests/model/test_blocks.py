import pytest
import torch
from torch import nn

from llama_ablate.model.blocks import (
    ParallelBlock,
    ParallelTwoNorms,
    PostNorm,
    PreNorm,
    ReorderedNorm,
    SandwichNorm,
)
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.context import Context
from llama_ablate.model.decoder import build
from llama_ablate.model.parametrization import Parametrization
from llama_ablate.model.positions import Position
from tests.conftest import LLAMA
from tests.laws import TOKENS, model_of


class Twice(nn.Module):
    def forward(self, x, *_):
        return 2 * x


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x, *_):
        return self.factor * x.sin()


class Halve(nn.Module):
    def forward(self, x, *_):
        return x / 2


@pytest.mark.parametrize(
    ("block", "expected", "scaled"),
    [
        # 8 + 2*(8/2) = 16, then 16 + 2*(16/2) = 32; 8 + 8/2 = 12, then 12 + 12/2 = 18.
        (PreNorm, 32, 18),
        # (8 + 2*8)/2 = 12, then (12 + 2*12)/2 = 18; (8 + 16/2)/2 = 8, twice.
        (PostNorm, 18, 8),
        # 8 + (2*8)/2 = 16, then 16 + (2*16)/2 = 32; 8 + 8/2 = 12, then 12 + 12/2 = 18.
        (ReorderedNorm, 32, 18),
        # 8 + (2*(8/2))/2 = 12, then 12 + (2*(12/2))/2 = 18; 8 + 4/2 = 10, then 10 + 5/2 = 12.5.
        (SandwichNorm, 18, 12.5),
        # 8 + 2*(8/2) + 2*(8/2) = 24; 8 + 8/2 + 8/2 = 16.
        (ParallelBlock, 24, 16),
        (ParallelTwoNorms, 24, 16),
    ],
)
def test_each_block_adds_to_a_stream_of_8_what_its_formula_says(block, expected, scaled):
    """With sub-layers that double, a norm that halves, and additions that are halved or not."""
    made, depth = block(Twice(), Twice(), Halve), Parametrization(depth=2)
    assert made(torch.tensor(8.0), Context(0, 1, Position())) == expected
    assert made(torch.tensor(8.0), Context(0, 1, Position(), parametrization=depth)) == scaled


def test_every_block_but_post_norm_needs_a_norm_after_the_last_one(spec):
    for block in REGISTRIES["block"]:
        has_none = isinstance(build(spec(block=block)).norm, nn.Identity)
        assert has_none == (block == "post")


def test_a_tied_head_is_the_embedding_and_is_counted_once(spec):
    tied, untied = build(spec(tie=True)), build(spec(tie=False))
    assert tied.head.weight is tied.embedding.weight
    sizes = [sum(p.numel() for p in model.parameters()) for model in (untied, tied)]
    assert sizes[0] - sizes[1] == 61 * 32


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
    for name in ("pre", "post", "reordered", "sandwich", "parallel", "parallel-two-norms"):
        mixing, plain = (
            model_of(LLAMA | {"block": {"name": name, "x0": x0}}) for x0 in (True, False)
        )
        assert torch.equal(mixing(TOKENS), plain(TOKENS))
