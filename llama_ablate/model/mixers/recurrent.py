"""Base class of recurrent token mixers: a state matrix for each head, and a short convolution."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.errors import need
from llama_ablate.model.context import Context
from llama_ablate.model.linear import Linear
from llama_ablate.model.mixers.convolution import ShortConvolution
from llama_ablate.model.state import RecurrentState, State

_WIDEST = 1 << 20
_STEPS = 1e-3, 0.1  # range of the initial time steps
NORM_EPS = 1e-5  # of the norm after the recurrence, in both papers' code


def check_widths(**widths: int) -> None:
    """Raise ConfigError for a width option that is out of range."""
    for name, width in widths.items():
        least = 0 if name == "conv" else 1
        need(least <= width <= _WIDEST, f"{name} {width}: must be from {least} to {_WIDEST:,}")


class Recurrent(nn.Module, ABC):
    """Token mixer whose state is a matrix for each head and the last inputs of a convolution.

    Over the time step of a token, `softplus(step + dt_bias)`, the matrix of a head decays at the
    rate `exp(A_log)`. As in the code of Mamba-2, initial rates are uniform, at most 16, and initial
    time steps of `dt_bias` log-uniform from 0.001 to 0.1. Like all vectors, both parameters have no
    weight decay.
    """

    rotated = 0  # the recurrence itself depends on the order of the tokens

    #: Lowest initial decay rate.
    slowest: float
    out: Linear

    def __init__(
        self, heads: int, key: int, value: int, channels: int, conv: int, conv_bias: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.key, self.value = heads, key, value
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(self.slowest, 16.0).log())
        shortest, longest = map(math.log, _STEPS)
        step_H = torch.empty(heads).uniform_(shortest, longest).exp()
        self.dt_bias = nn.Parameter(step_H + torch.log(-torch.expm1(-step_H)))  # softplus inverted
        # Drawn last, so that the convolution's options do not change the initial rates and steps.
        self.conv = ShortConvolution(channels, conv, bias=conv_bias)

    @property
    @abstractmethod
    def projections(self) -> Sequence[Linear]:
        """Projections of the layer's input; the projections that are convolved come first."""

    @abstractmethod
    def products(self, tokens: int) -> int:
        """Return the multiply-adds of the recurrence's matrix products over a sequence."""

    def _time_steps(self, step_BTH: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return the time step and the log decay of each token and head.

        Time step and log decay are zero for padding, which therefore leaves the matrix unchanged.
        """
        dtype = torch.promote_types(step_BTH.dtype, torch.float32)
        step_BTH = F.softplus(step_BTH.to(dtype) + self.dt_bias.to(dtype))
        if ctx.valid_BT is not None:
            step_BTH = step_BTH * ctx.valid_BT[..., None]
        return step_BTH, -self.A_log.to(dtype).exp() * step_BTH

    def new_state(
        self, batch: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> State:
        """Return the empty state, whose size does not depend on the number of tokens."""
        del capacity
        exact = torch.promote_types(dtype, torch.float32)
        tail = batch, self.conv.held, self.conv.channels
        shape = batch, self.heads, self.key, self.value
        return RecurrentState(
            {
                "matrix": torch.zeros(shape, dtype=exact, device=device),
                "tail": torch.zeros(tail, dtype=dtype, device=device),
            }
        )

    def flops(self, context: int) -> int:
        """Count forward FLOPs per token of the projections and of the chunked recurrence.

        The convolution takes 2 FLOPs per channel and tap. Like norms and activations, the
        convolution is elementwise and not counted.
        """
        weights = sum(part.weight.numel() for part in (*self.projections, self.out))
        return int(2 * weights + 2 * self.products(context) // context)
