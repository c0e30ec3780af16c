"""Hugging Face's checkpoint layout: config.json and safetensors, in one file or in shards."""

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from llama_ablate.config.spec import SLOTS, DropoutRates, ModelSpec
from llama_ablate.data.tokenizer import Tokenizer
from llama_ablate.errors import ConfigError, nearest, need
from llama_ablate.files import disk
from llama_ablate.files.strict_json import write_json
from llama_ablate.interop.canonical_spec import canonical
from llama_ablate.interop.families import FAMILIES, Config, Family
from llama_ablate.interop.stored_tensors import Stored, assign, check_memory, fill, read_json
from llama_ablate.interop.transformers_tokenizer import (
    generation_config,
    special_ids,
    tokenizer_files,
)
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import Decoder, build

_INDEX = "model.safetensors.index.json"
_SINGLE_FILE = "model.safetensors"
_SHARD_BYTES = 5 * 10**9
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
#: Buffers that old checkpoints store, though models compute them.
_TABLES = re.compile(r"(\.rotary_emb\.inv_freq|\.attn\.(masked_)?bias)$")


def read(folder: Path, dtype: torch.dtype | None = None) -> Decoder:
    """Load the decoder of a Hugging Face checkpoint, in `dtype` or the stored dtype.

    Raises ConfigError, naming the file, for an unknown family, a configuration that our components
    cannot express, and files that are missing, damaged or not as configured.
    """
    family, config, spec = describe(folder)
    files = _list_files(folder)
    stored_bytes = sum(file.stat().st_size for file in files)
    check_memory(count(spec).parameters * dtype.itemsize if dtype else stored_bytes, f"'{folder}'")
    stored = _open_tensors(files)
    names = _list_stored_names(build(spec, "meta"))
    entries = [*family.entries(names, config)]
    if not any(name.startswith("transformer.") for name in stored.shapes):
        # The first checkpoints of GPT-2 lack the prefix.
        entries = [replace(e, theirs=e.theirs.removeprefix("transformer.")) for e in entries]

    if spec.tie and "lm_head.weight" in stored.shapes:
        _check_tied(stored, entries[names.index("embedding.weight")].theirs, folder)

    def unneeded(name: str) -> bool:
        tied = spec.tie and name == "lm_head.weight"
        return bool(_TABLES.search(name)) or tied

    return fill(spec, entries, stored, folder, dtype=dtype, unneeded=unneeded)


def _check_tied(stored: Stored, embedding: str, where: Path) -> None:
    head, table = stored.read("lm_head.weight"), stored.read(embedding)
    message = f"'{where}' says that its output shares the embedding's weights, but lm_head.weight"
    need(head.shape == table.shape and torch.equal(head, table), f"{message} holds others")


def _list_stored_names(model: Decoder) -> list[str]:
    """Return the names of the tensors to store; a tied weight has one name."""
    return [name for name in model.state_dict() if not (model.spec.tie and name == "head.weight")]


def describe(folder: Path) -> tuple[Family, Config, ModelSpec]:
    """Return the family, config.json and spec of a checkpoint, from its config.json alone."""
    file = folder / "config.json"
    config = read_json(file)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        # No nearest match: the name of another architecture is no misspelling.
        allowed = ", ".join(sorted(FAMILIES))
        raise ConfigError(f"'{file}': model_type '{kind}' is not known; allowed: {allowed}")
    allowed = "float32, float16 or bfloat16 weights"
    is_quantized = config.get("quantization_config")
    need(not is_quantized, f"'{file}': the checkpoint is quantized; allowed: {allowed}")
    return FAMILIES[kind], config, FAMILIES[kind].spec(config, file)


class Export(NamedTuple):
    """Family of an export, and notes on possible differences in transformers."""

    family: str
    notes: list[str]


def write(
    model: Decoder,
    folder: Path,
    kind: str | None = None,
    tokenizer: Tokenizer | None = None,
    *,
    shard_bytes: int = _SHARD_BYTES,
) -> Export:
    """Write a model for transformers to load, with its tokenizer and generation config.

    The write is atomic: the folder is complete or does not exist. Raises ConfigError, naming the
    component, if the family cannot express the spec, and for a folder that is not empty.
    """
    from huggingface_hub import save_torch_state_dict

    folder = folder.resolve()
    kind = _choose_family(canonical(model.spec), kind)
    family = FAMILIES[kind]
    model = _convert_layout(model)
    spec = canonical(model.spec)
    is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    need(is_free, f"'{folder}' is there already and not empty")
    config = family.config(replace(spec, dropout=model.spec.dropout))
    dtype = str(model.embedding.weight.dtype).removeprefix("torch.")
    config |= {"dtype": dtype, **special_ids(tokenizer)}
    # With an older version, or none, transformers suspects that Mistral's tokenizers split wrongly.
    config["transformers_version"] = "5.0.0"
    documents, notes = tokenizer_files(tokenizer, kind, spec.context) if tokenizer else ({}, [])
    exported = asdict(DropoutRates.of(family.model(config)["dropout"]))
    if lost := [
        f"{of} {rate:g}" for of, rate in asdict(model.spec.dropout).items() if rate != exported[of]
    ]:
        notes.append(f"{kind} has no such dropout, so it is left out: {', '.join(lost)}")
    if model.spec.separator is not None:
        notes.append(
            "attention and positions began anew with each document (`documents: mask`): "
            f"{kind} reads a text of several as one, and computes other logits after the first"
        )
    documents |= {"config.json": config, "generation_config.json": generation_config(tokenizer)}
    ours = model.state_dict()
    tensors = {
        entry.theirs: entry.joined([ours[name] for name in entry.ours])
        for entry in family.entries(_list_stored_names(model), config)
    }
    disk.make(folder.parent)
    try:
        with disk.partial_folder(folder.parent) as partial:
            for name, content in documents.items():
                write_json(partial / name, content)
            save_torch_state_dict(tensors, partial, max_shard_size=shard_bytes)
            if folder.exists():
                folder.rmdir()
            disk.move(partial, folder)
    except SafetensorError as error:
        raise ConfigError(f"'{folder}' cannot be written: {error}") from None
    return Export(kind, notes)


