"""Trace of a forward pass: shape, type and statistics of every intermediate tensor."""

import inspect
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode

from llama_ablate.errors import ConfigError
from llama_ablate.model import linear
from llama_ablate.model.decoder import Decoder

_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True)
class Traced:
    """Output tensor of one operation: its module, statistics and source line.

    Mean, root mean square and largest magnitude are over the tensor's finite numbers, since a
    causal mask has -inf. The three statistics are None if no number is finite.
    """

    #: Name of the running module, as in `named_modules`; empty for the decoder itself.
    module: str
    operation: str
    shape: tuple[int, ...]
    dtype: str
    mean: float | None
    rms: float | None
    max: float | None
    #: Share of the tensor's numbers that are finite.
    finite: float
    #: The source line.
    code: str


def trace(model: Decoder, tokens: Sequence[int]) -> list[Traced]:
    """Run one forward pass over tokens; return the output of each operation, in order.

    Attention is computed by explicit products, whatever the kernel. Raises ConfigError for a text
    that is empty or longer than the context.
    """
    context = model.spec.context
    if not 0 < len(tokens) <= context:
        raise ConfigError(f"the prompt has {len(tokens):,} tokens; allowed: 1 to {context:,}")
    batch = torch.tensor([list(tokens)], device=model.embedding.weight.device)
    with torch.inference_mode(), _running(model) as path:
        recording = _Recording(path)
        with recording:
            model(batch, maps=[])
    return recording.rows


class _Recording(TorchFunctionMode):
    """Recorder of the tensors that torch operations return, including views."""

    def __init__(self, path: list[str]) -> None:
        super().__init__()
        self.path = path
        self.rows: list[Traced] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operation of torch, and record its result."""
        del types
        result = func(*args, **(kwargs or {}))
        name = func.__name__
        in_place = name.endswith("_") and not name.startswith("__")
        for part in result if isinstance(result, tuple | list) else [result]:
            # A conversion to the type that a tensor has already returns the tensor itself.
            same = any(part is argument for argument in args) and not in_place
            if isinstance(part, Tensor) and not same:
                self.rows.append(self._row(name.strip("_"), part))
        return result

    def _row(self, operation: str, tensor: Tensor) -> Traced:
        numbers = tensor.double().flatten()
        finite = numbers[numbers.isfinite()]
        some = finite.numel() > 0
        return Traced(
            module=self.path[-1],
            operation=operation,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            mean=finite.mean().item() if some else None,
            rms=finite.square().mean().sqrt().item() if some else None,
            max=finite.abs().max().item() if some else None,
            finite=finite.numel() / max(1, numbers.numel()),
            code=_code(inspect.currentframe()),
        )


def _code(frame: FrameType | None) -> str:
    """Return the source line of the nearest caller outside torch, `linear` and this module."""
    while frame and frame.f_code.co_filename.startswith((_TORCH, linear.__file__, __file__)):
        frame = frame.f_back
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno) if frame else ""
    return line.partition("  #")[0].strip()


@contextmanager
def _running(model: nn.Module) -> Iterator[list[str]]:
    """Yield a list, updated in place, of the names of the running modules, innermost last."""
    path: list[str] = []
    names = {module: name for name, module in model.named_modules()}

    def enter(module: nn.Module, _args: object) -> None:
        path.append(names[module])

    def leave(_module: nn.Module, _args: object, _result: object) -> None:
        path.pop()

    with register_module_forward_pre_hook(enter), register_module_forward_hook(leave):
        yield path
