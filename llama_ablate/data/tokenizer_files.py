"""Tokenizers that others have trained, read from their files: nothing in them is ever executed.

`tokenizer.json` (Hugging Face), `tokenizer.model` (SentencePiece for Llama 1 and 2, tiktoken's list
of ranks for Llama 3) and llama2.c's `tokenizer.bin`. Which one it is, is told by the content.
"""

import base64
import binascii
import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llama_ablate.data.tokenizers import (
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
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
#: Llama 3's 256 special tokens, in the order of their ids, which begin behind the last rank.
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
_PIECE_CHARACTERS = 400_000  # longer texts overflow the stack of tiktoken's regular expressions
_LARGEST = 256 << 20  # bytes of a tokenizer's file: far more than any known one has


class Tiktoken(Tokenizer):
    """Byte-level BPE by rank, from a file of `base64 rank` lines, with Llama 3's special tokens."""

    kind = "tiktoken"

    def __init__(self, data: bytes) -> None:
        import tiktoken

        self._data = data
        ranks = dict(_ranks(data))
        if sorted(ranks.values()) != list(range(len(ranks))) or any(
            bytes([b]) not in ranks for b in range(256)
        ):
            raise ConfigError("its ranks are not 0, 1, 2 ..., or some single byte has none")
        self.special = {name: len(ranks) + i for i, name in enumerate(LLAMA3_SPECIAL)}
        self.bos = self.special["<|begin_of_text|>"]
        self._model = tiktoken.Encoding(
            "llama3",
            pat_str=LLAMA3_SPLIT,
            mergeable_ranks=ranks,
            special_tokens=dict(self.special),
        )

    @property
    def vocab(self) -> int:
        """All ranks and the 256 special tokens."""
        return int(self._model.n_vocab)

    def encode(self, text: str) -> Ids:
        """Return the ids; a text of more than 400,000 characters is cut there first."""
        cuts = range(0, max(1, len(text)), _PIECE_CHARACTERS)
        with refusing("the tokenizer cannot encode this text"):
            parts = [
                self._model.encode(text[i : i + _PIECE_CHARACTERS], disallowed_special=())
                for i in cuts
            ]
        return np.concatenate([np.asarray(part, np.int64) for part in parts])

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text; broken sequences become the replacement character."""
        return str(self._model.decode([int(i) for i in ids]))

    def to_json(self) -> str:
        """Return the file's content."""
        return _saved(self.kind, self._data)


def _ranks(data: bytes) -> Iterator[tuple[bytes, int]]:
    for number, line in enumerate(data.splitlines(), 1):
        if line:
            try:
                token, rank = line.split()
                yield base64.b64decode(token, validate=True), int(rank)
            except (ValueError, binascii.Error):
                raise ConfigError(f"line {number} is not 'base64 rank'") from None


class SentencePiece(Tokenizer):
    """A SentencePiece model, as of Llama 1 and 2 (Kudo & Richardson 2018, arXiv:1808.06226)."""

    kind = "sentencepiece"

    def __init__(self, data: bytes) -> None:
        import sentencepiece

        self._data = data
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=data)
        except Exception:  # noqa: BLE001  it raises what its C++ raises
            raise ConfigError("it is no SentencePiece model") from None
        control = [i for i in range(self.vocab) if self._model.is_control(i)]
        self.special = {self._model.id_to_piece(i): i for i in control}
        first = self._model.bos_id()
        self.bos = first if first >= 0 else None

    @property
    def vocab(self) -> int:
        """How many pieces there are."""
        return int(self._model.get_piece_size())

    def encode(self, text: str) -> Ids:
        """Return the pieces' ids."""
        return np.asarray(self._model.encode(text), np.int64)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text, without the space that the model puts in front."""
        return str(self._model.decode([int(i) for i in ids]))

    def piece(self, token: int) -> str:
        """Return the piece as the model lists it, its space as a space."""
        return str(self._model.id_to_piece(int(token))).replace("\u2581", " ")

    def to_json(self) -> str:
        """Return the file's content."""
        return _saved(self.kind, self._data)


