"""Convert SentencePiece models (arXiv:1808.06226) to tokenizers of the library `tokenizers`.

The protobuf format is parsed here, since the message class of `sentencepiece` needs the package
protobuf, which no dependency installs. Models of Llama 1 and 2 and llama2.c's `tokenizer.bin` are
supported; models whose rules the library `tokenizers` lacks are refused.
"""

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_ablate.data.tokenizer import SPACE, Pieces, list_merges
from llama_ablate.errors import ConfigError

#: Kinds of pieces, as the format numbers them.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
#: Kinds of models.
UNIGRAM, BPE, WORD, CHAR = range(1, 5)
_FIRST = "<s>"


@dataclass(frozen=True)
class Piece:
    """Piece of a SentencePiece model, a vocabulary entry; the piece's index is its token id."""

    text: str
    score: float
    kind: int = NORMAL


@dataclass(frozen=True)
class PieceModel:
    """Parsed content of a SentencePiece model."""

    pieces: Sequence[Piece]
    kind: int = BPE
    byte_fallback: bool = True
    #: Whether a space is added before the text, and whether runs of spaces are collapsed.
    prefixed: bool = True
    shortened: bool = False
    #: Features that the library `tokenizers` does not support, as words of an error message.
    odd: Sequence[str] = field(default=())

    @property
    def unknown(self) -> int:
        """Id of the piece for unknown characters."""
        return next(i for i, piece in enumerate(self.pieces) if piece.kind == UNKNOWN)


def from_sentencepiece(data: bytes, saved: str) -> Pieces:
    """Return the tokenizer of a SentencePiece model, given the content of its file.

    `saved` is the JSON from which `read_saved` restores the tokenizer. Raises ConfigError for other
    content, and for unsupported models: word models, user-defined or unused pieces, spaces at the
    end of words, unescaped spaces, and rules that replace characters.
    """
    try:
        model = _parse_model(data)
        has_unknown = model.unknown >= 0
    except (LookupError, ValueError, struct.error, StopIteration, RecursionError):
        has_unknown = False
    if not has_unknown:
        raise ConfigError("it is no SentencePiece model")
    return _expressed(model, saved)


def from_llama2c(data: bytes, saved: str) -> Pieces:
    """Return the tokenizer of llama2.c's `tokenizer.bin`, the pieces of a SentencePiece BPE model.

    The file begins with a length, followed by (score, length, bytes) for each piece. `saved` is the
    JSON from which `read_saved` restores the tokenizer. Raises ConfigError for a damaged file.
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
    special = [
        Piece("<unk>", 0.0, UNKNOWN),
        Piece(_FIRST, 0.0, CONTROL),
        Piece("</s>", 0.0, CONTROL),
    ]
    special += [Piece(f"<0x{b:02X}>", 0.0, BYTE) for b in range(256)]
    try:
        normal = [Piece(text.decode().replace(" ", SPACE), score) for text, score in pieces[259:]]
    except UnicodeDecodeError:
        raise ConfigError("it has a piece that is no UTF-8 text") from None
    return _expressed(PieceModel([*special, *normal]), saved)


def _parse_model(data: bytes) -> PieceModel:
    """Parse a model, with the format's defaults for missing fields."""
    fields = _parse_message(data)
    trainer, normalizer = (_parse_message(fields.get(n, [b""])[-1]) for n in (2, 3))
    pieces = []
    for entry in map(_parse_message, fields[1]):
        text, score, kind = entry.get(1, [b""]), entry.get(2, [0.0]), entry.get(3, [NORMAL])
        pieces.append(Piece(text[-1].decode("utf-8"), score[-1], kind[-1]))
    kinds, kind = {piece.kind for piece in pieces}, trainer.get(3, [UNIGRAM])[-1]
    odd = {
        "of whole words": kind == WORD,
        "with user-defined symbols": USER_DEFINED in kinds,
        "with unused pieces": UNUSED in kinds,
        "with spaces behind words": trainer.get(24, [0])[-1],
        "that keeps spaces as they are": not normalizer.get(5, [1])[-1],
        "that replaces characters": normalizer.get(2, [b""])[-1],
    }
    return PieceModel(
        pieces=pieces,
        kind=kind,
        byte_fallback=bool(trainer.get(35, [0])[-1]),
        prefixed=bool(normalizer.get(3, [1])[-1]),
        shortened=bool(normalizer.get(4, [1])[-1]),
        odd=[what for what, is_odd in odd.items() if is_odd],
    )


