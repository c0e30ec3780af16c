"""Read tokenizer files of other projects, recognised by content, without running their code.

The supported files are `tokenizer.json` (Hugging Face), `tokenizer.model` (SentencePiece for Llama
1 and 2, a list of ranks for Llama 3), llama2.c's `tokenizer.bin`, GPT-2's `vocab.json` with
`merges.txt`, and the files that the Hugging Face hub and tiktoken have in their caches. Nothing is
downloaded.
"""

import base64
import binascii
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_ablate.data.sentencepiece_models import from_llama2c, from_sentencepiece
from llama_ablate.data.tokenizer import (
    TOKENIZERS,
    Bytes,
    Chars,
    Maker,
    Pieces,
    Tokenizer,
    as_maker,
    byte_level_bpe,
    refusing,
)
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk

#: Regular expressions by which GPT-2 and Llama 3 split text before they merge bytes.
GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LOWER, _UPPER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}", r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_O200K_SPLIT = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
#: Llama 3's 256 special tokens, in the order of their ids, which follow the last rank.
LLAMA3_SPECIAL = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    *(f"<|reserved_special_token_{i}|>" for i in range(4)),
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|reserved_special_token_4|>",
    "<|eot_id|>",
    *(f"<|reserved_special_token_{i}|>" for i in range(5, 251)),
)
#: Special tokens that Llama 3.1 has renamed, by their index in LLAMA3_SPECIAL. The file of ranks is
#: the same for both versions, so both names are parsed, and the new names are shown. Reserved
#: tokens have Llama 3.0's numbers; Llama 3.1 numbers them anew from 128012 on.
LLAMA31_SPECIAL = {
    4: "<|finetune_right_pad_id|>",
    5: "<|step_id|>",
    8: "<|eom_id|>",
    10: "<|python_tag|>",
}
#: Special tokens of a vocab.json, which represent no text: `<|endoftext|>`, `</s>`, `<pad>`.
_SPECIAL = re.compile(r"<\|[a-z0-9_]+\|>|</?s>|<(?:pad|unk|mask|eos|bos)>")
#: Names of files that contain a whole tokenizer, in order of preference.
FILES = ("tokenizer.json", "tokenizer.model", "tokenizer.bin")
_GPT2_FILES = ("vocab.json", "merges.txt")
_MAX_BYTES = 256 << 20  # largest tokenizer file: more than any known file has


def from_ranks(
    data: bytes, pattern: str = LLAMA3_SPLIT, special: Mapping[str, int] | None = None
) -> Pieces:
    """Return the byte-level BPE tokenizer of a tiktoken file, with lines `base64 rank`.

    `pattern` is the regular expression that splits text before merges, and `special` maps special
    tokens to ids. Their defaults are Llama 3's; some special tokens then have two names, Llama 3's
    and Llama 3.1's. Raises ConfigError for invalid ranks.
    """
    import tokenizers

    data = data.replace(b"\r\n", b"\n")  # so that equal ranks have equal fingerprints
    ranks, saved = dict(_parse_ranks(data)), _saved("tiktoken", data)
    if any(bytes([b]) not in ranks for b in range(256)) or (
        special is None and sorted(ranks.values()) != list(range(len(ranks)))
    ):
        raise ConfigError("its ranks are not 0, 1, 2 ..., or some single byte has none")
    aliases: dict[str, int] = {}
    if special is None:
        ids = range(len(ranks), len(ranks) + len(LLAMA3_SPECIAL))
        names = [LLAMA31_SPECIAL.get(i, name) for i, name in enumerate(LLAMA3_SPECIAL)]
        aliases = dict(zip(LLAMA3_SPECIAL, ids, strict=True))
        special = dict(zip(names, ids, strict=True))
    else:
        saved = json.dumps(json.loads(saved) | {"pattern": pattern, "special": dict(special)})
    model = byte_level_bpe(ranks, special)
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    model.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, model.pre_tokenizer])
    model.add_special_tokens(sorted(special, key=lambda name: special[name]))
    first = LLAMA3_SPECIAL[0]
    if first in special:
        model.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, special[first])]
        )
    return Pieces(model, saved, aliases)


def _parse_ranks(data: bytes) -> Iterator[tuple[bytes, int]]:
    for number, line in enumerate(data.splitlines(), 1):
        if line:
            try:
                token, rank = line.split()
                yield base64.b64decode(token, validate=True), int(rank)
            except (ValueError, binascii.Error):
                raise ConfigError(f"line {number} is not 'base64 rank'") from None


def _saved(kind: str, data: bytes) -> str:
    """Return the JSON from which `read_saved` restores a tokenizer file's tokenizer."""
    return json.dumps({"kind": kind, "model": base64.b64encode(data).decode("ascii")})


