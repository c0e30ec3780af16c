import math

import pytest
import torch

from llama_ablate.errors import ConfigError
from llama_ablate.model.positions import ALiBi, Learned, Position, RoPE, Sinusoidal


def test_no_position_code_leaves_everything_as_it_is():
    x, q, k = torch.randn(1, 3, 8), torch.randn(1, 2, 3, 4), torch.randn(1, 1, 3, 4)
    pos = torch.arange(3)
    none = Position()
    assert none.embed(x, pos) is x
    assert none.rotate(q, k, pos) == (q, k)
    assert none.bias(pos, pos) is None


def test_sinusoidal_puts_sines_in_even_columns_and_cosines_in_odd_ones():
    x = torch.zeros(1, 50, 12, dtype=torch.float64)
    code = Sinusoidal(12).embed(x, torch.arange(50))[0]
    for pos in (0, 1, 7, 49):
        for i in range(6):
            angle = pos / 10000 ** (2 * i / 12)
            assert code[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-12)
            assert code[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-12)


def test_sinusoidal_scales_the_embeddings_by_the_root_of_the_width():
    x = torch.randn(1, 1, 16)
    zero = torch.zeros(1, 1, 16)
    pos = torch.tensor([3])
    scheme = Sinusoidal(16)
    torch.testing.assert_close(scheme.embed(x, pos) - scheme.embed(zero, pos), 4 * x)
    plain = Sinusoidal(16, scale=False)
    torch.testing.assert_close(plain.embed(x, pos) - plain.embed(zero, pos), x)


def test_learned_adds_the_row_of_its_table_and_refuses_positions_beyond_it():
    scheme = Learned(8, 10)
    torch.nn.init.normal_(scheme.table.weight)
    x = torch.randn(2, 3, 8)
    added = scheme.embed(x, torch.tensor([4, 5, 6])) - x
    torch.testing.assert_close(added[0], scheme.table.weight[4:7])
    scheme.reach(10)
    with pytest.raises(ValueError, match="learned positions end at 10, 11 were asked for"):
        scheme.reach(11)


def test_rope_multiplies_complex_pairs_by_unit_rotations():
    """Pair i = (x[i], x[i + E/2]) as a complex number times exp(i pos theta^(-2i/E))."""
    rope = RoPE(8, theta=500.0)
    rope.reach(20)
    q = torch.randn(1, 1, 20, 8, dtype=torch.float64)
    turned, _ = rope.rotate(q, q, torch.arange(20))
    pairs = torch.complex(q[..., :4], q[..., 4:])
    angle = torch.outer(torch.arange(20.0).double(), 500.0 ** (-torch.arange(4.0).double() / 4))
    expected = pairs * torch.polar(torch.ones_like(angle), angle)
    # The tables are float32: seven digits.
    torch.testing.assert_close(turned, torch.cat([expected.real, expected.imag], -1),
                               rtol=1e-6, atol=1e-6)  # fmt: skip


def test_rope_agrees_with_transformers_llama():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(hidden_size=32, num_attention_heads=2, rope_theta=10000.0)
    q, k = torch.randn(2, 2, 9, 16), torch.randn(2, 1, 9, 16)
    pos = torch.arange(9)
    cos, sin = LlamaRotaryEmbedding(config)(q, pos[None])
    rope = RoPE(16, theta=10000.0)
    rope.reach(9)
    for ours, theirs in zip(rope.rotate(q, k, pos), apply_rotary_pos_emb(q, k, cos, sin),
                            strict=True):  # fmt: skip
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_rope_keeps_lengths_and_makes_products_depend_on_distance_alone():
    rope = RoPE(16)
    rope.reach(1000)
    q, k = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def product(m, n):
        turned_q, _ = rope.rotate(q, q, torch.tensor([m]))
        _, turned_k = rope.rotate(k, k, torch.tensor([n]))
        torch.testing.assert_close(turned_q.norm(), q.norm(), rtol=1e-5, atol=0)
        return (turned_q * turned_k).sum()

    torch.testing.assert_close(product(12, 5), product(907, 900), rtol=1e-4, atol=1e-4)
    assert (product(12, 5) - product(13, 5)).abs() > 1e-4


def test_two_ropes_of_different_theta_do_not_share_tables():
    slow, fast = RoPE(8, theta=1e6), RoPE(8, theta=1e2)
    slow.reach(16)
    fast.reach(16)
    assert not torch.equal(slow.cos_SE, fast.cos_SE)
    assert slow.cos_SE.data_ptr() != fast.cos_SE.data_ptr()


def test_rope_tables_grow_to_what_is_asked_and_stay_exact():
    rope = RoPE(8)
    rope.reach(3)
    assert len(rope.cos_SE) == 4
    rope.reach(100_001)
    far = 100_000 * 10000.0 ** (-2 / 8)
    assert rope.cos_SE[100_000, 1].item() == pytest.approx(math.cos(far), abs=1e-7)


def test_rope_refuses_an_odd_head_width():
    with pytest.raises(ConfigError, match="head_dim 7 is odd"):
        RoPE(7)


def test_alibi_slopes_are_those_of_the_paper():
    torch.testing.assert_close(ALiBi(8).slope_H, torch.tensor([2.0**-n for n in range(1, 9)]))
    # 12 heads: the 8 slopes of 8 heads, then every second one of 16 heads.
    expected = [2.0**-n for n in range(1, 9)] + [2.0 ** (-n / 2) for n in (1, 3, 5, 7)]
    torch.testing.assert_close(ALiBi(12).slope_H, torch.tensor(expected))


def test_alibi_penalises_by_distance_and_not_at_all_at_the_token_itself():
    bias = ALiBi(4).bias(torch.tensor([5, 6]), torch.arange(7))
    assert bias.shape == (4, 2, 7)
    assert bias[0, 0, 5] == 0
    assert bias[0, 0, 3].item() == pytest.approx(-2 * 2**-2)
    assert bias[3, 1, 0].item() == pytest.approx(-6 * 2**-8)
