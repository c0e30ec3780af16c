"""Kernels of flash-linear-attention, for a GPU with that package (the extra `fla`).

Yang & Zhang 2024, https://github.com/fla-org/flash-linear-attention. The kernels are Triton code
for 16-bit inputs, with states in float32. On other devices and for wider inputs, the mixers compute
the same functions in plain torch.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from llama_ablate.model.kernels import Kernel

#: Function from tokens' tensors, gates and a state to the tokens' outputs and the next state.
FlashKernel = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor | None], tuple[Tensor, Tensor]]


def flash_kernel(name: str, kernel: Kernel, x: Tensor) -> FlashKernel | None:
    """Return a kernel of the package `fla.ops` for inputs like `x`, or None to use plain torch.

    A kernel is returned only for the setting `fused`, on a GPU, if products are computed in 16 bits
    and the package is installed.
    """
    if kernel != "fused" or not on_gpu(x):
        return None
    device = x.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
    function = _imported(name) if dtype in (torch.bfloat16, torch.float16) else None
    if function is None:
        return None

    def compute(
        tokens: Sequence[Tensor], gates: Sequence[Tensor], state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        low = (x.to(dtype) for x in tokens)
        options = {"scale": 1.0, "initial_state": state, "output_final_state": True}
        result: tuple[Tensor, Tensor] = function(*low, *gates, **options)
        return result

    return compute


def on_gpu(x: Tensor) -> bool:
    """Return whether a tensor is on a GPU, where Triton can compute with it."""
    return x.is_cuda


@cache
def _imported(name: str) -> Callable[..., tuple[Tensor, Tensor]] | None:
    module, _, function = name.rpartition(".")
    try:
        imported: Callable[..., tuple[Tensor, Tensor]]
        imported = getattr(importlib.import_module(f"fla.ops.{module}"), function)
    except ImportError:
        return None
    return imported