def from_llama2c(data: bytes) -> SentencePiece:
    """Read llama2.c's `tokenizer.bin`: a length, then (score, length, bytes) of each piece.

    It is a SentencePiece BPE model with its texts spelled out, so it is made into one again.
    """
    pieces: list[tuple[bytes, float]] = []
    offset = 4
    while offset < len(data):
        try:
            score, length = struct.unpack_from("<fi", data, offset)
        except struct.error:
            raise ConfigError(f"it is cut off at byte {offset}") from None
        offset += 8 + length
        if length < 0 or offset > len(data):
            raise ConfigError(f"piece {len(pieces)} does not end within the file")
        pieces.append((data[offset - length : offset], score))
    if len(pieces) < 3 + 256:
        raise ConfigError(f"it has {len(pieces)} pieces, fewer than 3 special ones and 256 bytes")
    names = [b"<unk>", b"<s>", b"</s>", *(f"<0x{b:02X}>".encode() for b in range(256))]
    kinds = [2, 3, 3, *[6] * 256]  # unknown, control, byte; all others are normal (1)
    proto = b""
    for i, (text, score) in enumerate(pieces):
        name = names[i] if i < len(names) else text.replace(b" ", "\u2581".encode())
        kind = kinds[i] if i < len(kinds) else 1
        proto += _field(1, _field(1, name) + _float(2, score) + _number(3, kind))
    trainer = _number(3, 2) + _number(35, 1)  # BPE, falling back to bytes
    normalizer = _number(3, 1) + _number(4, 0) + _number(5, 1)  # space in front, none removed
    return SentencePiece(proto + _field(2, trainer) + _field(3, normalizer))


# The wire format of protocol buffers: a key (field number and kind), then the value.
def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _float(field: int, value: float) -> bytes:
    return _varint(field << 3 | 5) + struct.pack("<f", value)


def _field(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _from_tokenizer_json(data: bytes) -> BPE:
    import tokenizers

    with refusing("it is no tokenizer.json"):
        return BPE(tokenizers.Tokenizer.from_str(data.decode("utf-8")))


def read(path: Path) -> Tokenizer:
    """Return the tokenizer of a file. Raises ConfigError where it is none, or damaged."""
    try:
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
    """Take another model's tokenizer: its tokenizer.json, tokenizer.model or tokenizer.bin."""
    if not path:
        raise ConfigError("needs 'path': a tokenizer.json, tokenizer.model or tokenizer.bin")
    try:
        tokenizer = read(Path(path).expanduser())
    except RuntimeError as error:  # of a '~' whose home is not known
        raise ConfigError(f"'{path}': {error}") from None
    identity = hashlib.sha256(tokenizer.to_json().encode()).hexdigest()[:16]
    return Maker(lambda _: tokenizer, identity)


def to_file(tokenizer: Tokenizer) -> tuple[str, bytes]:
    """Return the name and content of the file from which `read` makes a tokenizer again.

    Bytes and characters are written as byte-pair encodings without any pair, which is what they
    are, so that Hugging Face's libraries read them too.
    """
    saved: dict[str, Any] = json.loads(tokenizer.to_json())
    if tokenizer.kind in (Tiktoken.kind, SentencePiece.kind):
        return "tokenizer.model", base64.b64decode(saved["model"])
    if tokenizer.kind == BPE.kind:
        return "tokenizer.json", json.dumps(saved["model"]).encode()
    import tokenizers

    if tokenizer.kind == Bytes.kind:
        # The library shows each byte as one character: a printable one as itself, the others, in
        # order, as those from code point 256 on.
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in printable]
        vocab = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}
    else:
        vocab = {character: i for i, character in enumerate(saved["characters"])}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    if tokenizer.kind == Bytes.kind:
        level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        model.pre_tokenizer, model.decoder = level, tokenizers.decoders.ByteLevel()
    else:
        model.decoder = tokenizers.decoders.Fuse()
    return "tokenizer.json", model.to_str(pretty=True).encode()


def _saved(kind: str, data: bytes) -> str:
    return json.dumps({"kind": kind, "model": base64.b64encode(data).decode("ascii")})


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
    kinds = {Tiktoken.kind: Tiktoken, SentencePiece.kind: SentencePiece}
    return kinds[kind](base64.b64decode(saved["model"]))
