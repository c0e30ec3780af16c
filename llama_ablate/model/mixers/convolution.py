"""Short causal depthwise convolution over a token and the few tokens before it."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from llama_ablate.model.context import Context
from llama_ablate.model.state import RecurrentState, State, Stateful


def causal_convolution(
    x_BTD: Tensor,
    weight_DW: Tensor,
    bias_D: Tensor | None = None,
    tail: Tensor | None = None,
    pos_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return `sum_i weight[:, i] * x[t - (W - 1) + i]`, (B, T, D), and the next tail.

    The tail is the inputs of the last W - 1 tokens, (B, W - 1, D), with zeros before the first
    token. If each call gets the tail of the previous call, a sequence in pieces gives the output of
    the whole sequence. With `pos_BT`, the position of each token in its document, the sum does not
    reach back beyond the document's start.
    """
    T, W = x_BTD.shape[1], weight_DW.shape[1]
    if tail is None:
        padded_BTD = F.pad(x_BTD, (0, 0, W - 1, 0))
    else:
        padded_BTD = torch.cat([tail.to(x_BTD.dtype), x_BTD], 1)
    y_BTD: Tensor = _Depthwise.apply(padded_BTD, weight_DW, pos_BT)  # type: ignore[no-untyped-call]
    return y_BTD if bias_D is None else y_BTD + bias_D, padded_BTD[:, T:]


class _Depthwise(torch.autograd.Function):
    """Autograd function of a depthwise convolution, computed as a sum of shifted products.

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
    """Set to zero the tokens with fewer than `back` tokens before them in their document."""
    if pos_BT is None or back == 0:
        return x_BTD
    return x_BTD.masked_fill(pos_BT[..., None] < back, 0)


def convolved(
    x_BTD: Tensor,
    weight_DW: Tensor | None,
    bias_D: Tensor | None,
    ctx: Context,
    tail: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the causal convolution in the weights' precision, and the next tail.

    Padding tokens count as zeros, and the convolution does not reach into the previous document.
    Without weights, the output is the input, plus the bias if there is one.
    """
    if ctx.valid_BT is not None:
        x_BTD = x_BTD * ctx.valid_BT[..., None]
    if weight_DW is None:
        return x_BTD if bias_D is None else x_BTD + bias_D, x_BTD[:, :0]
    x_BTD = x_BTD.to(weight_DW.dtype)
    pos_BT = None if ctx.begins_BT is None else ctx.pos_T
    return causal_convolution(x_BTD, weight_DW, bias_D, tail, pos_BT)


def _taps(channels: int, width: int) -> nn.Parameter:
    """Return initial convolution weights, uniform within +-1 / sqrt(width) as in torch."""
    bound = 1 / math.sqrt(max(1, width))
    return nn.Parameter(torch.empty(channels, width).uniform_(-bound, bound))


class ShortConvolution(nn.Module):
    """Causal depthwise convolution followed by a SiLU, as in Mamba and Gated DeltaNet.

    With width 0 the layer is only the SiLU. The convolution's weights have no weight decay.
    """

    no_weight_decay = frozenset({"weight"})

    def __init__(self, channels: int, width: int, *, bias: bool) -> None:
        super().__init__()
        self.channels, self.held = channels, max(0, width - 1)
        self.weight = _taps(channels, width) if width else None
        bound = 1 / math.sqrt(max(1, width))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def forward(
        self, x_BTD: Tensor, ctx: Context, tail: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the convolution after the SiLU, in the weights' precision, and the next tail."""
        y_BTD, tail = convolved(x_BTD, self.weight, self.bias, ctx, tail)
        return F.silu(y_BTD), tail


class Canon(Stateful):
    """Add to each token a weighted sum of itself and the three tokens before (Allen-Zhu 2025).

    This is a canon layer (arXiv:2512.17351): a causal depthwise convolution with a residual
    connection, without activation or bias. There are four places for canon layers: A is before
    attention, B on the queries, keys and values, C before the feed-forward network, D on the
    network's hidden units.
    """

    no_weight_decay = frozenset({"weight"})
    WIDTH = 4

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = _taps(channels, self.WIDTH)

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        """Return `x + convolution(x)`, (B, T, channels), in the precision of x."""
        state = ctx.state(self)
        assert state is None or isinstance(state, RecurrentState), "it is of `new_state`"
        tail = None if state is None else state["tail"]
        y_BTD, tail = convolved(x_BTD, self.weight, None, ctx, tail)
        if state is not None:
            state.advance(x_BTD.shape[1], tail=tail)
        return x_BTD + y_BTD.to(x_BTD.dtype)

    def new_state(
        self, batch: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> State:
        """Return the empty tail, whose size does not depend on the number of tokens."""
        del capacity
        shape = batch, self.WIDTH - 1, len(self.weight)
        return RecurrentState({"tail": torch.zeros(shape, dtype=dtype, device=device)})
