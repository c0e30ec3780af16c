"""Tokenizers of SentencePiece models (arXiv:1808.06226), and of llama2.c's `tokenizer.bin`.

The optional package `sentencepiece` reads models of every kind.
"""

import struct
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from llama_ablate.data.readers import refusing
from llama_ablate.data.tokenizer import SPACE, Ids, Pieces, Tokenizer, list_merges
from llama_ablate.errors import ConfigError, require

_CONTROL = ("<s>", "</s>")


class SentencePiece(Tokenizer):
    """SentencePiece model of any kind, by whose package texts are encoded and decoded.

    `saved` is the JSON from which `read_saved` restores the tokenizer. Raises ConfigError for
    content that is no model.
    """

    def __init__(self, data: bytes, saved: str) -> None:
        require("sentencepiece", "a SentencePiece tokenizer.model")
        import sentencepiece

        with refusing("it is no SentencePiece model"):
            self.model = sentencepiece.SentencePieceProcessor(model_proto=data)
            ids = range(self.model.get_piece_size())
            self.pieces = [self.model.id_to_piece(i) for i in ids]
        self.special = {self.pieces[i]: i for i in ids if self.model.is_control(i)}
        self.bos, self.unknown = self.special.get(_CONTROL[0]), self.model.unk_id()
        self._saved = saved

    @property
    def vocab(self) -> int:
        """Number of pieces."""
        return len(self.pieces)

    def encode(self, text: str) -> Ids:
        """Return the token ids of a text."""
        return np.asarray(self.model.encode(text), np.int64)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of token ids, with the names of control tokens."""
        names = {i: name for name, i in self.special.items()}
        parts, run = "", list[int]()
        for token in map(int, ids):
            if token in names:
                parts, run = parts + self.model.decode(run) + names[token], []
            else:
                run.append(token)
        return parts + str(self.model.decode(run))

    def piece(self, token: int) -> str:
        """Return a token as the model lists it, with plain spaces."""
        return self.pieces[int(token)].replace(SPACE, " ")

    def to_json(self) -> str:
        """Return the saved JSON of the model's file."""
        return self._saved

    def expressed(self) -> Any:
        """Return an equivalent tokenizer of the library `tokenizers`, for BPE as Llama's.

        Raises ConfigError for a model of other rules: ids of the converted tokenizer are compared
        with the model's own on all pieces.
        """
        return self.converted().expressed()

    def converted(self) -> Pieces:
        """Return the model as a tokenizer of the library `tokenizers`. Raises ConfigError."""
        model, texts = self.model, self.pieces
        ids = range(len(texts))
        other = {i for i in ids if model.is_control(i) or model.is_unknown(i) or model.is_byte(i)}
        tokenizer = _from_pieces(
            texts,
            {texts[i]: model.get_score(i) for i in ids if i not in other},
            [*self.special],
            self._saved,
            unknown=model.unk_id(),
            byte_fallback=any(model.is_byte(i) for i in ids),
            prefixed=model.encode_as_pieces("x")[0].startswith(SPACE),
        )
        plain = [texts[i].replace(SPACE, " ") for i in ids if i not in other]
        probes = [way.join(plain[at::97]) for at in range(97) for way in ("", "\ufb01  ")]
        if [row.tolist() for row in tokenizer.encode_many(probes)] != model.encode(probes):
            raise ConfigError(
                "a SentencePiece model with other rules than Llama's has no equal tokenizer.json"
            )
        return tokenizer


def from_sentencepiece(data: bytes, saved: str) -> Tokenizer:
    """Return the tokenizer of a SentencePiece model, the content of a `tokenizer.model`.

    BPE as Llama's is converted to a tokenizer of the library `tokenizers`, which encodes in several
    threads. Raises ConfigError for other content.
    """
    tokenizer = SentencePiece(data, saved)
    with suppress(ConfigError):
        return tokenizer.converted()
    return tokenizer


def from_llama2c(data: bytes, saved: str) -> Pieces:
    """Return the tokenizer of llama2.c's `tokenizer.bin`, the pieces of a SentencePiece BPE model.

    The file begins with a length, followed by (score, length, bytes) for each piece. `saved` is the
    JSON from which `read_saved` restores the tokenizer. Raises ConfigError for a damaged file.
    """
    texts = ["<unk>", *_CONTROL, *(f"<0x{b:02X}>" for b in range(256))]
    scores: dict[str, float] = {}
    at, count = 4, 0
    try:
        while at < len(data):
            score, length = struct.unpack_from("<fI", data, at)
            (text,) = struct.unpack_from(f"{length}s", data, at + 8)
            at, count = at + 8 + length, count + 1
            if count > len(texts) - len(scores):  # behind the special pieces and the bytes
                texts.append(text.decode().replace(" ", SPACE))
                scores[texts[-1]] = score
    except (struct.error, UnicodeDecodeError):
        raise ConfigError(f"it is damaged at piece {count}") from None
    if not scores:
        raise ConfigError(f"it has {count} pieces, no more than 3 special ones and 256 bytes")
    return _from_pieces(texts, scores, _CONTROL, saved)


def _from_pieces(
    texts: Sequence[str],
    scores: Mapping[str, float],
    control: Collection[str],
    saved: str,
    *,
    unknown: int = 0,
    byte_fallback: bool = True,
    prefixed: bool = True,
) -> Pieces:
    """Build a BPE tokenizer of all pieces' texts by id, whose merges are ranked by score.

    `prefixed` says whether a space is added before the text.
    """
    import tokenizers
    from tokenizers import decoders, normalizers

    bpe = tokenizers.models.BPE(
        vocab={text: i for i, text in enumerate(texts)},
        merges=list_merges({text: -score for text, score in scores.items()}),
        unk_token=texts[unknown],
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )
    model = tokenizers.Tokenizer(bpe)
    model.add_special_tokens([*control])
    steps = [normalizers.Prepend(SPACE)] * prefixed + [normalizers.Replace(" ", SPACE)]
    model.normalizer = normalizers.Sequence(steps)
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    back += [decoders.Strip(" ", 1, 0)] * prefixed
    model.decoder = decoders.Sequence(back)
    if (first := _CONTROL[0]) in control:
        model.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{first} $A", special_tokens=[(first, model.token_to_id(first))]
        )
    return Pieces(model, saved, unknown=unknown)