def _from_tokenizer_json(data: bytes) -> Pieces:
    import tokenizers

    with refusing("it is no tokenizer.json"):
        return Pieces(tokenizers.Tokenizer.from_str(data.decode("utf-8")))


def _from_vocab_and_merges(vocab: Path, merges: Path) -> Pieces:
    """Return the tokenizer of GPT-2's two files: token ids, and merges in order."""
    import tokenizers

    with refusing("they are no vocab.json and merges.txt"):
        model = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(vocab), str(merges)))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    model.add_special_tokens([name for name in model.get_vocab() if _SPECIAL.fullmatch(name)])
    return Pieces(model)


def in_one_file(folder: Path) -> Tokenizer | None:
    """Return a folder's tokenizer if one file contains it; None if there is no such file."""
    files = (folder / name for name in FILES)
    file = next((file for file in files if file.is_file()), None)
    return read(file) if file else None


def _read_folder(folder: Path) -> Tokenizer:
    """Return the tokenizer in a folder of files. Raises ConfigError if no tokenizer is found."""
    if tokenizer := in_one_file(folder):
        return tokenizer
    vocab, merges = (folder / name for name in _GPT2_FILES)
    if not (vocab.is_file() and merges.is_file()):
        raise ConfigError(
            f"the folder '{folder}' holds no tokenizer: neither tokenizer.json, tokenizer.model "
            "nor tokenizer.bin, nor both vocab.json and merges.txt"
        )
    try:
        return _from_vocab_and_merges(vocab, merges)
    except ConfigError as error:
        raise ConfigError(f"the tokenizer in '{folder}' cannot be read: {error.message}") from None


def read(path: Path) -> Tokenizer:
    """Return the tokenizer that a file, or a folder of files, contains.

    Raises ConfigError for a missing, damaged or unsupported file, or a file of more than 256 MiB.
    """
    try:
        if path.is_dir():
            return _read_folder(path)
        if not path.is_file():
            raise ConfigError(f"there is no tokenizer file '{path}'")
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"the tokenizer file '{path}' is larger than {_MAX_BYTES >> 20} MiB")
        data = path.read_bytes()
    except OSError as error:
        reason = f"the tokenizer file '{path}' cannot be read: {error.strerror}"
        raise ConfigError(reason) from None
    try:
        return _reader(path, data)(data)
    except ConfigError as error:
        raise ConfigError(f"the tokenizer file '{path}' cannot be read: {error.message}") from None


def _reader(path: Path, data: bytes) -> Callable[[bytes], Tokenizer]:
    if not data:
        raise ConfigError("it is empty")
    if data.lstrip()[:1] == b"{":
        return _from_tokenizer_json
    if path.suffix == ".bin":
        return _READERS["llama2c"]
    first = data.split(b"\n", 1)[0].split()
    return _READERS["tiktoken" if len(first) == 2 and first[1].isdigit() else "sentencepiece"]


#: Readers of tokenizer files, by the `kind` in the JSON of a saved tokenizer.
_READERS: dict[str, Callable[[bytes], Tokenizer]] = {
    "tiktoken": from_ranks,
    "sentencepiece": lambda data: from_sentencepiece(data, _saved("sentencepiece", data)),
    "llama2c": lambda data: from_llama2c(data, _saved("llama2c", data)),
}


def read_saved(text: str) -> Tokenizer:
    """Restore a tokenizer from JSON that `Tokenizer.to_json` returned."""
    saved: dict[str, Any] = json.loads(text)
    kind = saved["kind"]
    if kind == "bytes":
        return Bytes()
    if kind == "chars":
        return Chars(saved["characters"])
    if kind == "bpe":
        return _from_tokenizer_json(json.dumps(saved["model"]).encode())
    data = base64.b64decode(saved["model"])
    if "special" in saved:
        return from_ranks(data, saved["pattern"], saved["special"])
    return _READERS[kind](data)


@TOKENIZERS.register("file")
def file_tokens(*, path: str = "") -> Maker:
    """Use another model's tokenizer: tokenizer.json, .model or .bin, or a folder of files.

    A folder may also contain GPT-2's two files, vocab.json and merges.txt.
    """
    if not path:
        raise ConfigError(
            "needs 'path': a tokenizer.json, tokenizer.model or tokenizer.bin, or a folder"
        )
    try:
        return as_maker(read(Path(path).expanduser()))
    except RuntimeError as error:  # '~' of a user whose home folder is unknown
        raise ConfigError(f"'{path}': {error}") from None


@TOKENIZERS.register("hub")
def hub_tokens(*, model: str = "") -> Maker:
    """Use a Hugging Face hub model's tokenizer, if its files are cached locally."""
    if not model:
        raise ConfigError("needs 'model': a name on the hub, such as openai-community/gpt2")
    tokenizer = _from_hub(model)
    if tokenizer is None:
        raise ConfigError(
            f"the tokenizer of '{model}' is not cached: `hf download {model} tokenizer.json` loads "
            "it; or give its file, {name: file, path: ...}",
            ("model",),
        )
    return as_maker(tokenizer)


