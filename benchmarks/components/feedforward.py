"""Micro-benchmark of activations and feed-forward networks, alone and in a training step."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.components.step import steps
from benchmarks.components.timing import (
    Controls,
    Ratio,
    Setup,
    Table,
    Work,
    both_ways,
    compiled,
    copied,
    forward_only,
    in_turns,
)
from llama_ablate.model.components import REGISTRIES

_NETWORKS = ("relu", "gelu", "silu", "glu", "bilinear", "reglu", "geglu", "swiglu")


class Activation(nn.Module):
    """Activation function from elementary operations, as a module that can be compiled."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        """Compute the activation with one torch operation per symbol of its formula."""
        if self.name == "gelu":
            return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
        if self.name == "gelu-tanh":
            return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return x * torch.sigmoid(x) if self.name == "silu" else torch.clamp(x, min=0)


_FUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def tables(setup: Setup) -> list[Table]:
    """Time activations, feed-forward networks of equal parameters, and training steps."""
    swaps: dict[str, dict[str, Any]] = {
        name: {"feedforward": _matched(name, 256)} for name in _NETWORKS
    }
    swaps |= {"swiglu, without rope": {**swaps["swiglu"], "position": "none"}}
    step = steps("training step", swaps, setup, against="relu")
    return [_alone(setup), _equal(setup), _by_width(setup), step]


def _alone(setup: Setup) -> Table:
    """Time the forward pass of each activation alone."""
    x, larger = setup.tensors(setup.rows, setup.dim)
    again, longer = (forward_only(F.gelu, of) for of in (x, larger))
    return in_turns(
        "activation alone, forward",
        {"copy": copied(x)} | {n: forward_only(f, x) for n, f in _activations(setup).items()},
        setup,
        against="copy",
        controls=Controls("gelu, fused", again, longer, "20% more rows"),
        note=f"{setup.rows} x {setup.dim} {setup.dtype}",
    )


def _equal(setup: Setup) -> Table:
    """Time feed-forward networks of equal parameters, and their matrix products alone."""
    few = max(1, setup.rows // 8)
    rows, larger = setup.tensors(few, setup.dim)
    networks = {name: _network(_matched(name, setup.dim), setup.dim, setup) for name in _NETWORKS}
    again, longer = (
        both_ways(_network(_matched("gelu", setup.dim), setup.dim, setup), of)
        for of in (rows, larger)
    )
    products = "matrix products alone"
    return in_turns(
        "network of equal parameters, forward and backward",
        {products: both_ways(_products(setup), rows)}
        | {name: both_ways(module, rows) for name, module in networks.items()},
        setup,
        against=products,
        controls=Controls("gelu", again, longer, "20% more rows"),
        note=f"{few} x {setup.dim} {setup.dtype}; width {4 * setup.dim}, gated ones 2/3",
    )


def _activations(setup: Setup) -> dict[str, Callable[[Tensor], Tensor]]:
    activations: dict[str, Callable[[Tensor], Tensor]] = {}
    for name, fused in _FUSED.items():
        activations[f"{name}, naive"] = Activation(name)
        activations[f"{name}, fused"] = fused
        if setup.compiled:
            activations[f"{name}, compiled"] = compiled(Activation(name))
    return activations


def _matched(name: str, dim: int) -> dict[str, object]:
    gated = name in ("glu", "bilinear", "reglu", "geglu", "swiglu")
    width = round(8 * dim / 3 / 8) * 8 if gated else 4 * dim
    return {"name": name, "width": width}


def _network(entry: dict[str, object], dim: int, setup: Setup) -> nn.Module:
    registry = REGISTRIES["feedforward"]
    module: nn.Module = registry.build(registry.resolve(entry), dim=dim, bias=False)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.02)
    return module.to(setup.device, setup.torch_dtype)


def _by_width(setup: Setup) -> Table:
    """Time SwiGLU networks of model width 256 with hidden widths 682, 704 and 768.

    They are 2/3 of 4 x 256, and the next multiples of 64 and 256.
    """
    rows, larger = setup.tensors(setup.rows, 256)

    def of(width: int, x: Tensor = rows) -> Work:
        return both_ways(_network({"name": "swiglu", "width": width}, 256, setup), x)

    return in_turns(
        "width, forward and backward",
        {f"width {width}": of(width) for width in (682, 704, 768)},
        setup,
        against="width 682",
        controls=Controls("width 682", of(682), of(682, larger), "20% more rows"),
        note=f"swiglu, {setup.rows} x 256 {setup.dtype}",
    )


def _products(setup: Setup) -> nn.Module:
    up = nn.Linear(setup.dim, 4 * setup.dim, bias=False)
    down = nn.Linear(4 * setup.dim, setup.dim, bias=False)
    return nn.Sequential(up, down).to(setup.device, setup.torch_dtype)


def ratios(tables: Sequence[Table]) -> list[Ratio]:
    """Return ratios of times for activations, gated networks, widths and rotary embeddings."""
    alone, network, widths, step = tables
    return [
        Ratio(name, table.ratio(case, to))
        for name, table, case, to in (
            ("GELU / ReLU alone, fused", alone, "gelu, fused", "relu, fused"),
            ("SiLU / GELU alone, fused", alone, "silu, fused", "gelu, fused"),
            ("SwiGLU / GELU, networks of equal parameters", network, "swiglu", "gelu"),
            ("SwiGLU / ReLU, networks of equal parameters", network, "swiglu", "relu"),
            ("SwiGLU of width 704 / 682 (3% more work)", widths, "width 704", "width 682"),
            ("SwiGLU / ReLU in a training step", step, "swiglu", "relu"),
            ("RoPE / none in a training step", step, "swiglu", "swiglu, without rope"),
        )
    ]
