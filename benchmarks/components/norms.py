"""Micro-benchmark of LayerNorm and RMSNorm: naive, fused and compiled."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.components.step import steps
from benchmarks.components.timing import (
    Controls,
    Ratio,
    Setup,
    Table,
    both_ways,
    compiled,
    copied,
    forward_only,
    in_turns,
)
from llama_ablate.model.norms import LayerNorm, RMSNorm

_MAIN = "RMSNorm, naive"  # the case from which the controls are made


class NaiveLayerNorm(nn.Module):
    """LayerNorm with one torch operation per symbol of its formula."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Compute `gain * (x - mean) / (std + eps) + bias`."""
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.gain * (x - mean) / (std + 1e-6) + self.bias


class NaiveRMSNorm(nn.Module):
    """RMSNorm with one torch operation per symbol of its formula."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Compute `gain * x / sqrt(mean(x^2) + eps)`."""
        return self.gain * (x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class TorchRMSNorm(NaiveRMSNorm):
    """RMSNorm by torch's function `F.rms_norm`."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize by `F.rms_norm`."""
        return F.rms_norm(x, self.gain.shape, self.gain, 1e-6)


def tables(setup: Setup) -> list[Table]:
    """Time both norms forward, forward and backward, and in a training step."""
    x, larger = setup.tensors(setup.rows, setup.dim)
    makers = _makers(setup)

    def made(name: str) -> nn.Module:
        return makers[name](setup.dim).to(setup.device, setup.torch_dtype)

    modules = {name: made(name) for name in makers}
    size = x.numel() * x.element_size()
    note = f"{setup.rows} x {setup.dim} {setup.dtype}, {size / 2**20:.0f} MiB"
    timed = []
    for title, wrapped in (("forward", forward_only), ("forward and backward", both_ways)):
        again, more = (wrapped(made(_MAIN), of) for of in (x, larger))
        timed.append(
            in_turns(
                title,
                {"copy": copied(x)} | {n: wrapped(m, x) for n, m in modules.items()},
                setup,
                against="copy",
                controls=Controls(_MAIN, again, more, "20% more rows"),
                note=note,
            )
        )
    swaps = {name: {"norm": make} for name, make in makers.items()}
    return [*timed, steps("training step", swaps, setup, against="RMSNorm, fused")]


def _makers(setup: Setup) -> dict[str, Callable[[int], nn.Module]]:
    """Return functions that make a norm for a width, by name of the implementation."""
    makers: dict[str, Callable[[int], nn.Module]] = {
        "LayerNorm, naive": NaiveLayerNorm,
        "RMSNorm, naive": NaiveRMSNorm,
        "LayerNorm, fused": lambda dim: LayerNorm(dim, bias=True),
        "RMSNorm, fused": RMSNorm,
        "RMSNorm, torch's": TorchRMSNorm,
    }
    if setup.compiled:
        makers["LayerNorm, compiled"] = lambda dim: compiled(NaiveLayerNorm(dim))
        makers["RMSNorm, compiled"] = lambda dim: compiled(NaiveRMSNorm(dim))
    return makers


def ratios(tables: Sequence[Table]) -> list[Ratio]:
    """Return ratios of times of LayerNorm to RMSNorm, by implementation."""
    forward, _, step = tables
    return [
        Ratio(f"LayerNorm / RMSNorm {where}, {kind}", table.ratio(layernorm, rmsnorm))
        for kind in ("naive", "fused", "compiled")
        for layernorm, rmsnorm in [(f"LayerNorm, {kind}", f"RMSNorm, {kind}")]
        for table, where in ((forward, "alone"), (step, "in a training step"))
        if {layernorm, rmsnorm} <= table.seconds.keys()
    ]
