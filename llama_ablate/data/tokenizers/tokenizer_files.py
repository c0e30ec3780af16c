"""Tokenizer files of other projects, recognised by content; nothing in them is executed.

`tokenizer.json` (Hugging Face), `tokenizer.model` (SentencePiece for Llama 1 and 2, tiktoken's list
of ranks for Llama 3), llama2.c's `tokenizer.bin`, and GPT-2's `vocab.json` with `merges.txt`.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llama_ablate.data.tokenizers.byte_level import LONGEST, SPLITS
from llama_ablate.data.tokenizers.pieces import SentencePiece, from_llama2c, saved
from llama_ablate.data.tokenizers.tokenizer import (
    BPE,
    TOKENIZERS,
    Bytes,
    Chars,
    Ids,
    Maker,
    Tokenizer,
    refusing,
)
from llama_ablate.errors import ConfigError

#: How Llama 3 cuts text before it merges bytes (its tokenizer.py).
LLAMA3_SPLIT = SPLITS[2]
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
#: The places in that order to which Llama 3.1 gave names of their own. The file of ranks is the
#: same, so the names of both are read, and these are shown. Reserved tokens have Llama 3.0's
#: numbers; Llama 3.1 counts them anew from 128012 on.
LLAMA31_SPECIAL = {
    4: "<|finetune_right_pad_id|>",
    5: "<|step_id|>",
    8: "<|eom_id|>",
    10: "<|python_tag|>",
}
#: Tokens of a vocab.json that stand for no text: `<|endoftext|>`, `</s>`, `<pad>`.
_SPECIAL = re.compile(r"<\|[a-z0-9_]+\|>|</?s>|<(?:pad|unk|mask|eos|bos)>")
#: Names of files that are a tokenizer each, in the order in which they are looked for.
WHOLE = ("tokenizer.json", "tokenizer.model", "tokenizer.bin")
_GPT2_FILES = ("vocab.json", "merges.txt")
_LARGEST = 256 << 20  # bytes of a tokenizer file: far more than any known one has


class Tiktoken(Tokenizer):
    """Byte-level BPE by rank, from a file of `base64 rank` lines.

    With Llama 3's way to cut text and its special tokens, of which some have two names, Llama 3's
    and Llama 3.1's, unless others are given.
    """

    kind = "tiktoken"

    def __init__(
        self, data: bytes, pattern: str = LLAMA3_SPLIT, special: Mapping[str, int] | None = None
    ) -> None:
        import tiktoken

        self._data, self.pattern, self._given = data, pattern, special
        ranks = dict(_ranks(data))
        if any(bytes([b]) not in ranks for b in range(256)) or (
            special is None and sorted(ranks.values()) != list(range(len(ranks)))
        ):
            raise ConfigError("its ranks are not 0, 1, 2 ..., or some single byte has none")
        self.ranks = ranks
        if special is None:
            names = [LLAMA31_SPECIAL.get(i, name) for i, name in enumerate(LLAMA3_SPECIAL)]
            ids = range(len(ranks), len(ranks) + len(names))
            shown = dict(zip(names, ids, strict=True))
            self.special = dict(zip(LLAMA3_SPECIAL, ids, strict=True)) | shown
        else:
            self.special = shown = dict(special)
        self.bos = self.special.get("<|begin_of_text|>")
        self._model = tiktoken.Encoding(
            self.kind, pat_str=pattern, mergeable_ranks=ranks, special_tokens=shown
        )

    @property
    def vocab(self) -> int:
        """All ranks and the special tokens: one more than the largest id."""
        return int(self._model.n_vocab)

    def encode(self, text: str) -> Ids:
        """Return the ids; a text of more than 400,000 characters is cut there first."""
        cuts = range(0, max(1, len(text)), LONGEST)
        with refusing("the tokenizer cannot encode this text"):
            parts = [self._model.encode(text[i : i + LONGEST], disallowed_special=()) for i in cuts]
        return np.concatenate([np.asarray(part, np.int64) for part in parts])

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text; broken sequences become the replacement character."""
        return str(self._model.decode([int(i) for i in ids]))

    def to_json(self) -> str:
        """Return the file's content, and what it was read with."""
        text = saved(self.kind, self._data)
        if self._given is None:
            return text
        return json.dumps(json.loads(text) | {"pattern": self.pattern, "special": self.special})


