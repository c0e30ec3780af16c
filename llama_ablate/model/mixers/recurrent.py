"""Base class of recurrent mixers: a matrix for each head, and a short convolution."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.errors import ConfigError
from llama_ablate.model.context import Context
from llama_ablate.model.linear import Linear
from llama_ablate.model.mixers.convolution import ShortConvolution
from llama_ablate.model.state import RecurrentState, State

_WIDEST = 1 << 20
_STEPS = 1e-3, 0.1  # what time steps start between
NORM_EPS = 1e-5  # of the norm after the recurrence, in both papers' code


def check_widths(**widths: int) -> None:
    """Raise ConfigError for an option that is no width."""
    for name, width in widths.items():
        least = 0 if name == "conv" else 1
        if not least <= width <= _WIDEST:
            raise ConfigError(f"{name} {width}: must be from {least} to {_WIDEST:,}")


class Recurrent(nn.Module, ABC):
    """A mixer whose state is a matrix for each head and the tail of a short convolution.

    A token has a time step, `softplus(step + dt_bias)`, for which the matrix of a head decays at
    the rate `exp(A_log)`. As in the code of Mamba-2 rates start uniform, at most 16, and the time
    steps of `dt_bias` log-uniform from 0.001 to 0.1; like all vectors they take no weight decay.
    """

    rotated = 0  # positions are in the order of the tokens

    #: The least rate at the start.
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
        # Drawn last: another convolution leaves the rates and steps as they are.
        self.conv = ShortConvolution(channels, conv, bias=conv_bias)

    @property
    @abstractmethod
    def projections(self) -> Sequence[Linear]:
        """The projections of a token: first those that are convolved."""

    @abstractmethod
    def products(self, tokens: int) -> int:
        """Multiply-adds of the recurrence's matrix products over a sequence."""

    def _time_steps(self, step_BTH: Tensor, ctx: Context) -> tuple[Tensor, Tensor]:
        """Return the time step of each token and head, and the logarithm of the decay over it.

        Both are zero for padding, so that it leaves the matrix as it is.
        """
        dtype = torch.promote_types(step_BTH.dtype, torch.float32)
        step_BTH = F.softplus(step_BTH.to(dtype) + self.dt_bias.to(dtype))
        if ctx.valid_BT is not None:
            step_BTH = step_BTH * ctx.valid_BT[..., None]
        return step_BTH, -self.A_log.to(dtype).exp() * step_BTH

    def new_state(
        self, batch: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> State:
        """Return the empty state; it is as large for one token as for many."""
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

    def state_bytes(self, context: int, dtype: torch.dtype) -> int:
        """Bytes of the matrices, in float32, and of the convolution's tail, at any context."""
        del context
        exact = torch.promote_types(dtype, torch.float32)
        matrices = self.heads * self.key * self.value * exact.itemsize
        return int(matrices + self.conv.held * self.conv.channels * dtype.itemsize)

    def flops(self, context: int) -> int:
        """Forward FLOPs per token of the matrix products: projections, and the chunked recurrence.

        The convolution, 2 a channel and tap, is computed by elements and counts as little as norms
        and activations do.
        """
        weights = sum(part.weight.numel() for part in (*self.projections, self.out))
        return int(2 * weights + 2 * self.products(context) // context)
