"""Read tokenizer files of other projects, recognised by content, without running their code.

The supported files are `tokenizer.json` (Hugging Face), `tokenizer.model` (SentencePiece for Llama
1 and 2, a list of ranks for Llama 3) and llama2.c's `tokenizer.bin`. Encodings by name come from
the Hugging Face hub's cache, or from the optional package tiktoken.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from llama_ablate.data.readers import refusing
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
)
from llama_ablate.errors import ConfigError, require

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
    try:
        lines = (line.split() for line in data.splitlines() if line)
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in lines}
    except ValueError:
        raise ConfigError("some line is not 'base64 rank'") from None
    if any(bytes([b]) not in ranks for b in range(256)) or (
        special is None and sorted(ranks.values()) != list(range(len(ranks)))
    ):
        raise ConfigError("its ranks are not 0, 1, 2 ..., or some single byte has none")
    saved, aliases = _saved("tiktoken", data), dict[str, int]()
    if special is None:
        aliases = {name: len(ranks) + i for i, name in enumerate(LLAMA3_SPECIAL)}
        special = {LLAMA31_SPECIAL.get(i, n): aliases[n] for i, n in enumerate(LLAMA3_SPECIAL)}
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


def _saved(kind: str, data: bytes) -> str:
    """Return the JSON from which `read_saved` restores a tokenizer file's tokenizer."""
    return json.dumps({"kind": kind, "model": base64.b64encode(data).decode("ascii")})


def _from_json(data: bytes) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, or of a file that results hold."""
    with refusing("it is no tokenizer.json"):
        values = json.loads(data)
    return restore(values) if "kind" in values else _from_tokenizer_json(data)


def _from_tokenizer_json(data: bytes) -> Pieces:
    import tokenizers

    with refusing("it is no tokenizer.json"):
        return Pieces(tokenizers.Tokenizer.from_str(data.decode("utf-8")))


def _from_vocab_and_merges(vocab: bytes, merges: bytes) -> Pieces:
    """Return the tokenizer of GPT-2's two files: token ids, and merges in order."""
    import tokenizers

    with refusing("they are no vocab.json and merges.txt"):
        lines = (line for line in merges.decode().splitlines() if not line.startswith("#version"))
        pairs: list[Any] = [tuple(line.split(" ")) for line in lines if line]
        model = tokenizers.Tokenizer(tokenizers.models.BPE(json.loads(vocab), pairs))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    model.add_special_tokens([name for name in model.get_vocab() if _SPECIAL.fullmatch(name)])
    return Pieces(model)


def in_one_file(folder: Path) -> Tokenizer | None:
    """Return a folder's tokenizer if one file contains it; None if there is no such file."""
    files = (folder / name for name in FILES)
    file = next((file for file in files if file.is_file()), None)
    return read(file) if file else None


def read(path: Path) -> Tokenizer:
    """Return the tokenizer that a file, or a folder with such a file, contains.

    Raises ConfigError for a missing, damaged or unsupported file.
    """
    two = [path / name for name in _GPT2_FILES]
    is_pair = all(file.is_file() for file in two)
    if path.is_dir() and (tokenizer := in_one_file(path)):
        return tokenizer
    if path.is_dir() and not is_pair:
        names = f"none of {', '.join(FILES)}, nor both {' and '.join(_GPT2_FILES)}"
        raise ConfigError(f"the folder '{path}' holds no tokenizer: {names}")
    if not path.exists():
        raise ConfigError(f"there is no tokenizer file '{path}'")
    try:
        if is_pair:
            return _from_vocab_and_merges(*map(_content, two))
        return _READERS[_kind(path, data := _content(path))](data)
    except (OSError, ConfigError) as error:
        reason = error.message if isinstance(error, ConfigError) else error.strerror
        raise ConfigError(f"the tokenizer file '{path}' cannot be read: {reason}") from None


def _content(file: Path) -> bytes:
    """Return the content of a file. Raises ConfigError for more than 256 MiB, or no file."""
    if not file.is_file():
        raise ConfigError("it is no file")
    if file.stat().st_size > _MAX_BYTES:
        raise ConfigError(f"it is larger than {_MAX_BYTES >> 20} MiB")
    return file.read_bytes()


def _kind(path: Path, data: bytes) -> str:
    if not data:
        raise ConfigError("it is empty")
    if data.lstrip()[:1] == b"{":
        return "bpe"
    first = data.split(b"\n", 1)[0].split()
    is_ranks = len(first) == 2 and first[1].isdigit()
    return "llama2c" if path.suffix == ".bin" else "tiktoken" if is_ranks else "sentencepiece"


#: Readers of tokenizer files, by the `kind` in the JSON of a saved tokenizer.
_READERS: dict[str, Callable[[bytes], Tokenizer]] = {
    "bpe": _from_json,
    "tiktoken": from_ranks,
    "sentencepiece": lambda data: from_sentencepiece(data, _saved("sentencepiece", data)),
    "llama2c": lambda data: from_llama2c(data, _saved("llama2c", data)),
}


