"""Position-wise feed-forward networks: `f(x_BTD, ctx) -> x_BTD`.

Every network has the option `width`, the hidden width. The harness solves for the width when
variants are matched in size. If the option is None, the network computes a default width.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.config.registry import Registry
from llama_ablate.config.spec import SIZES
from llama_ablate.errors import need
from llama_ablate.model.context import Context
from llama_ablate.model.linear import Linear, OutLinear, weights
from llama_ablate.model.mixers.convolution import Canon

_WIDEST = 1 << 24


class FeedForwardInterface(Protocol):
    """Interface of a feed-forward network."""

    #: Hidden width, which is solved for when variants are matched in size.
    width: int

    def forward(self, x_BTD: Tensor, ctx: Context) -> Tensor:
        """Return the output, (B, T, D), which the block adds to the residual stream."""

    def flops(self) -> int:
        """Count forward FLOPs per token."""


FEEDFORWARDS = Registry(
    "feedforward", sizes=(*SIZES, "layer"), interface=FeedForwardInterface, options=("width",)
)

Activation = Callable[[Tensor], Tensor]


def _same(x: Tensor) -> Tensor:
    return x


class FeedForward(nn.Module):
    """Feed-forward network of two linear maps with an activation between them.

    By default the hidden width is four times the model's width. `canon` adds canon layers (short
    causal convolutions) before the network (place C), on the hidden units, including the gate's
    units (place D), or in both places (Allen-Zhu 2025, arXiv:2512.17351).
    """

    activation: Activation

    def __init__(
        self,
        dim: int,
        bias: bool,
        *,
        width: int | None = None,
        canon: Literal["none", "C", "D", "CD"] = "none",
    ) -> None:
        super().__init__()
        self.width = 4 * dim if width is None else width
        need(0 < self.width <= _WIDEST, f"width {self.width}: must be from 1 to {_WIDEST:,}")
        self.up = Linear(dim, self.width, bias=bias)
        self.down = OutLinear(self.width, dim, bias=bias)
        self.canon_in = Canon(dim) if "C" in canon else None
        self.canon_up = Canon(self.width) if "D" in canon else None

    def forward(self, x_BTD: Tensor, ctx: Context | None = None) -> Tensor:
        """Return `down(activation(up(x)))`."""
        x_BTD = _passed(self.canon_in, x_BTD, ctx)
        h_BTF = _passed(self.canon_up, self.up(x_BTD), ctx)
        y_BTD: Tensor = self.down(self.activation(h_BTF))
        return y_BTD

    def flops(self) -> int:
        """Count forward FLOPs per token of the matrix products."""
        return 2 * weights(self)


def _passed(canon: Canon | None, x_BTD: Tensor, ctx: Context | None) -> Tensor:
    if canon is None:
        return x_BTD
    assert ctx is not None, "the decoder gives one"
    y_BTD: Tensor = canon(x_BTD, ctx)
    return y_BTD


class GatedFeedForward(FeedForward):
    """Gated feed-forward network: `down(activation(gate(x)) * up(x))`.

    The default width is Llama's: two thirds of `4 * dim`, times `multiplier`, rounded up to a
    multiple of `multiple_of`. With two thirds, the three matrices have as many parameters as the
    two of FeedForward.
    """

    def __init__(
        self,
        dim: int,
        bias: bool,
        *,
        width: int | None = None,
        multiple_of: int = 8,
        multiplier: float = 1.0,
        **options: Any,
    ) -> None:
        message = f"multiple_of {multiple_of} and multiplier {multiplier:g} must be above 0"
        need(multiple_of >= 1 and 0 < multiplier < _WIDEST, message)
        default_width = llama_width(dim, multiple_of, multiplier)
        super().__init__(dim, bias, width=default_width if width is None else width, **options)
        self.gate = Linear(dim, self.width, bias=bias)
        self.canon_gate = None if self.canon_up is None else Canon(self.width)

    def forward(self, x_BTD: Tensor, ctx: Context | None = None) -> Tensor:
        """Return `down(activation(gate(x)) * up(x))`."""
        x_BTD = _passed(self.canon_in, x_BTD, ctx)
        h_BTF = _passed(self.canon_up, self.up(x_BTD), ctx)
        gate_BTF = _passed(self.canon_gate, self.gate(self._gated_by(x_BTD, h_BTF)), ctx)
        y_BTD: Tensor = self.down(self.activation(gate_BTF) * h_BTF)
        return y_BTD

    def _gated_by(self, x_BTD: Tensor, h_BTF: Tensor) -> Tensor:
        """Return the gate's input: the network's input, unless a subclass overrides this."""
        del h_BTF
        return x_BTD


def llama_width(dim: int, multiple_of: int, multiplier: float = 1.0) -> int:
    """Return the hidden width that Meta's Llama code computes: truncate, scale, round up.

    >>> llama_width(4096, 256), llama_width(4096, 1024, 1.3), llama_width(8192, 4096, 1.3)
    (11008, 14336, 28672)
    """
    width = int(multiplier * int(2 * 4 * dim / 3))
    return multiple_of * -(-width // multiple_of)


@FEEDFORWARDS.register("relu")
class ReLU(FeedForward):
    """Use max(0, x) between two linear maps (Vaswani et al. 2017, arXiv:1706.03762)."""

    activation = staticmethod(F.relu)


@FEEDFORWARDS.register("linear")
class LinearFeedForward(FeedForward):
    """Use no activation between two linear maps: a control (Shazeer 2020, 2002.05202, has none).

    The effect of an activation is the difference in loss between a network with the activation and
    this network.
    """

    activation = staticmethod(_same)


@FEEDFORWARDS.register("relu2")
class SquaredReLU(FeedForward):
    """Use max(0, x)^2 between two linear maps: ReLU^2 (Primer, So et al. 2021, 2109.08668)."""

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        """Return max(0, x)^2."""
        return F.relu(x).square()


class _WithGELU(FeedForward):
    """Use x * Phi(x) as the activation.

    `approximate: tanh` is the approximation of Phi that GPT-2 and Gemma use.
    """

    def __init__(
        self,
        dim: int,
        bias: bool,
        *,
        approximate: Literal["none", "tanh"] = "none",
        **options: Any,
    ) -> None:
        super().__init__(dim, bias, **options)
        self.activation = lambda x: F.gelu(x, approximate=approximate)


@FEEDFORWARDS.register("gelu")
class GELU(_WithGELU):
    """Use x * Phi(x) between two linear maps (Hendrycks & Gimpel 2016, arXiv:1606.08415)."""


@FEEDFORWARDS.register("silu")
class SiLU(FeedForward):
    """Use x * sigmoid(x), also called Swish (Ramachandran et al. 2017, arXiv:1710.05941)."""

    activation = staticmethod(F.silu)


@FEEDFORWARDS.register("glu")
class GLU(GatedFeedForward):
    """Gate with a sigmoid: `down(sigmoid(gate(x)) * up(x))` (Dauphin et al. 2016, 1612.08083).

    If the gate reads the hidden vector h = up(x) instead of the input, the network is
    `down(h * sigmoid(gate(h)))`: an activation of one vector, with a square gate matrix.
    """

    activation = staticmethod(torch.sigmoid)

    def __init__(
        self,
        dim: int,
        bias: bool,
        *,
        gate_reads: Literal["input", "hidden"] = "input",
        **options: Any,
    ) -> None:
        super().__init__(dim, bias, **options)
        self.gate_reads = gate_reads
        if gate_reads == "hidden":
            self.gate = Linear(self.width, self.width, bias=bias)

    def _gated_by(self, x_BTD: Tensor, h_BTF: Tensor) -> Tensor:
        """Return the gate's input: x, or the hidden vector up(x)."""
        return x_BTD if self.gate_reads == "input" else h_BTF


@FEEDFORWARDS.register("bilinear")
class Bilinear(GatedFeedForward):
    """Gate without an activation: `down(gate(x) * up(x))` (Shazeer 2020, arXiv:2002.05202)."""

    activation = staticmethod(_same)


@FEEDFORWARDS.register("reglu")
class ReGLU(GatedFeedForward):
    """Gate with ReLU: `down(relu(gate(x)) * up(x))` (Shazeer 2020, arXiv:2002.05202)."""

    activation = staticmethod(F.relu)


@FEEDFORWARDS.register("geglu")
class GEGLU(_WithGELU, GatedFeedForward):
    """Gate with GELU: `down(gelu(gate(x)) * up(x))` (Shazeer 2020, arXiv:2002.05202)."""


@FEEDFORWARDS.register("swiglu")
class SwiGLU(GatedFeedForward):
    """Gate with SiLU: `down(silu(gate(x)) * up(x))` (Shazeer 2020, arXiv:2002.05202)."""

    activation = staticmethod(F.silu)
