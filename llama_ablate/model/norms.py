"""Normalisation of each token's vector: `f(x_BTD) -> x_BTD`."""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from llama_ablate.config.registry import Registry
from llama_ablate.config.spec import SIZES
from llama_ablate.errors import need


class NormInterface(Protocol):
    """Interface of a norm."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the normalised vectors, of any width."""


NORMS = Registry("norm", sizes=(*SIZES, "layer"), interface=NormInterface)


def _not_negative(eps: float) -> float:
    need(0 <= eps < 1, f"eps {eps:g}: must be 0 or more, and below 1")
    return eps


@NORMS.register("layernorm")
class LayerNorm(nn.Module):
    """Centre each vector and scale it to unit variance (Ba et al. 2016, arXiv:1607.06450).

    It has a gain per coordinate, and a bias if the model has biases. `unbiased` divides by the
    sample deviation plus eps, `x.std() + eps`, as many tutorials write it: with n - 1 in place of
    n, and eps added after the square root instead of before.
    """

    def __init__(self, dim: int, bias: bool, *, eps: float = 1e-5, unbiased: bool = False) -> None:
        super().__init__()
        need(dim >= 2 or not unbiased, "an unbiased deviation needs 2 coordinates or more")
        self.eps, self.unbiased = _not_negative(eps), unbiased
        self.gain = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the normalised vectors, in the gain's precision."""
        if not self.unbiased:
            return F.layer_norm(x_BTD, self.gain.shape, self.gain, self.bias, self.eps)
        x_BTD = x_BTD.to(torch.promote_types(x_BTD.dtype, torch.float32))
        std_BT1, mean_BT1 = torch.std_mean(x_BTD, dim=-1, keepdim=True)
        y_BTD = (self.gain * ((x_BTD - mean_BT1) / (std_BT1 + self.eps))).to(self.gain.dtype)
        return y_BTD if self.bias is None else y_BTD + self.bias


@NORMS.register("rmsnorm")
class RMSNorm(nn.Module):
    """Scale by the root mean square, without centring (Zhang & Sennrich 2019, arXiv:1910.07467).

    `gain: false` leaves out the trained gain of each coordinate (Lingle 2024, arXiv:2404.05728).
    """

    def __init__(self, dim: int, *, eps: float = 1e-6, gain: bool = True) -> None:
        super().__init__()
        self.eps = _not_negative(eps)
        self.gain = nn.Parameter(torch.ones(dim)) if gain else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the normalised vectors, in the precision of a gain."""
        gain_D = self.gain  # a module's parameters are slow to read
        if gain_D is None:
            return F.rms_norm(x_BTD, x_BTD.shape[-1:], eps=self.eps)
        if x_BTD.device.type == "cpu" and torch.is_grad_enabled():
            y_BTD: Tensor = _RMSNormOnCPU.apply(x_BTD, gain_D, self.eps)  # type: ignore[no-untyped-call]
            return y_BTD
        # With two precisions, torch would not use its kernel, and would return the vectors'
        # precision.
        return F.rms_norm(x_BTD.type_as(gain_D), gain_D.shape, gain_D, self.eps)


@NORMS.register("dyt")
class DyT(nn.Module):
    """Apply tanh with a learned slope instead of normalising (Zhu et al. 2025, arXiv:2503.10622).

    The output is `gain * tanh(slope * x)`, plus a bias if the model has biases; no statistic of x
    is used. The paper's language models scale embeddings by the root of the width; without that
    scaling, a slope of 0.5 times that root corresponds to the paper's 0.5.
    """

    def __init__(self, dim: int, bias: bool, *, slope: float = 0.5) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.full((1,), slope))
        self.gain = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return `gain * tanh(slope * x) + bias`."""
        y_BTD = self.gain * torch.tanh(self.slope * x_BTD)
        return y_BTD if self.bias is None else y_BTD + self.bias


@NORMS.register("derf")
class Derf(nn.Module):
    """Apply the error function instead of normalising (Chen et al. 2025, arXiv:2512.10938).

    The output is `gain * erf(slope * x + shift)`, plus a bias if the model has biases. Slope and
    shift are one learned number each; no statistic of x is used, as in `dyt`.
    """

    def __init__(self, dim: int, bias: bool, *, slope: float = 0.5) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.full((1,), slope))
        self.shift = nn.Parameter(torch.zeros(1))
        self.gain = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return `gain * erf(slope * x + shift) + bias`."""
        y_BTD = self.gain * torch.erf(self.slope * x_BTD + self.shift)
        return y_BTD if self.bias is None else y_BTD + self.bias


@NORMS.register("none")
class NoNorm(nn.Identity):
    """Leave the vectors unchanged: the control for every norm (Zhang & Sennrich 2019)."""

    def __init__(self) -> None:
        super().__init__()


class _RMSNormOnCPU(torch.autograd.Function):
    """RMSNorm whose backward pass uses torch's fused LayerNorm kernel, for CPUs.

    On CPUs torch has a kernel for LayerNorm, but computes RMSNorm in six operations, and as many in
    the backward pass. This function takes fewer passes over memory, so that an ablation of norms
    does not measure a missing kernel. Tests compare it with `F.rms_norm` and with float64
    gradients.
    """

    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, gain_D: Tensor, eps: float) -> Tensor:
        dtype, x_BTD = gain_D.dtype, x_BTD.to(torch.promote_types(x_BTD.dtype, torch.float32))
        rms_BT1 = torch.linalg.vector_norm(x_BTD, dim=-1, keepdim=True)
        scale_BT1 = rms_BT1.square_().div_(x_BTD.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x_BTD, scale_BT1, gain_D)
        y_BTD: Tensor = (x_BTD * scale_BT1).mul_(gain_D).to(dtype)
        return y_BTD

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x_BTD, scale_BT1, gain_D = ctx.saved_tensors  # type: ignore[attr-defined]
        (grad_BTD,), width = grads, gain_D.shape[0]
        mean_BT1 = torch.zeros_like(scale_BT1)
        grad_x_BTD, grad_gain_D, _ = torch.ops.aten.native_layer_norm_backward(
            *(grad_BTD, x_BTD, [width], mean_BT1, scale_BT1, gain_D, None), [True, True, False]
        )
        # LayerNorm's gradient lacks its mean over coordinates, because LayerNorm centres: add it.
        taken_BT1 = (grad_BTD.reshape(-1, width) @ gain_D).view(scale_BT1.shape).mul_(scale_BT1)
        return grad_x_BTD.add_(taken_BT1, alpha=1 / width), grad_gain_D, None
