"""The kernels of flash-linear-attention, where a GPU and the package (the extra `fla`) are there.

Yang & Zhang 2024, https://github.com/fla-org/flash-linear-attention. They are written in Triton, for
16-bit inputs; states stay in float32. Without them the same functions are computed in plain torch.
"""

import importlib
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from llama_ablate.model.kernels import Kernel

#: A kernel: `kernel(q, k, v, g, [beta], scale=..., initial_state=..., output_final_state=...)`.
Flash = Callable[..., tuple[Tensor, Tensor]]


def flash_kernel(module: str, name: str, kernel: Kernel, x: Tensor) -> tuple[Flash, torch.dtype] | None:
    """Return the package's function and the precision of its inputs, or None to use plain torch.

    It is taken for `fused`, on a GPU, in 16 bits (under autocast, or where the model is).
    """
    if kernel != "fused" or not on_gpu(x):
        return None
    device = x.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else x.dtype
    if dtype not in (torch.bfloat16, torch.float16):
        return None
    flash = _imported(module, name)
    return None if flash is None else (flash, dtype)


def on_gpu(x: Tensor) -> bool:
    """Whether Triton can compute on a tensor where it lies."""
    return x.is_cuda


@cache
def _imported(module: str, name: str) -> Flash | None:
    try:
        flash: Flash = getattr(importlib.import_module(module), name)
    except ImportError:
        return None
    return flash
