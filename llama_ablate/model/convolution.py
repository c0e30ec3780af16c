"""A short causal convolution of each channel with itself, over a token and the few before it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def causal_convolution(
    x_BTD: Tensor, weight_DW: Tensor, bias_D: Tensor | None = None, tail: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return `sum_i weight[:, i] * x[t - (W - 1) + i]`, (B, T, D), and the tail that comes next.

    The tail is the inputs of the last W - 1 tokens, (B, W - 1, D), zeros before the first: handed
    back with the next tokens, it makes the pieces of a sequence give what the whole gives.
    """
    T, W = x_BTD.shape[1], weight_DW.shape[1]
    if tail is None:
        padded_BTD = F.pad(x_BTD, (0, 0, W - 1, 0))
    else:
        padded_BTD = torch.cat([tail.to(x_BTD.dtype), x_BTD], 1)
    # Sums of shifted products: on a CPU torch's depthwise kernel takes half as long again.
    y_BTD = padded_BTD[:, :T] * weight_DW[:, 0]
    for i in range(1, W):
        y_BTD = torch.addcmul(y_BTD, padded_BTD[:, i : i + T], weight_DW[:, i])
    return y_BTD if bias_D is None else y_BTD + bias_D, padded_BTD[:, T:]


class ShortConvolution(nn.Module):
    """A causal depthwise convolution and a SiLU, as Mamba and Gated DeltaNet have it.

    Weights start uniform within 1 / sqrt(width), as torch's convolutions do, and take no decay.
    """

    undecayed = frozenset({"weight", "bias"})

    def __init__(self, channels: int, width: int, *, bias: bool) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width)
        self.weight = nn.Parameter(torch.empty(channels, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def forward(self, x_BTD: Tensor, tail: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the activated convolution, in the weights' precision, and the tail after it."""
        y_BTD, tail = causal_convolution(x_BTD.to(self.weight.dtype), self.weight, self.bias, tail)
        return F.silu(y_BTD), tail