def _ranks(data: bytes) -> Iterator[tuple[bytes, int]]:
    for number, line in enumerate(data.splitlines(), 1):
        if line:
            try:
                token, rank = line.split()
                yield base64.b64decode(token, validate=True), int(rank)
            except (ValueError, binascii.Error):
                raise ConfigError(f"line {number} is not 'base64 rank'") from None


def _from_tokenizer_json(data: bytes) -> BPE:
    import tokenizers

    with refusing("it is no tokenizer.json"):
        return BPE(tokenizers.Tokenizer.from_str(data.decode("utf-8")))


def _from_vocab_and_merges(folder: Path) -> BPE:
    """Read GPT-2's two files: the ids of tokens, and what is merged to them, in order."""
    import tokenizers

    vocab, merges = (str(folder / name) for name in _GPT2_FILES)
    with refusing("they are no vocab.json and merges.txt"):
        model = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocab, merges))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    model.add_special_tokens([name for name in model.get_vocab() if _SPECIAL.fullmatch(name)])
    return BPE(model)


def in_one_file(folder: Path) -> Tokenizer | None:
    """Return the tokenizer that a folder holds in one file; None where there is none."""
    files = (folder / name for name in WHOLE)
    file = next((file for file in files if file.is_file()), None)
    return read(file) if file else None


def _of_folder(folder: Path) -> Tokenizer:
    """Return the tokenizer whose files lie in a folder. Raises ConfigError where none do."""
    if tokenizer := in_one_file(folder):
        return tokenizer
    if not all((folder / name).is_file() for name in _GPT2_FILES):
        raise ConfigError(
            f"the folder '{folder}' holds no tokenizer: neither tokenizer.json, tokenizer.model "
            "nor tokenizer.bin, nor both vocab.json and merges.txt"
        )
    try:
        return _from_vocab_and_merges(folder)
    except ConfigError as error:
        raise ConfigError(f"the tokenizer in '{folder}' cannot be read: {error.message}") from None


def read(path: Path) -> Tokenizer:
    """Return the tokenizer of a file, or of a folder of files.

    Raises ConfigError where it is none, or damaged.
    """
    try:
        if path.is_dir():
            return _of_folder(path)
        if not path.is_file():
            raise ConfigError(f"there is no tokenizer file '{path}'")
        if path.stat().st_size > _LARGEST:
            raise ConfigError(f"the tokenizer file '{path}' is larger than {_LARGEST >> 20} MiB")
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
        return from_llama2c
    first = data.split(b"\n", 1)[0].split()
    return Tiktoken if len(first) == 2 and first[1].isdigit() else SentencePiece


@TOKENIZERS.register("file")
def file_tokens(*, path: str = "") -> Maker:
    """Take another model's tokenizer: tokenizer.json, .model or .bin, or a folder of files.

    A folder may also hold GPT-2's two files, vocab.json and merges.txt.
    """
    if not path:
        raise ConfigError(
            "needs 'path': a tokenizer.json, tokenizer.model or tokenizer.bin, or a folder"
        )
    try:
        tokenizer = read(Path(path).expanduser())
    except RuntimeError as error:  # of a '~' whose home is not known
        raise ConfigError(f"'{path}': {error}") from None
    identity = hashlib.sha256(tokenizer.to_json().encode()).hexdigest()[:16]
    return Maker(lambda _: tokenizer, identity)


def from_json(text: str) -> Tokenizer:
    """Make again a tokenizer that `to_json` saved."""
    saved: dict[str, Any] = json.loads(text)
    kind = saved["kind"]
    if kind == Bytes.kind:
        return Bytes()
    if kind == Chars.kind:
        return Chars(saved["characters"])
    if kind == BPE.kind:
        return _from_tokenizer_json(json.dumps(saved["model"]).encode())
    data = base64.b64decode(saved["model"])
    if kind == SentencePiece.kind:
        return SentencePiece(data)
    assert kind == Tiktoken.kind, kind
    return Tiktoken(data, saved.get("pattern", LLAMA3_SPLIT), saved.get("special"))