def _from_hub(model: str) -> Tokenizer | None:
    """Return the tokenizer of a model in the hub's cache; None if no tokenizer is cached."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    for names in (("tokenizer.json",), ("tokenizer.model",), _GPT2_FILES):
        try:
            paths = [try_to_load_from_cache(model, name) for name in names]
        except HFValidationError as error:
            raise ConfigError(f"'{model}' is no name of the hub: {error}", ("model",)) from None
        files = [Path(path) for path in paths if isinstance(path, str)]
        if len(files) == len(names):
            _check_hashes(files)
            return read(files[0] if len(files) == 1 else files[0].parent)
    return None


def _check_hashes(files: Sequence[Path]) -> None:
    """Raise ConfigError if the content of a cached hub file differs from its hash.

    A cached file is named after its hash: git's SHA-1, or SHA-256 for a large file. In a cache
    without symbolic links, names are not hashes, and nothing is checked.
    """
    for file in files:
        content, name = disk.read(file), file.resolve().name
        git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
        digests = {40: git.hexdigest(), 64: hashlib.sha256(content).hexdigest()}
        if name != digests.get(len(name), name):
            raise ConfigError(f"'{file}' has changed since it was loaded: remove it, load it again")


_TIKTOKEN = "https://openaipublic.blob.core.windows.net"  # tiktoken's cache names files by URL hash


@dataclass(frozen=True)
class _Encoding:
    """Encoding of tiktoken: split pattern, special tokens, and the SHA-256 of its rank file."""

    pattern: str
    special: Mapping[str, int]
    sha256: str


_ENCODINGS = {
    "p50k_base": _Encoding(
        GPT2_SPLIT,
        {"<|endoftext|>": 50256},
        "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
    ),
    "cl100k_base": _Encoding(
        LLAMA3_SPLIT,
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": _Encoding(
        _O200K_SPLIT,
        {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
}


@TOKENIZERS.register("gpt2")
def gpt2_tokens() -> Maker:
    """Use GPT-2's byte-level BPE, 50,257 tokens (Radford et al. 2019), if it is cached."""
    return Maker(lambda _: _from_hub("openai-community/gpt2") or _cached_gpt2())


@TOKENIZERS.register("p50k_base")
def p50k_tokens() -> Maker:
    """Use Codex' byte-level BPE, 50,281 tokens (tiktoken), if it is cached."""
    return Maker(lambda _: _cached_encoding("p50k_base"))


@TOKENIZERS.register("cl100k_base")
def cl100k_tokens() -> Maker:
    """Use GPT-4's byte-level BPE, 100,277 tokens (tiktoken), if it is cached."""
    return Maker(lambda _: _cached_encoding("cl100k_base"))


@TOKENIZERS.register("o200k_base")
def o200k_tokens() -> Maker:
    """Use GPT-4o's byte-level BPE, 200,019 tokens (tiktoken), if it is cached."""
    return Maker(lambda _: _cached_encoding("o200k_base"))


def _cached_gpt2() -> Pieces:
    """Return GPT-2's tokenizer from the two files in tiktoken's cache."""
    place = f"{_TIKTOKEN}/gpt-2/encodings/main"
    return _from_vocab_and_merges(
        _cached(f"{place}/encoder.json", "gpt2"), _cached(f"{place}/vocab.bpe", "gpt2")
    )


def _cached_encoding(name: str) -> Pieces:
    """Return an encoding from tiktoken's cache. Raises ConfigError if it is missing or damaged."""
    encoding, file = _ENCODINGS[name], _cached(f"{_TIKTOKEN}/encodings/{name}.tiktoken", name)
    ranks = disk.read(file)
    if hashlib.sha256(ranks).hexdigest() != encoding.sha256:
        raise ConfigError(f"'{file}' is not the file of '{name}': remove it, load it again")
    return from_ranks(ranks, encoding.pattern, encoding.special)


def _cached(url: str, name: str) -> Path:
    """Return a URL's file in tiktoken's cache. Raises ConfigError if it is not cached."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    key = hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    file = Path(folder or Path(tempfile.gettempdir()) / "data-gym-cache") / key
    if not file.is_file():
        also = " or `hf download openai-community/gpt2 tokenizer.json`" if name == "gpt2" else ""
        raise ConfigError(
            f"the tokenizer '{name}' is not cached: tiktoken loads it, `python -c \"import "
            f"tiktoken; tiktoken.get_encoding('{name}')\"`{also}; without a network, {url} "
            f"is {key} in $TIKTOKEN_CACHE_DIR"
        )
    return file
