"""llama2.c's model file: seven int32, then every weight as float32, layer upon layer."""

import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from llama_ablate.errors import ConfigError
from llama_ablate.interop.canonical_spec import shared_heads
from llama_ablate.interop.stored_tensors import Entry, Stored, fill, spec_of
from llama_ablate.model.decoder import Decoder, build

_HEADER = struct.Struct("<7i")
_MAGIC = 0x616B3432  # marks later versions of the format
#: Our parameter names in the order of the file: each name for all layers, then the next name.
_LAYERED = (
    "attn_norm.gain",
    "attn.q.weight",
    "attn.k.weight",
    "attn.v.weight",
    "attn.out.weight",
    "ffn_norm.gain",
    "ffn.gate.weight",
    "ffn.down.weight",
    "ffn.up.weight",
)


def read(file: Path, dtype: torch.dtype | None = None) -> Decoder:
    """Load the decoder of a llama2.c model file, in `dtype` or float32.

    Raises ConfigError for a header that describes no model, and for a file that is longer or
    shorter than its header says.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        head = opened.read(_HEADER.size)
    if len(head) < _HEADER.size:
        raise ConfigError(f"'{file}' is too short for the header of a llama2.c model")
    dim, width, layers, heads, kv_heads, vocab, context = _HEADER.unpack(head)
    if dim == _MAGIC:
        raise ConfigError(f"'{file}' is version {width} of llama2.c's format; supported: version 0")
    if min(dim, width, layers, heads, kv_heads, context) < 1 or vocab == 0 or dim % heads:
        raise ConfigError(
            f"'{file}' is no llama2.c model: its header reads "
            f"{', '.join(map(str, _HEADER.unpack(head)))}"
        )
    values = {
        "dim": dim,
        "layers": layers,
        "heads": heads,
        "context": context,
        "vocab": abs(vocab),
        "tie": vocab > 0,
        "norm": {"name": "rmsnorm", "eps": 1e-5},
        "position": {"name": "rope", "layout": "interleaved"},
        "attention": shared_heads(heads, kv_heads, {}),
        "feedforward": {"name": "swiglu", "width": width},
        "block": "pre",
    }
    spec = spec_of(values, file)
    shapes = {name: tuple(p.shape) for name, p in build(spec, "meta").named_parameters()}
    order = ["embedding.weight"]
    order += [f"blocks.{i}.{name}" for name in _LAYERED for i in range(layers)]
    order += ["norm.gain"]
    tables = context * spec.head_dim  # cosines and sines, which we compute
    starts, at = {}, _HEADER.size
    for name in order:
        starts[name] = at
        at += 4 * int(np.prod(shapes[name]))
    at += 4 * tables
    if not spec.tie:
        starts["head.weight"] = at
        at += 4 * int(np.prod(shapes["head.weight"]))
    if at != size:
        raise ConfigError(f"'{file}' has {size:,} bytes where its header asks for {at:,}")

    def get(name: str) -> Tensor:
        shape = shapes[name]
        values = np.memmap(file, "<f4", "r", starts[name], shape)
        return torch.from_numpy(np.array(values, np.float32))

    entries = [Entry(name, (name,)) for name in starts]
    stored = Stored(shapes, dict.fromkeys(shapes, torch.float32), get)
    return fill(spec, entries, stored, file, dtype=dtype)
