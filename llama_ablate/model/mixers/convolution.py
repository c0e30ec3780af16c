"""A short causal convolution of each channel with itself, over a token and the few before it."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def causal_convolution(
    x_BTD: Tensor,
    weight_DW: Tensor,
    bias_D: Tensor | None = None,
    tail: Tensor | None = None,
    pos_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `sum_i weight[:, i] * x[t - (W - 1) + i]`, (B, T, D), and the tail that comes next.

    The tail is the inputs of the last W - 1 tokens, (B, W - 1, D), zeros before the first: handed
    back with the next tokens, it makes the pieces of a sequence give what the whole gives. With
    `pos`, the place of each token in its document, the sum goes no further back than that.
    """
    T, W = x_BTD.shape[1], weight_DW.shape[1]
    if tail is None:
        padded_BTD = F.pad(x_BTD, (0, 0, W - 1, 0))
    else:
        padded_BTD = torch.cat([tail.to(x_BTD.dtype), x_BTD], 1)
    y_BTD: Tensor = _Depthwise.apply(padded_BTD, weight_DW, pos_BT)  # type: ignore[no-untyped-call]
    return y_BTD if bias_D is None else y_BTD + bias_D, padded_BTD[:, T:]


class _Depthwise(torch.autograd.Function):
    """A depthwise convolution as sums of shifted products, and its gradient.

    With torch's own kernel a training step of a mixer takes 12 to 19% longer on a CPU.
    """

    @staticmethod
    def forward(ctx: Any, padded_BTD: Tensor, weight_DW: Tensor, pos_BT: Tensor | None) -> Tensor:
        ctx.save_for_backward(padded_BTD, weight_DW, pos_BT)
        W = weight_DW.shape[1]
        T = padded_BTD.shape[1] - W + 1
        y_BTD = _within(padded_BTD[:, :T], pos_BT, W - 1) * weight_DW[:, 0]
        for i in range(1, W):
            y_BTD.addcmul_(_within(padded_BTD[:, i : i + T], pos_BT, W - 1 - i), weight_DW[:, i])
        return y_BTD

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad_BTD,), (padded_BTD, weight_DW, pos_BT) = grads, ctx.saved_tensors
        T, W = grad_BTD.shape[1], weight_DW.shape[1]
        by_tap = [_within(grad_BTD, pos_BT, W - 1 - i) for i in range(W)]
        grad_padded = F.pad(by_tap[0] * weight_DW[:, 0], (0, 0, 0, W - 1))
        for i in range(1, W):
            grad_padded[:, i : i + T].addcmul_(by_tap[i], weight_DW[:, i])
        taps = [(by_tap[i] * padded_BTD[:, i : i + T]).sum((0, 1)) for i in range(W)]
        return grad_padded, torch.stack(taps, -1), None


def _within(x_BTD: Tensor, pos_BT: Tensor | None, back: int) -> Tensor:
    """Return x with zeros where a token has fewer than `back` before it in its document."""
    if pos_BT is None or back == 0:
        return x_BTD
    return x_BTD.masked_fill(pos_BT[..., None] < back, 0)


class ShortConvolution(nn.Module):
    """A causal depthwise convolution and a SiLU, as Mamba and Gated DeltaNet have it.

    Weights start uniform within 1 / sqrt(width), as torch's convolutions do, and take no decay.
    """

    undecayed = frozenset({"weight"})

    def __init__(self, channels: int, width: int, *, bias: bool) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width)
        self.weight = nn.Parameter(torch.empty(channels, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def forward(
        self, x_BTD: Tensor, tail: Tensor | None = None, pos_BT: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the activated convolution, in the weights' precision, and the tail after it."""
        x_BTD = x_BTD.to(self.weight.dtype)
        y_BTD, tail = causal_convolution(x_BTD, self.weight, self.bias, tail, pos_BT)
        return F.silu(y_BTD), tail
