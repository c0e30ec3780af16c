"""Meta's checkpoint layout: params.json, and consolidated.NN.pth of each model-parallel rank."""

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llama_ablate.config.spec import ModelSpec
from llama_ablate.errors import ConfigError
from llama_ablate.interop.canonical_spec import shared_heads
from llama_ablate.interop.stored_tensors import (
    Entry,
    Stored,
    check_memory,
    fill,
    read_json,
    rename,
    spec_of,
)
from llama_ablate.model.decoder import Decoder, build

_NAMES = {
    r"^embedding\.": "tok_embeddings.",
    r"^norm\.gain$": "norm.weight",
    r"^head\.": "output.",
    r"^blocks\.": "layers.",
    r"\.attn\.(q|k|v)\.": r".attention.w\1.",
    r"\.attn\.out\.": ".attention.wo.",
    r"\.ffn\.gate\.": ".feed_forward.w1.",
    r"\.ffn\.down\.": ".feed_forward.w2.",
    r"\.ffn\.up\.": ".feed_forward.w3.",
    r"\.attn_norm\.gain$": ".attention_norm.weight",
    r"\.ffn_norm\.gain$": ".ffn_norm.weight",
}
_BY_INPUT = re.compile(r"\.(wo|w2)\.weight$")  # split by columns; all other matrices by rows


def read(folder: Path, dtype: torch.dtype | None = None) -> Decoder:
    """Load the decoder of a checkpoint in Meta's layout, in `dtype` or the stored dtype.

    Shards are joined along the axis on which Meta's model-parallel layers cut them. Raises
    ConfigError, naming the file, if a file is missing, damaged, or does not match params.json.
    """
    params = read_json(folder / "params.json")
    shards = _shards(folder)
    dim = params.get("dim")
    tables = [
        shard["tok_embeddings.weight"] for shard in shards if "tok_embeddings.weight" in shard
    ]
    by_input = bool(tables) and len(shards) > 1 and tables[0].shape[-1] != dim
    shapes = {name: _joined_shape(name, shards, by_input) for name in shards[0]}
    spec = _spec(params, shapes, folder / "params.json")
    ours = [name for name, _ in build(spec, "meta").named_parameters()]
    entries = [Entry(rename(name, _NAMES), (name,)) for name in ours]

    def get(name: str) -> Tensor:
        try:
            return _joined(name, shards, by_input)
        except RuntimeError:
            raise ConfigError(f"the shards of '{folder}' do not fit together: {name}") from None

    stored = Stored(shapes, {name: tensor.dtype for name, tensor in shards[0].items()}, get)

    return fill(
        spec, entries, stored, folder, dtype=dtype, unneeded=lambda name: name == "rope.freqs"
    )


def _spec(params: Mapping[str, Any], shapes: Mapping[str, Any], where: Path) -> ModelSpec:
    for key in ("dim", "n_layers", "n_heads"):
        if key not in params:
            raise ConfigError(f"'{where}': the key '{key}' is missing")
    try:
        theta = float(params.get("rope_theta", 10000.0))
        rope: dict[str, Any] = {"name": "rope", "layout": "interleaved", "theta": theta}
        if params.get("use_scaled_rope"):
            factor = float(params.get("rope_scale_factor", 8.0))
            rope |= {"scaling": "llama3", "factor": factor}
        vocab = params.get("vocab_size", -1)
        if vocab == -1:  # Llama 1 and 2 leave it to the tokenizer
            vocab = shapes.get("tok_embeddings.weight", (0,))[0]
        kv_heads = params.get("n_kv_heads") or params["n_heads"]
        eps = params.get("norm_eps", 1e-5)
        values = {
            "dim": params["dim"],
            "layers": params["n_layers"],
            "heads": params["n_heads"],
            "context": _context(rope, eps),
            "vocab": vocab,
            "tie": "output.weight" not in shapes,
            "norm": {"name": "rmsnorm", "eps": eps},
            "position": rope,
            "attention": shared_heads(params["n_heads"], kv_heads, {}),
            "feedforward": {
                "name": "swiglu",
                "multiple_of": params.get("multiple_of", 256),
                "multiplier": float(params.get("ffn_dim_multiplier") or 1.0),
            },
            "block": "pre",
        }
    except (TypeError, ValueError, OverflowError, IndexError) as error:
        raise ConfigError(f"'{where}' has a value of the wrong kind: {error}") from None
    return spec_of(values, where)


def _context(rope: Mapping[str, Any], eps: object) -> int:
    """Infer the context at which a generation of Llama was trained; params.json does not say."""
    if rope.get("scaling"):
        return 131_072
    if rope["theta"] == 500_000.0:
        return 8192
    return 2048 if eps == 1e-6 else 4096


def _shards(folder: Path) -> list[dict[str, Tensor]]:
    files = sorted(folder.glob("consolidated.*.pth"))
    if not files:
        raise ConfigError(f"'{folder}' holds no consolidated.NN.pth")
    expected = [f"consolidated.{i:02d}.pth" for i in range(len(files))]
    if missing := sorted(set(expected) - {file.name for file in files}):
        raise ConfigError(f"'{folder}' has {len(files)} shards but lacks {missing[0]}")
    check_memory(sum(file.stat().st_size for file in files), folder)
    shards = [_load(file) for file in files]
    for file, shard in zip(files, shards, strict=True):
        if set(shard) != set(shards[0]):
            odd = min(set(shard) ^ set(shards[0]))
            raise ConfigError(f"'{file}' and '{files[0]}' differ in their tensors: {odd}")
        if odd_ones := [n for n, t in shard.items() if t.dim() != shards[0][n].dim()]:
            raise ConfigError(f"'{file}' and '{files[0]}' do not fit together: {odd_ones[0]}")
    return shards


def _load(file: Path) -> dict[str, Tensor]:
    try:
        mapped = zipfile.is_zipfile(file)  # files from before torch 1.6 cannot be mapped
        tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except PermissionError:
        raise ConfigError(f"'{file}' cannot be read: no permission") from None
    except Exception as error:  # noqa: BLE001  a hostile or cut file can fail in any way
        kind = type(error).__name__
        raise ConfigError(
            f"'{file}' is damaged or holds more than tensors ({kind}); nothing in it was run"
        ) from None
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) and _is_plain(tensor)
        for name, tensor in tensors.items()
    ):
        raise ConfigError(f"'{file}' holds something else than plain tensors by name")
    return tensors


def _is_plain(tensor: Tensor) -> bool:
    dense = tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized
    return dense and tensor.device.type == "cpu"


def _axis(name: str, shape: Sequence[int], by_input: bool) -> int | None:
    """Return the axis on which a tensor is sharded, or None if every rank has the whole tensor."""
    if len(shape) < 2:
        return None
    if name == "tok_embeddings.weight":
        return 1 if by_input else 0
    return 1 if _BY_INPUT.search(name) else 0


def _joined(name: str, shards: Sequence[Mapping[str, Tensor]], by_input: bool) -> Tensor:
    pieces = [shard[name] for shard in shards]
    axis = _axis(name, pieces[0].shape, by_input)
    return pieces[0] if axis is None or len(pieces) == 1 else torch.cat(pieces, axis)


def _joined_shape(
    name: str, shards: Sequence[Mapping[str, Tensor]], by_input: bool
) -> tuple[int, ...]:
    shape = list(shards[0][name].shape)
    axis = _axis(name, shape, by_input)
    if axis is not None:
        shape[axis] = sum(shard[name].shape[axis] for shard in shards)
    return tuple(shape)