def _parse_message(data: bytes) -> dict[int, list[Any]]:
    """Return the values of a protobuf message by field number: integers, floats, and bytes."""
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


def _expressed(parts: PieceModel, saved: str) -> Pieces:
    """Convert a model to a `tokenizers.Tokenizer`. Raises ConfigError for unsupported features."""
    import tokenizers
    from tokenizers import decoders, normalizers

    if parts.odd:
        what = "such a model is not read; give its tokenizer.json"
        raise ConfigError(f"a SentencePiece model {parts.odd[0]}: {what}")
    model = _unigram(parts) if parts.kind == UNIGRAM else _merged(parts)
    model.add_special_tokens([piece.text for piece in parts.pieces if piece.kind == CONTROL])
    steps: list[Any] = []
    if parts.shortened:
        steps.append(normalizers.Replace(tokenizers.Regex(r"\A +"), ""))
        steps.append(normalizers.Replace(tokenizers.Regex(" {2,}"), " "))
    if parts.prefixed:
        steps.append(normalizers.Prepend(SPACE))
    steps.append(normalizers.Replace(" ", SPACE))
    if parts.shortened:
        steps.append(normalizers.Replace(tokenizers.Regex(rf"{SPACE}+\z"), ""))
    model.normalizer = normalizers.Sequence(steps)
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if parts.prefixed or parts.shortened:
        back.append(decoders.Strip(" ", 1, 0))
    model.decoder = decoders.Sequence(back)
    if Piece(_FIRST, 0.0, CONTROL) in parts.pieces:
        first = (_FIRST, model.token_to_id(_FIRST))
        model.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{_FIRST} $A", special_tokens=[first]
        )
    return Pieces(model, saved, unknown=parts.unknown)


def _merged(parts: PieceModel) -> Any:
    """Build a BPE model whose merges are ranked by score; a character model has no merges."""
    import tokenizers

    return tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={p.text: i for i, p in enumerate(parts.pieces)},
            merges=list_merges({p.text: -p.score for p in parts.pieces if p.kind == NORMAL}),
            unk_token=parts.pieces[parts.unknown].text,
            fuse_unk=True,
            byte_fallback=parts.byte_fallback,
        )
    )


def _unigram(parts: PieceModel) -> Any:
    """Build a unigram tokenizer from a SentencePiece model.

    The library `tokenizers` matches every piece of the vocabulary in a text, SentencePiece only
    normal pieces. To prevent matches of other pieces (such as control tokens), the text is split
    beforehand: wherever the name of such a piece occurs, the text is split inside the name, at a
    position that no normal piece spans. Raises ConfigError if a name has no such position.
    """
    import tokenizers

    normal = {p.text for p in parts.pieces if p.kind == NORMAL}
    crossed = {text[i : i + 2] for text in normal for i in range(len(text) - 1)}
    cuts: dict[str, list[str]] = {}  # text before a cut: texts that may follow the cut
    for name in (p.text for p in parts.pieces if p.kind != NORMAL):
        places = [
            i
            for i in range(1, len(name))
            # Two unknown characters are one token, which must not be cut.
            if name[i - 1 : i + 1] not in crossed
            and (parts.byte_fallback or not normal.isdisjoint(name[i - 1 : i + 1]))
        ]
        if not places:
            raise ConfigError(f"a unigram SentencePiece model with pieces across '{name}'")
        before, behind = name[: places[0]], name[places[0] :]
        cuts.setdefault(re.escape(before), []).append(re.escape(behind))
    model = tokenizers.Tokenizer(
        tokenizers.models.Unigram(
            vocab=[(p.text, p.score) for p in parts.pieces],
            unk_id=parts.unknown,
            byte_fallback=parts.byte_fallback,
        )
    )
    cut = tokenizers.Regex("|".join(f"(?<={b})(?={'|'.join(names)})" for b, names in cuts.items()))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Split(cut, "isolated")
    return model
