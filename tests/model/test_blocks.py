import pytest
import torch
from torch import nn

from llama_ablate.model.blocks import ParallelBlock, PostNorm, PreNorm, SandwichNorm
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.context import Context
from llama_ablate.model.decoder import build, init_weights
from llama_ablate.model.parametrization import Parametrization
from llama_ablate.model.positions import Position

PLAIN = Context(0, 1, Position())


class Twice(nn.Module):
    def forward(self, x, *_):
        return 2 * x


class Halve(nn.Module):
    def forward(self, x, *_):
        return x / 2


def test_pre_norm_adds_to_an_untouched_stream():
    """x=8: 8 + 2*(8/2) = 16, then 16 + 2*(16/2) = 32."""
    block = PreNorm(Twice(), Twice(), Halve)
    assert block(torch.tensor(8.0), PLAIN) == 32


def test_post_norm_normalises_the_stream_itself():
    """x=8: (8 + 2*8)/2 = 12, then (12 + 2*12)/2 = 18."""
    block = PostNorm(Twice(), Twice(), Halve)
    assert block(torch.tensor(8.0), PLAIN) == 18


def test_sandwich_norm_normalises_what_enters_and_what_leaves():
    """x=8: 8 + (2*(8/2))/2 = 12, then 12 + (2*(12/2))/2 = 18."""
    block = SandwichNorm(Twice(), Twice(), Halve)
    assert block(torch.tensor(8.0), PLAIN) == 18


def test_the_parallel_block_gives_both_sub_layers_the_same_input():
    """x=8: 8 + 2*(8/2) + 2*(8/2) = 24; it has one norm."""
    block = ParallelBlock(Twice(), Twice(), Halve)
    assert block(torch.tensor(8.0), PLAIN) == 24
    assert [name for name, _ in block.named_children()] == ["attn", "ffn", "attn_norm"]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        # x=8, each addition halved: 8 + 8/2 = 12, then 12 + 12/2 = 18.
        (PreNorm, 18),
        # (8 + 16/2)/2 = 8, twice.
        (PostNorm, 8),
        # 8 + 4/2 = 10, then 10 + 5/2 = 12.5: what is added is halved behind its norm.
        (SandwichNorm, 12.5),
        # 8 + 8/2 + 8/2.
        (ParallelBlock, 16),
    ],
)
def test_every_block_scales_what_it_adds_to_the_stream(block, expected):
    ctx = Context(0, 1, Position(), parametrization=Parametrization(depth=2))
    assert block(Twice(), Twice(), Halve)(torch.tensor(8.0), ctx) == expected


def test_every_block_but_post_norm_needs_a_norm_after_the_last_one(spec):
    for block in REGISTRIES["block"]:
        has_none = isinstance(build(spec(block=block)).norm, nn.Identity)
        assert has_none == (block == "post")


def test_the_projections_that_write_to_the_stream_start_smaller_with_depth(spec):
    model = init_weights(build(spec(layers=8, dim=256, heads=4, head_dim=64)), 0)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            writes = name.endswith(("attn.out.weight", "ffn.down.weight"))
            expected = 0.02 / 4 if writes else 0.02  # sqrt(2 * 8 layers) = 4
            assert abs(parameter.std().item() / expected - 1) < 0.05, name


def test_a_tied_head_is_the_embedding_and_is_counted_once(spec):
    tied, untied = build(spec(tie=True)), build(spec(tie=False))
    assert tied.head.weight is tied.embedding.weight
    sizes = [sum(p.numel() for p in model.parameters()) for model in (untied, tied)]
    assert sizes[0] - sizes[1] == 61 * 32
