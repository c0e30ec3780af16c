import math

import pytest
import torch

from llama_ablate.model.decoder import build, new_model
from llama_ablate.model.rope import RoPE


def pairs_of(x, layout):
    """Return the pairs (i, i + E/2), or of neighbours, that are turned, as complex numbers."""
    E = x.shape[-1]
    ends = ((0, E // 2), (E // 2, E)) if layout == "half" else ((0, E, 2), (1, E, 2))
    return torch.complex(*(x.double()[..., torch.arange(*of)] for of in ends))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rope_multiplies_complex_pairs_by_unit_rotations(layout):
    """Pair i times exp(i pos theta^(-2i/E)); neighbours as in Meta's apply_rotary_emb."""
    rope = RoPE(8, theta=500.0, layout=layout)
    rope.prepare(20)
    q = torch.randn(1, 1, 20, 8, dtype=torch.float64)
    turned, _ = rope.rotate(q, q, torch.arange(20))
    angle = torch.outer(torch.arange(20.0).double(), 500.0 ** (-torch.arange(4.0).double() / 4))
    expected = pairs_of(q, layout) * torch.polar(torch.ones_like(angle), angle)
    # The tables are float32: seven digits.
    torch.testing.assert_close(pairs_of(turned, layout), expected, rtol=1e-6, atol=1e-6)


def test_rope_tables_grow_to_what_is_asked_and_stay_exact():
    rope = RoPE(8)
    rope.prepare(3)
    assert len(rope.cos_SR) == 4
    rope.prepare(100_001)
    far = 100_000 * 10000.0 ** (-2 / 8)
    assert rope.cos_SR[100_000, 1].item() == pytest.approx(math.cos(far), abs=1e-7)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_in_bfloat16_rotation_is_off_by_its_rounding_alone_at_any_position(layout):
    """Tables are rounded as q and k are. Angles in bfloat16 would be off by radians at 4,000."""
    theta = 5e5
    rope, pos = RoPE(32, theta=theta, layout=layout), torch.arange(4096)
    rope.prepare(4096)
    q = torch.randn(32, generator=torch.Generator().manual_seed(0)).bfloat16()
    turned, _ = rope.rotate(q.expand(1, 1, 4096, 32), q.expand(1, 1, 1, 32), pos)
    pairs, found = pairs_of(q, layout), pairs_of(turned, layout)
    angle = torch.outer(pos.double(), theta ** (-torch.arange(16.0).double() / 16))
    apart = found[0, 0] - pairs * torch.polar(torch.ones_like(angle), angle)
    # Cosine or sine, product and sum are each rounded once, to 8 bits.
    assert (apart.abs().pow(2).sum(-1).sqrt() / q.double().norm()).max() < 3 * 2**-9


def test_partial_rotation_turns_the_first_coordinates_and_leaves_the_rest():
    """As in GPT-NeoX: a quarter of 16 is an RoPE of width 4."""
    part, small = RoPE(16, fraction=0.25), RoPE(4)
    part.prepare(9)
    small.prepare(9)
    q, pos = torch.randn(1, 2, 9, 16), torch.arange(9)
    turned, _ = part.rotate(q, q, pos)
    assert torch.equal(turned[..., 4:], q[..., 4:])
    torch.testing.assert_close(turned[..., :4], small.rotate(q[..., :4], q[..., :4], pos)[0])


def test_ntk_scaling_keeps_the_fastest_pair_and_divides_the_slowest():
    plain, scaled = RoPE(64), RoPE(64, scaling="ntk", factor=8.0)
    ratio = plain.frequencies() / scaled.frequencies()
    assert ratio[0].item() == 1
    assert ratio[-1].item() == pytest.approx(8)
    assert (ratio.diff() > 0).all()


@torch.no_grad()
def test_every_nth_layer_without_rotation_sees_its_keys_as_a_set(spec):
    """A one-layer model whose only layer is the n-th computes what one without positions does."""
    tokens = torch.arange(12)[None]
    all_of_them = new_model(spec(layers=1, position={"name": "rope", "nope_every": 1}), 0)
    without = new_model(spec(layers=1, position="none"), 0)
    assert torch.equal(all_of_them(tokens), without(tokens))
    fourth = build(spec(layers=5, position={"name": "rope", "nope_every": 4}), "meta")
    assert fourth.schemes == ["position"] * 3 + ["position_1", "position"]


@torch.no_grad()
def test_values_are_turned_as_keys_are_and_not_turned_back(spec):
    """The output is the weights times values at their positions: it moves when all move."""
    model = new_model(spec(layers=1, position={"name": "rope", "values": True}), 0)
    attention, rope = model.blocks[0].attn, model.position
    seen = []
    attention.out.register_forward_pre_hook(lambda _part, inputs: seen.append(inputs[0]))
    maps, tokens = [], torch.arange(9)[None]
    model(tokens, maps=maps)
    v = attention.v(model.blocks[0].attn_norm(model.embedding(tokens))).view(1, 9, 4, 8)
    turned, _ = rope.rotate(v.transpose(1, 2), v.transpose(1, 2), torch.arange(9))
    expected = (maps[0].weights @ turned).transpose(1, 2).flatten(2)
    torch.testing.assert_close(seen[0], expected, rtol=1e-5, atol=1e-6)
    assert not rope.relative
    assert RoPE(8).relative


ORIGINAL = {"original_context": 64}, {"original_max_position_embeddings": 64}
SCALINGS = [
    ({}, {"rope_type": "default"}),
    ({"scaling": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    (
        {"scaling": "llama3", "factor": 32.0, "low_freq": 2.0, "high_freq": 3.0} | ORIGINAL[0],
        {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0}
        | ORIGINAL[1],
    ),
    *(
        ({"scaling": "yarn"} | yarn | ORIGINAL[0], {"rope_type": "yarn"} | yarn | ORIGINAL[1])
        for yarn in (
            {"factor": 2.0, "beta_slow": 1.0, "beta_fast": 32.0, "truncate": True},
            {"factor": 16.0, "beta_slow": 0.5, "beta_fast": 4.0, "truncate": False},
        )
    ),
]


@pytest.mark.parametrize(("ours", "theirs"), SCALINGS)
def test_scaled_frequencies_and_lengths_are_those_of_transformers(ours, theirs):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=1024,
        num_attention_heads=8,
        max_position_embeddings=64 * int(theirs.get("factor", 1)),
        rope_parameters={"rope_theta": 5e5, **theirs},
    )
    rope, expected = RoPE(128, theta=5e5, **ours), LlamaRotaryEmbedding(config)
    torch.testing.assert_close(rope.frequencies(), expected.inv_freq.double(), rtol=1e-6, atol=0)
    rope.prepare(8)
    turned, _ = rope.rotate(torch.ones(1, 1, 8, 128), torch.ones(1, 1, 8, 128), torch.arange(8))
    lengths = turned.norm(dim=-1) / 128**0.5
    torch.testing.assert_close(lengths, torch.full((1, 1, 8), expected.attention_scaling))
