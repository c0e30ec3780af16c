"""SentencePiece models: as tokenizers, built from llama2.c's pieces, and parsed.

They are parsed here because the library's own `sentencepiece_model_pb2`, which takes 0.02 s to
import, needs protobuf, on which neither sentencepiece 0.2 nor any other dependency depends.
"""

import base64
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llama_ablate.data.tokenizers.tokenizer import Ids, Tokenizer
from llama_ablate.errors import ConfigError

#: Kinds of pieces, as the format numbers them.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
#: Kinds of models.
UNIGRAM, BPE, WORD, CHAR = range(1, 5)
SPACE = "\u2581"  # how pieces write a space


class SentencePiece(Tokenizer):
    """A SentencePiece model, as of Llama 1 and 2 (Kudo & Richardson 2018, arXiv:1808.06226)."""

    kind = "sentencepiece"

    def __init__(self, data: bytes) -> None:
        import sentencepiece

        self.data = data
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=data)
        except Exception:  # noqa: BLE001  it raises what its C++ raises
            raise ConfigError("it is no SentencePiece model") from None
        control = [i for i in range(self.vocab) if self._model.is_control(i)]
        self.special = {self._model.id_to_piece(i): i for i in control}
        first = self._model.bos_id()
        self.bos = first if first >= 0 else None
        unknown = self._model.unk_id()
        self.unknown = unknown if unknown >= 0 else None

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
        return str(self._model.id_to_piece(int(token))).replace(SPACE, " ")

    def to_json(self) -> str:
        """Return the file's content."""
        return saved(self.kind, self.data)


def saved(kind: str, data: bytes) -> str:
    """Return a file's content as the JSON that `to_json` promises."""
    return json.dumps({"kind": kind, "model": base64.b64encode(data).decode("ascii")})


@dataclass(frozen=True)
class Piece:
    """An entry of a model's vocabulary; its id is its place."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True)
class SentencePieceModel:
    """What a SentencePiece model consists of."""

    pieces: tuple[Piece, ...]
    unknown: int  # the id of what stands for characters that no piece has
    kind: int
    byte_fallback: bool
    #: Whether the space of a word is written after it.
    suffixes: bool
    #: How characters are replaced before anything else, in the library's own format.
    charsmap: bytes
    #: Whether a space is put in front, runs of spaces are shortened, spaces are written as SPACE.
    prefixed: bool
    shortened: bool
    escaped: bool


def parts(data: bytes) -> SentencePieceModel:
    """Take a model apart that the library has read; what it leaves out has the usual values."""
    model = _fields(data)
    trainer, normalizer = (_fields(model.get(n, [b""])[-1]) for n in (2, 3))
    pieces = []
    for entry in map(_fields, model[1]):
        text, score, kind = entry.get(1, [b""]), entry.get(2, [0.0]), entry.get(3, [NORMAL])
        pieces.append(Piece(text[-1].decode("utf-8"), score[-1], kind[-1]))
    return SentencePieceModel(
        pieces=tuple(pieces),
        unknown=next(i for i, piece in enumerate(pieces) if piece.kind == UNKNOWN),
        kind=trainer.get(3, [UNIGRAM])[-1],
        byte_fallback=bool(trainer.get(35, [0])[-1]),
        suffixes=bool(trainer.get(24, [0])[-1]),
        charsmap=normalizer.get(2, [b""])[-1],
        prefixed=bool(normalizer.get(3, [1])[-1]),
        shortened=bool(normalizer.get(4, [1])[-1]),
        escaped=bool(normalizer.get(5, [1])[-1]),
    )


def from_llama2c(data: bytes) -> SentencePiece:
    """Read llama2.c's `tokenizer.bin`: a length, then (score, length, bytes) of each piece.

    It lists the pieces of a SentencePiece BPE model, so that model is built from it.
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
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]  # all others are normal
    proto = b""
    for i, (text, score) in enumerate(pieces):
        name = names[i] if i < len(names) else text.replace(b" ", SPACE.encode())
        kind = kinds[i] if i < len(kinds) else NORMAL
        proto += _field(1, _field(1, name) + _float(2, score) + _number(3, kind))
    trainer = _number(3, BPE) + _number(35, 1)  # falling back to bytes
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


def _fields(data: bytes) -> dict[int, list[Any]]:
    """Return the values of a message by field number: integers, floats, and bytes."""
    values: dict[int, list[Any]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        start = at
        while data[at] & 128:
            at += 1
        at += 1
        return sum((byte & 127) << 7 * i for i, byte in enumerate(data[start:at]))

    while at < len(data):
        key = varint()
        value: Any
        if key & 7 == 0:
            value = varint()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or varint()
            value = data[at : at + size]
            at += size
            value = struct.unpack("<f", value)[0] if key & 7 == 5 else value
        values.setdefault(key >> 3, []).append(value)
    return values
