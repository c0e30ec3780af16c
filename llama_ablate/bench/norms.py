"""Micro-benchmark of LayerNorm and RMSNorm: written out, fused and compiled."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.bench.step import steps
from llama_ablate.bench.timing import (
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


class NaiveLayerNorm(nn.Module):
    """LayerNorm written out: an operation for each symbol of its formula."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return `gain * (x - mean) / (std + eps) + bias`."""
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.gain * (x - mean) / (std + 1e-6) + self.bias


class NaiveRMSNorm(nn.Module):
    """RMSNorm written out."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return `gain * x / sqrt(mean(x^2) + eps)`."""
        return self.gain * (x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class TorchRMSNorm(NaiveRMSNorm):
    """RMSNorm by torch's own function."""

    def forward(self, x: Tensor) -> Tensor:
        """Return `F.rms_norm`."""
        return F.rms_norm(x, self.gain.shape, self.gain, 1e-6)


def run(setup: Setup) -> tuple[list[Table], list[Ratio]]:
    """Time both norms alone, forward and both ways, and in a training step."""
    x = setup.tensor(setup.rows, setup.dim)
    makers = _makers(setup)
    modules = {
        name: make(setup.dim).to(setup.device, setup.torch_dtype) for name, make in makers.items()
    }
    size = x.numel() * x.element_size()
    note = f"{setup.rows} x {setup.dim} {setup.dtype}, {size / 2**20:.0f} MiB"
    tables = []
    for title, wrapped in (("forward", forward_only), ("forward and backward", both_ways)):
        cases = {"copy (control)": copied(x)} | {n: wrapped(m, x) for n, m in modules.items()}
        tables.append(in_turns(title, cases, setup, against="copy (control)", note=note))
    swaps = {name: {"norm": make} for name, make in makers.items()}
    tables.append(steps("training step", swaps, setup, against="RMSNorm, fused"))
    return tables, _ratios(tables)


def _makers(setup: Setup) -> dict[str, Callable[[int], nn.Module]]:
    """Return, by name, a function from a width to a norm."""
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


def _ratios(tables: list[Table]) -> list[Ratio]:
    forward, _, step = tables
    return [
        Ratio(f"LayerNorm / RMSNorm {where}, {kind}", table.ratio(layernorm, rmsnorm).times())
        for kind in ("naive", "fused", "compiled")
        for layernorm, rmsnorm in [(f"LayerNorm, {kind}", f"RMSNorm, {kind}")]
        for table, where in ((forward, "alone"), (step, "in a training step"))
        if {layernorm, rmsnorm} <= table.seconds.keys()
    ]
