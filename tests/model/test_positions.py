import math

import pytest
import torch

from llama_ablate.model.positions import ALiBi, Learned, Sinusoidal, T5Bias


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
    scheme.prepare(10)
    with pytest.raises(ValueError, match="learned positions end at 10, 11 were asked for"):
        scheme.prepare(11)


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


def test_t5_buckets_are_those_of_transformers():
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(0, 400)
    for buckets, most in [(32, 128), (8, 12), (16, 300)]:
        theirs = T5Attention._relative_position_bucket(
            -distance, bidirectional=False, num_buckets=buckets, max_distance=most
        )
        assert T5Bias(4, buckets=buckets, max_distance=most).bucket(distance).equal(theirs)


def test_t5_adds_to_each_head_the_entry_of_the_distances_bucket():
    scheme = T5Bias(2, buckets=8, max_distance=12)
    torch.nn.init.normal_(scheme.table.weight)
    bias = scheme.bias(torch.tensor([5, 6]), torch.arange(7))
    assert bias.shape == (2, 2, 7)
    for head in range(2):
        assert bias[head, 0, 5] == scheme.table.weight[0, head]  # itself
        assert bias[head, 0, 2] == scheme.table.weight[3, head]  # 3 back: a bucket of its own
        assert bias[head, 1, 0] == scheme.table.weight[5, head]  # 6 back: 4 + 4 ln(6/4)/ln(12/4)