def read_saved(text: str) -> Tokenizer:
    """Restore a tokenizer from JSON that `Tokenizer.to_json` returned."""
    return restore(json.loads(text))


def restore(saved: Mapping[str, Any]) -> Tokenizer:
    """Restore a tokenizer from the values of the JSON that `Tokenizer.to_json` returned."""
    kind = saved["kind"]
    if kind in ("bytes", "chars"):
        return Bytes() if kind == "bytes" else Chars(saved["characters"])
    if kind == "bpe":
        return _from_tokenizer_json(json.dumps(saved["model"]).encode())
    data = base64.b64decode(saved["model"])
    if "special" in saved:
        return from_ranks(data, saved["pattern"], saved["special"])
    return _READERS[kind](data)


@TOKENIZERS.register("file")
def file_tokens(*, path: str = "") -> Maker:
    """Use another model's tokenizer: tokenizer.json, .model or .bin, or a folder with one."""
    if not path:
        raise ConfigError(f"needs 'path': a file such as {', '.join(FILES)}, or a folder with one")
    try:
        return as_maker(read(Path(path).expanduser()))
    except RuntimeError as error:  # '~' of a user whose home folder is unknown
        raise ConfigError(f"'{path}': {error}") from None


@TOKENIZERS.register("hub")
def hub_tokens(*, model: str = "") -> Maker:
    """Use a Hugging Face hub model's tokenizer, if its files are cached locally."""
    if not model:
        raise ConfigError("needs 'model': a name on the hub, such as openai-community/gpt2")
    if tokenizer := _from_hub(model):
        return as_maker(tokenizer)
    raise ConfigError(
        f"the tokenizer of '{model}' is not cached: `hf download {model} tokenizer.json` loads "
        "it; or give its file, {name: file, path: ...}",
        ("model",),
    )


def _from_hub(model: str) -> Tokenizer | None:
    """Return the tokenizer of a model in the hub's cache; None if no tokenizer is cached."""
    from huggingface_hub import try_to_load_from_cache

    for names in (*((name,) for name in FILES[:2]), _GPT2_FILES):
        try:
            paths = [try_to_load_from_cache(model, name) for name in names]
        except ValueError as error:  # HFValidationError
            raise ConfigError(f"'{model}' is no name of the hub: {error}", ("model",)) from None
        files = [Path(path) for path in paths if isinstance(path, str)]
        if len(files) == len(names):
            return read(files[0] if len(files) == 1 else files[0].parent)
    return None


@TOKENIZERS.register("gpt2")
def gpt2_tokens() -> Maker:
    """Use GPT-2's byte-level BPE, 50,257 tokens (Radford et al. 2019)."""
    return Maker(lambda _: _from_hub("openai-community/gpt2") or _gpt2_of_tiktoken())


#: Address and SHA-256 of GPT-2's two files, which tiktoken loads once, and keeps in its cache.
_GPT2 = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
_GPT2_SUMS = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}


def _gpt2_of_tiktoken() -> Pieces:
    """Return GPT-2's tokenizer from the two files that tiktoken loads."""
    require("tiktoken", "the tokenizer 'gpt2'")
    from tiktoken.load import read_file_cached

    with refusing("tiktoken cannot load 'gpt2'"):
        files = [read_file_cached(f"{_GPT2}{name}", sha) for name, sha in _GPT2_SUMS.items()]
    return _from_vocab_and_merges(*files)


def _from_tiktoken(name: str, pattern: str) -> Pieces:
    """Return an encoding of tiktoken, which loads it once, and checks the hash of its file.

    `pattern` splits text as tiktoken's own, whose syntax the library `tokenizers` reads otherwise.
    """
    require("tiktoken", f"the tokenizer '{name}'")
    import tiktoken

    with refusing(f"tiktoken cannot load '{name}'"):
        encoding = tiktoken.get_encoding(name)
    ranks = sorted(encoding._mergeable_ranks.items(), key=lambda item: item[1])  # noqa: SLF001
    lines = b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks)
    return from_ranks(lines, pattern, encoding._special_tokens)  # noqa: SLF001


def _register_encoding(name: str, pattern: str, summary: str) -> None:
    """Register an encoding of tiktoken as a tokenizer."""

    def tokens() -> Maker:
        return Maker(lambda _: _from_tiktoken(name, pattern))

    tokens.__doc__ = f"Use {summary} tokens, which the package tiktoken loads."
    TOKENIZERS.register(name)(tokens)


_register_encoding("p50k_base", GPT2_SPLIT, "Codex' byte-level BPE, 50,281")
_register_encoding("cl100k_base", LLAMA3_SPLIT, "GPT-4's byte-level BPE, 100,277")
_register_encoding("o200k_base", _O200K_SPLIT, "GPT-4o's byte-level BPE, 200,019")
