"""Build a decoder from stored tensors: names, shapes, dtypes and memory are checked first."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llama_ablate.config.experiment import Model
from llama_ablate.config.spec import ModelSpec
from llama_ablate.design.variants import resolve
from llama_ablate.errors import ConfigError, need
from llama_ablate.files import disk
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import Decoder, build
from llama_ablate.training.compute import free_bytes

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Entry:
    """Names of a stored tensor and of our parameters that it stacks along the first axis."""

    theirs: str
    ours: tuple[str, ...]
    #: Whether the matrix is stored as input x output, as in GPT-2; ours are output x input.
    transposed: bool = False
    #: Our parameters are the stored tensor times `scale` plus `offset`.
    scale: float = 1.0
    offset: float = 0.0

    def split(self, stored: Tensor, rows: Sequence[int]) -> list[Tensor]:
        """Split a stored tensor into our parameters, given the number of rows of each parameter."""
        tensor = stored.T if self.transposed else stored
        if (self.scale, self.offset) != (1.0, 0.0):
            tensor = tensor.double() * self.scale + self.offset
        return list(tensor.split_with_sizes([*rows]))

    def joined(self, ours: Sequence[Tensor]) -> Tensor:
        """Join our parameters into the stored tensor."""
        tensor = torch.cat([*ours]) if len(ours) > 1 else ours[0]
        if (self.scale, self.offset) != (1.0, 0.0):
            tensor = ((tensor.double() - self.offset) / self.scale).to(tensor.dtype)
        return (tensor.T if self.transposed else tensor).contiguous()


@dataclass(frozen=True)
class Stored:
    """Tensors of a checkpoint: shapes and dtypes by name, and a function to read a tensor."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype]
    read: Callable[[str], Tensor]


def spec_of(values: Mapping[str, Any], where: Path) -> ModelSpec:
    """Build the spec that a checkpoint's configuration describes.

    Raises ConfigError, naming the file, for sizes that make no model.
    """
    try:
        spec = resolve(Model.check(dict(values)))
        count(spec)
    except ConfigError as error:
        key = f"{error.where[-1]}: " if error.where else ""
        raise ConfigError(f"'{where}' describes no model: {key}{error.message}") from None
    return spec


def fill(
    spec: ModelSpec,
    entries: Sequence[Entry],
    stored: Stored,
    where: Path,
    *,
    dtype: torch.dtype | None = None,
    unneeded: Callable[[str], bool] = lambda _: False,
) -> Decoder:
    """Build a decoder with a checkpoint's weights, in `dtype` or, by default, without loss.

    All names and shapes are compared, and the memory counted, before the first tensor is read.
    Tensors that `unneeded` accepts are ignored. Raises ConfigError, naming the file, if a check
    fails.
    """
    model = build(spec, "meta")
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    _check_names(entries, stored, where, unneeded)
    for entry in entries:
        rows = sum(shapes[name][0] for name in entry.ours)
        expected = (rows, *shapes[entry.ours[0]][1:])
        expected = expected[::-1] if entry.transposed else expected
        shape = tuple(stored.shapes[entry.theirs])
        differs = f"{entry.theirs} is {_format_shape(shape)}, where its configuration asks for"
        need(shape == expected, f"'{where}': {differs} {_format_shape(expected)}")
    dtype = dtype or _widest(entries, stored, where)
    check_memory(count(spec).parameters * dtype.itemsize, f"'{where}'")
    tensors: dict[str, Tensor] = {}
    for entry in entries:
        pieces = entry.split(stored.read(entry.theirs), [shapes[name][0] for name in entry.ours])
        for name, piece in zip(entry.ours, pieces, strict=True):
            tensors[name] = piece.to(dtype, memory_format=torch.contiguous_format, copy=True)
    if spec.tie:
        tensors["head.weight"] = tensors["embedding.weight"]
    return assign(model, tensors).eval().requires_grad_(requires_grad=False)


def assign(model: Decoder, tensors: Mapping[str, Tensor]) -> Decoder:
    """Replace the parameters of a model on the meta device by tensors; return the model."""
    model.load_state_dict(tensors, assign=True)
    for module in model.modules():  # buffers that are not stored, such as position tables
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                empty = torch.zeros_like(buffer, device="cpu")
                module.register_buffer(name, empty, persistent=False)
    if model.spec.tie:
        model.head.weight = model.embedding.weight
    return model


def _widest(entries: Sequence[Entry], stored: Stored, where: Path) -> torch.dtype:
    """Return the narrowest dtype that represents every stored tensor without loss."""
    dtypes = {entry.theirs: stored.dtypes[entry.theirs] for entry in entries}
    allowed = ", ".join(map(_name_dtype, DTYPES))
    for name, dtype in dtypes.items():
        message = f"'{where}': {name} is {_name_dtype(dtype)}; allowed: {allowed}"
        need(dtype in DTYPES, message)
    return reduce(torch.promote_types, dtypes.values())


def _check_names(
    entries: Sequence[Entry], stored: Stored, where: Path, unneeded: Callable[[str], bool]
) -> None:
    wanted = [entry.theirs for entry in entries]
    differences = {
        "lacks": [name for name in wanted if name not in stored.shapes],
        "has besides": [n for n in stored.shapes if n not in {*wanted} and not unneeded(n)],
    }
    said = [f"{word} {', '.join(names[:3])}" for word, names in differences.items() if names]
    what = "does not hold what its configuration describes"
    need(not said, f"'{where}' {what}: it {' and '.join(said)}")


def check_memory(needed: int, what: str, device: torch.device | str = "cpu") -> None:
    """Raise ConfigError if something needs more bytes than a device has free."""
    free = free_bytes(device)
    sizes = f"{needed / 2**30:,.1f} GiB; {free / 2**30:,.1f} GiB are free"
    need(needed <= free, f"{what} needs {sizes}")


def rename(name: str, rules: Mapping[str, str]) -> str:
    """Apply renaming rules, pairs of pattern and replacement, to a name, one after the other."""
    for pattern, replacement in rules.items():
        name = re.sub(pattern, replacement, name)
    return name


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises ConfigError for a file that is missing, too large or no JSON."""
    need(path.is_file(), f"there is no file '{path}'")
    try:
        values = json.loads(disk.read(path))
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"'{path}' is no JSON: {reason}") from None
    need(isinstance(values, dict), f"'{path}' holds no JSON object")
    return dict(values)


def _format_shape(shape: Sequence[int]) -> str:
    return " x ".join(f"{n}" for n in shape) or "a single number"


def _name_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
