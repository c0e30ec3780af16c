import math
import statistics

import pytest
import torch
import torch.nn.functional as F

from llama_ablate.errors import ConfigError
from llama_ablate.model.norms import Derf, DyT, LayerNorm, NoNorm, RMSNorm


@pytest.fixture
def x():
    return torch.randn(3, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_rmsnorm_divides_by_the_root_mean_square(x):
    norm = RMSNorm(16, eps=1e-5).double()
    norm.gain.data.uniform_(0.5, 1.5)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.gain
    torch.testing.assert_close(norm(x), expected, rtol=1e-12, atol=1e-12)


def test_rmsnorms_hand_derived_gradient_equals_the_numerical_one(x):
    norm = RMSNorm(16).double()
    norm.gain.data.uniform_(0.5, 1.5)
    x = x[:1, :2].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, _gain: norm(x), (x, norm.gain))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rmsnorm_computes_in_float32_and_returns_the_precision_of_its_gain(x, dtype):
    """Under autocast queries are bfloat16 and gains float32; torch's kernel takes one of them."""
    norm, half = RMSNorm(16).to(dtype), x.to(torch.bfloat16)
    expected = F.rms_norm(half.float(), (16,), None, 1e-6)
    with torch.no_grad():
        plain = norm(half)
    for y in (plain, norm(half)):
        assert y.dtype == dtype
        close = 2**-7 if dtype == torch.bfloat16 else 1.3e-6
        torch.testing.assert_close(y.float(), expected, rtol=close, atol=1e-5 * (close < 1e-3))


def test_layernorm_centres_and_scales_by_the_biased_deviation(x):
    norm = LayerNorm(16, True, eps=1e-5).double()
    norm.gain.data.uniform_(0.5, 1.5)
    norm.bias.data.uniform_(-1, 1)
    centred = x - x.mean(-1, keepdim=True)
    expected = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(norm(x), expected * norm.gain + norm.bias, rtol=1e-12, atol=1e-12)
    assert LayerNorm(16, False).bias is None  # of a model without biases


def test_an_unbiased_layernorm_divides_by_the_sample_deviation_plus_eps(x):
    norm = LayerNorm(16, True, eps=1e-2, unbiased=True).double()
    norm.gain.data.uniform_(0.5, 1.5)
    norm.bias.data.normal_()
    sample = statistics.stdev(x[0, 0].tolist())
    mean = statistics.fmean(x[0, 0].tolist())
    expected = norm.gain * (x[0, 0] - mean) / (sample + 1e-2) + norm.bias
    torch.testing.assert_close(norm(x)[0, 0], expected, rtol=1e-12, atol=1e-12)
    assert LayerNorm(16, True, unbiased=True)(x.bfloat16()).dtype == torch.float32
    with pytest.raises(ConfigError, match="needs 2 coordinates or more"):
        LayerNorm(1, True, unbiased=True)


@pytest.mark.parametrize(
    ("kind", "squash", "shift"), [(DyT, math.tanh, 0.0), (Derf, math.erf, 0.25)]
)
def test_dyt_and_derf_squash_each_coordinate_alone(kind, squash, shift, x):
    norm = kind(16, True, slope=0.7).double()
    norm.gain.data.uniform_(0.5, 1.5)
    norm.bias.data.normal_()
    if shift:
        norm.shift.data.fill_(shift)
    for value, gain, bias, y in zip(x[0, 0], norm.gain, norm.bias, norm(x)[0, 0], strict=True):
        expected = gain.item() * squash(0.7 * value.item() + shift) + bias.item()
        assert y.item() == pytest.approx(expected, abs=1e-7)  # the slope is a float32 0.7


def test_no_norm_gives_back_its_input_and_has_no_parameters(x):
    assert NoNorm()(x) is x
    assert not list(NoNorm().parameters())


def test_rmsnorm_without_gain_is_rmsnorm_whose_gain_is_one(x, plugin):
    norm = plugin("rate_transfer").RMSNormWithoutGain()
    assert not list(norm.parameters())
    torch.testing.assert_close(norm(x), RMSNorm(16).double()(x), rtol=1e-12, atol=1e-12)
