"""Meta's checkpoint layout: params.json, and consolidated.NN.pth of each model-parallel rank."""

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from llama_ablate.errors import ConfigError, need
from llama_ablate.interop.families import META
from llama_ablate.interop.stored_tensors import Stored, check_memory, fill, read_json
from llama_ablate.model.decoder import Decoder, build

_BY_INPUT = re.compile(r"\.(wo|w2)\.weight$")  # split by columns; all other matrices by rows


def read(folder: Path, dtype: torch.dtype | None = None) -> Decoder:
    """Load the decoder of a checkpoint in Meta's layout, in `dtype` or the stored dtype.

    Shards are joined along the axis on which Meta's model-parallel layers cut them. Raises
    ConfigError, naming the file, if a file is missing, damaged, or does not match params.json.
    """
    params = read_json(folder / "params.json")
    shards = _shards(folder)
    table = shards[0].get("tok_embeddings.weight")
    by_input = table is not None and len(shards) > 1 and table.shape[-1] != params.get("dim")
    meta = [{name: tensor.to("meta") for name, tensor in shard.items()} for shard in shards]

    def joined(name: str, of: Sequence[Mapping[str, Tensor]] = shards) -> Tensor:
        try:
            return _joined(name, of, by_input)
        except RuntimeError:
            raise ConfigError(f"the shards of '{folder}' do not fit together: {name}") from None

    shapes = {name: tuple(joined(name, meta).shape) for name in shards[0]}
    config = {**params, "tie_word_embeddings": "output.weight" not in shapes}
    if params.get("vocab_size", -1) == -1:  # Llama 1 and 2 leave it to the tokenizer
        config["vocab_size"] = shapes.get("tok_embeddings.weight", (0,))[0]
    spec = META.spec(config, folder / "params.json")
    ours = [name for name, _ in build(spec, "meta").named_parameters()]
    entries = [*META.entries(ours, config)]

    dtypes = {name: tensor.dtype for name, tensor in shards[0].items()}
    stored = Stored(shapes, dtypes, joined)
    return fill(
        spec, entries, stored, folder, dtype=dtype, unneeded=lambda name: name == "rope.freqs"
    )


def _shards(folder: Path) -> list[dict[str, Tensor]]:
    files = sorted(folder.glob("consolidated.*.pth"))
    need(files, f"'{folder}' holds no consolidated.NN.pth")
    expected = [f"consolidated.{i:02d}.pth" for i in range(len(files))]
    if missing := sorted(set(expected) - {file.name for file in files}):
        raise ConfigError(f"'{folder}' has {len(files)} shards but lacks {missing[0]}")
    check_memory(sum(file.stat().st_size for file in files), f"'{folder}'")
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


def _joined(name: str, shards: Sequence[Mapping[str, Tensor]], by_input: bool) -> Tensor:
    """Join the ranks' parts of a tensor; every rank has the whole of a vector."""
    pieces = [shard[name] for shard in shards]
    if pieces[0].dim() < 2 or len(pieces) == 1:
        return pieces[0]
    is_cut_by_input = by_input if name == "tok_embeddings.weight" else _BY_INPUT.search(name)
    return torch.cat(pieces, 1 if is_cut_by_input else 0)
