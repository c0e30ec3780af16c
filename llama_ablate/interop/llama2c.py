"""llama2.c's model file: seven int32, then every weight as float32, layer upon layer."""

import math
import struct
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from llama_ablate.errors import need
from llama_ablate.interop.families import META
from llama_ablate.interop.stored_tensors import Entry, Stored, fill, spec_of
from llama_ablate.model.decoder import Decoder, build

_HEADER = struct.Struct("<7i")
_TABLES = "cosines and sines"  # numbers of the file that we compute
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
    is_whole = len(head) == _HEADER.size
    need(is_whole, f"'{file}' is too short for the header of a llama2.c model")
    dim, width, layers, heads, kv_heads, vocab, context = _HEADER.unpack(head)
    message = f"'{file}' is version {width} of llama2.c's format; supported: version 0"
    need(dim != _MAGIC, message)
    header = ", ".join(map(str, _HEADER.unpack(head)))
    are_sizes = min(dim, width, layers, heads, kv_heads, context) >= 1 and vocab != 0
    fits = are_sizes and dim % heads == 0
    need(fits, f"'{file}' is no llama2.c model: its header reads {header}")
    params = {"dim": dim, "n_layers": layers, "n_heads": heads, "n_kv_heads": kv_heads}
    model = META.model({**params, "vocab_size": abs(vocab), "tie_word_embeddings": vocab > 0})
    network = {"name": "swiglu", "width": width}
    spec = spec_of({**model, "context": context, "feedforward": network}, file)
    shapes = {name: tuple(p.shape) for name, p in build(spec, "meta").named_parameters()}
    layered = [f"blocks.{i}.{name}" for name in _LAYERED for i in range(layers)]
    order = ["embedding.weight", *layered, "norm.gain", _TABLES]
    order += [] if spec.tie else ["head.weight"]
    numbers = {name: math.prod(shape) for name, shape in shapes.items()}
    numbers[_TABLES] = context * spec.head_dim
    ends = list(accumulate((4 * numbers[name] for name in order), initial=_HEADER.size))
    need(ends[-1] == size, f"'{file}' has {size:,} bytes where its header asks for {ends[-1]:,}")
    starts = dict(zip(order, ends, strict=False))

    def get(name: str) -> Tensor:
        shape = shapes[name]
        values = np.memmap(file, "<f4", "r", starts[name], shape)
        return torch.from_numpy(np.array(values, np.float32))

    entries = [Entry(name, (name,)) for name in order if name != _TABLES]
    stored = Stored(shapes, dict.fromkeys(shapes, torch.float32), get)
    return fill(spec, entries, stored, file, dtype=dtype)