def _choose_family(spec: ModelSpec, kind: str | None) -> str:
    """Choose a family that can express a spec.

    Raises ConfigError, naming the differences, if there is none.
    """
    exists = kind is None or kind in FAMILIES
    need(exists, f"--to {kind}: no such family{nearest(str(kind), FAMILIES)}")
    lost = {name: _list_differences(spec, name) for name in FAMILIES}
    able = [name for name in FAMILIES if not lost[name]]
    if kind is None and able:
        return able[0]
    closest = kind or min(FAMILIES, key=lambda known: len(lost[known]))
    if lost[closest]:
        who = (
            f"{closest} cannot express" if kind else f"no family can: {closest}, the nearest, lacks"
        )
        others = f"; families that can: {', '.join(able)}" if able else ""
        raise ConfigError(f"{who} {', '.join(lost[closest])}{others}")
    return closest


def _list_differences(spec: ModelSpec, kind: str) -> list[str]:
    """List the differences between a spec and the spec read back from a family's config.json."""
    family = FAMILIES[kind]
    spec = _use_half_layout(spec)
    try:
        back = canonical(family.spec(family.config(spec), Path("config.json")))
    except ConfigError as error:
        said = error.message.removeprefix("'config.json': ")
        return [said.removeprefix("'config.json' describes no model: ")]
    lost: list[str] = []
    for field in fields(ModelSpec):
        mine, theirs = getattr(spec, field.name), getattr(back, field.name)
        if mine == theirs:
            continue
        if field.name not in SLOTS:
            lost.append(f"{field.name} = {str(mine).lower()}")
        elif mine.name != theirs.name:
            lost.append(f"{field.name} '{mine.name}'")
        else:
            lost += [
                f"{field.name} '{mine.name}' with {option} = {str(value).lower()}"
                for i in range(spec.layers)
                for option, value in mine.at(i).options
                if dict(theirs.at(i).options).get(option) != value
            ]
    return list(dict.fromkeys(lost))


def _open_tensors(files: Sequence[Path]) -> Stored:
    where: dict[str, Path] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, torch.dtype] = {}
    for file in files:
        need(os.access(file, os.R_OK), f"'{file}' cannot be read: no permission")
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118  it is no dict
                    where[name] = file
                    part = opened.get_slice(name)
                    shapes[name] = tuple(part.get_shape())
                    dtypes[name] = _DTYPES.get(part.get_dtype(), torch.int8)
        except (SafetensorError, OSError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"'{file}' is damaged or no safetensors file: {reason}") from None

    def get(name: str) -> Tensor:
        with safe_open(where[name], "pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor

    return Stored(shapes, dtypes, get)


def _list_files(folder: Path) -> list[Path]:
    if (folder / _INDEX).is_file():
        named = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(v, str) for v in named.values()):
            raise ConfigError(f"'{folder / _INDEX}' holds no weight_map of names to files")
        names = sorted(set(named.values()))
        if outside := [name for name in names if Path(name).name != name]:
            raise ConfigError(f"'{folder / _INDEX}' names a file outside its folder: {outside[0]}")
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise ConfigError(f"'{folder}' lacks the shard {missing[0]} that its index names")
        return [folder / name for name in names]
    if (folder / _SINGLE_FILE).is_file():
        return [folder / _SINGLE_FILE]
    pickled = sorted(p.name for p in folder.glob("*.bin"))
    hint = f"; {pickled[0]} is pickled and may hold code: convert it first" if pickled else ""
    raise ConfigError(f"'{folder}' holds neither {_SINGLE_FILE} nor {_INDEX}{hint}")


def _use_half_layout(spec: ModelSpec) -> ModelSpec:
    """Return a spec whose rotation pairs the coordinates (i, i + R/2), as all families do."""
    return replace(spec, position=spec.position.with_options(layout="half"))


def _convert_layout(model: Decoder) -> Decoder:
    """Return an equivalent model whose rotation pairs the coordinates (i, i + R/2).

    If the model pairs neighbours, the rows of its query and key projections are reordered.
    """
    spec = _use_half_layout(model.spec)
    if spec == model.spec:
        return model
    rotated = max(getattr(scheme, "rotated", 0) for scheme in model.positions.values())
    order = torch.arange(rotated).view(-1, 2).T.flatten()  # of neighbours, as halves
    order = torch.cat([order, torch.arange(rotated, spec.head_dim)])
    tensors = dict(model.state_dict())
    for name, tensor in tensors.items():
        if re.search(r"\.attn\.[qk]\.", name):
            heads = tensor.view(-1, spec.head_dim, *tensor.shape[1:])
            tensors[name] = heads[:, order].reshape(tensor.shape)
        elif re.search(r"\.attn\.[qk]_norm\.", name):
            tensors[name] = tensor[order]
    return assign(build(spec, "meta"), tensors)
