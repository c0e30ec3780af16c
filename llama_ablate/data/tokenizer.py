"""Tokenizers: bytes, characters and byte-level BPE, trained on a corpus or read from a file."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_ablate.config.registry import Registry
from llama_ablate.data.readers import SEPARATOR, refusing
from llama_ablate.data.texts import Text
from llama_ablate.errors import ConfigError

TOKENIZERS = Registry("tokenizer")

Ids = NDArray[np.int64]

#: Names of the end-of-document token; the first that a tokenizer has is used.
_ENDS = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|im_end|>")
#: Names of tokens at which generation stops.
_STOPS = (*_ENDS, "<|eot_id|>", "<|eom_id|>")
#: Names of the padding token; the first that a tokenizer has is used.
_PADS = ("<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "[PAD]")
SPACE = "\u2581"  # character that represents a space in pieces of SentencePiece
_PART = 8_000  # characters of each part of a text in `split_text`
#: Position at which byte-level BPE begins a new word, whatever the text before and after it.
_WORD_START = re.compile(r"(?=[ \n])(?:(?<=[0-9A-Za-z])|(?<=[!-~])(?= ))", re.ASCII)
_TRAINED_ON = 32_000_000  # bytes of text to train a tokenizer on: more would take gigabytes


def split_text(text: str) -> Iterator[str]:
    """Yield a text in parts of 8,000 characters or a few more, cut at the beginning of words."""
    start = 0
    while match := _WORD_START.search(text, start + _PART):
        yield text[start : match.start()]
        start = match.start()
    yield text[start:]


class Tokenizer(ABC):
    """Base class of tokenizers, which convert text to token ids and back.

    Names of special tokens in a text are parsed only by `prompt(special=True)`.
    """

    #: Ids of special tokens by name; most tokenizers that are trained here have none.
    special: Mapping[str, int] = MappingProxyType({})
    #: The beginning-of-sequence token, added before every prompt; None if there is no such token.
    bos: int | None = None
    #: The token for text that the vocabulary lacks; None if the vocabulary covers every text.
    unknown: int | None = None

    @property
    @abstractmethod
    def vocab(self) -> int:
        """Number of token ids, special tokens included."""

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """Return the token ids of a text; special token names are ordinary text."""

    @abstractmethod
    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of token ids."""

    @abstractmethod
    def to_json(self) -> str:
        """Return the JSON from which `read_saved` restores the tokenizer."""

    @abstractmethod
    def expressed(self) -> Any:
        """Return an equivalent tokenizer of the library `tokenizers`."""

    @property
    def end(self) -> int | None:
        """Id of the end-of-document token; None if there is no such token."""
        return next((self.special[name] for name in _ENDS if name in self.special), None)

    @property
    def separator(self) -> int | None:
        """Token between documents; None if the tokenizer cannot encode several documents.

        The token is the end-of-document token, or else the last token of the encoded SEPARATOR.
        """
        if self.end is not None:
            return self.end
        try:
            token = self.encode(SEPARATOR)[-1:].tolist()
        except ConfigError:  # a character tokenizer without SEPARATOR
            return None
        return token[0] if self.decode(token) == SEPARATOR else None

    @property
    def pad(self) -> int | None:
        """Id of the padding token; None if there is no such token."""
        return next((self.special[name] for name in _PADS if name in self.special), None)

    @property
    def stops(self) -> frozenset[int]:
        """Ids at which generation stops, the beginning-of-sequence token included."""
        named = {self.special[name] for name in _STOPS if name in self.special}
        return frozenset(named if self.bos is None else named | {self.bos})

    def piece(self, token: int) -> str:
        """Return the text that represents one token in labels."""
        return self.decode([token])

    def prompt(self, text: str, *, special: bool = False) -> list[int]:
        """Return the token ids of a prompt, with the beginning-of-sequence token first.

        With `special`, names of special tokens in the text are parsed.
        """
        ids = [] if self.bos is None else [self.bos]
        names = sorted(self.special, key=len, reverse=True) if special else []
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        for part in parts:
            ids += [self.special[part]] if part in names else self.encode(part).tolist()
        return ids

    def encode_documents(self, text: str) -> Ids:
        """Return the token ids of documents that are joined by SEPARATOR in one text.

        Each document is encoded separately. The token between documents is the end-of-document
        token; a tokenizer without this token encodes SEPARATOR.
        """
        documents = text.split(SEPARATOR)
        if self.end is None:
            documents[:-1] = [document + SEPARATOR for document in documents[:-1]]
            return np.concatenate(self.encode_many(documents))
        end = np.array([self.end], np.int64)
        parts = [part for ids in self.encode_many(documents) for part in (ids, end)]
        return np.concatenate(parts[:-1])

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Return the token ids of each of several texts."""
        return [self.encode(text) for text in texts]


@dataclass(frozen=True)
class Bytes(Tokenizer):
    """Byte tokenizer: a text's token ids are its UTF-8 bytes."""

    @property
    def vocab(self) -> int:
        """Number of token ids: 256."""
        return 256

    def encode(self, text: str) -> Ids:
        """Return the UTF-8 bytes of a text."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def encode_documents(self, text: str) -> Ids:
        """Return the UTF-8 bytes of documents, and of the SEPARATOR between them."""
        return self.encode(text)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of UTF-8 bytes; invalid sequences become the replacement character."""
        return bytes(int(i) for i in ids).decode("utf-8", "replace")

    def to_json(self) -> str:
        """Return JSON with the kind alone, since a byte tokenizer is not trained."""
        return json.dumps({"kind": "bytes"})

    def expressed(self) -> Any:
        """Return a byte-level BPE tokenizer without merges."""
        return byte_level_bpe({bytes([b]): b for b in range(256)})


@dataclass(frozen=True)
class Chars(Tokenizer):
    """Character tokenizer, with ids in the order of code points."""

    characters: str

    @property
    def vocab(self) -> int:
        """Number of characters."""
        return len(self.characters)

    def encode(self, text: str) -> Ids:
        """Return the ids of a text's characters. Raises ConfigError for an unknown character."""
        symbols = np.frombuffer(self.characters.encode("utf-32-le"), np.uint32)
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        ids = np.searchsorted(symbols, points)
        wrong = np.flatnonzero(symbols[np.minimum(ids, len(symbols) - 1)] != points)
        if len(wrong):
            raise ConfigError(f"the character {text[wrong[0]]!r} is not in the vocabulary")
        return ids.astype(np.int64)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of token ids."""
        return "".join(self.characters[int(i)] for i in ids)

    def to_json(self) -> str:
        """Return JSON with the kind and the characters."""
        return json.dumps({"kind": "chars", "characters": self.characters})

    def expressed(self) -> Any:
        """Build a character-level `tokenizers.Tokenizer` without an unknown token."""
        import tokenizers

        vocab = {character: i for i, character in enumerate(self.characters)}
        model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab=vocab, unk_token=""))
        each = tokenizers.Regex(r"[\s\S]")
        model.pre_tokenizer = tokenizers.pre_tokenizers.Split(each, "isolated")
        model.decoder = tokenizers.decoders.Fuse()
        return model


class Pieces(Tokenizer):
    """Tokenizer that wraps a `tokenizers.Tokenizer`, which was trained here or read from files.

    `saved` is the JSON from which `read_saved` restores the tokenizer, by default made of the
    library's own JSON. `aliases` are further names of special tokens. `unknown` is the id of the
    unknown token, if the library does not name it.
    """

    def __init__(
        self,
        model: Any,
        saved: str | None = None,
        aliases: Mapping[str, int] = MappingProxyType({}),
        unknown: int | None = None,
    ) -> None:
        self.model, self._saved = model, saved
        # A file may request truncation or padding, which would change texts.
        model.no_truncation()
        model.no_padding()
        # Otherwise the library would parse "<|endoftext|>" in a user's text as the special token.
        model.encode_special_tokens = True
        added = model.get_added_tokens_decoder()
        self.special = {token.content: i for i, token in added.items() if token.special}
        self.special |= aliases
        first = model.encode("", add_special_tokens=True).ids[:1]
        # Some tokenizers add a token after a text, and none before it.
        before = bool(first) and model.encode("a", add_special_tokens=True).ids[:1] == first
        self.bos = first[0] if before and first[0] != self.end else None
        named = getattr(model.model, "unk_token", None)
        self.unknown = model.token_to_id(named) if named else unknown

    @property
    def vocab(self) -> int:
        """Largest id plus one, since ids may have gaps."""
        return int(max(self.model.get_vocab(with_added_tokens=True).values(), default=0)) + 1

    def encode(self, text: str) -> Ids:
        """Return the token ids of a text."""
        with refusing("the tokenizer cannot encode this text"):
            return np.asarray(self.model.encode(text, add_special_tokens=False).ids, np.int64)

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Return the token ids of each of several texts."""
        with refusing("the tokenizer cannot encode this text"):
            encodings = self.model.encode_batch_fast(texts, add_special_tokens=False)
        return [np.asarray(encoding.ids, np.int64) for encoding in encodings]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of token ids."""
        with refusing("the tokenizer cannot decode these tokens"):
            return str(self.model.decode([int(i) for i in ids], skip_special_tokens=False))

    def piece(self, token: int) -> str:
        """Return a token as the vocabulary lists it, with plain spaces.

        A token of a byte-level tokenizer is decoded to text instead.
        """
        if type(self.model.decoder).__name__ == "ByteLevel":
            return self.decode([token])
        return (self.model.id_to_token(int(token)) or "").replace(SPACE, " ")

    def expressed(self) -> Any:
        """Return a copy of the wrapped `tokenizers.Tokenizer`."""
        import tokenizers

        return tokenizers.Tokenizer.from_str(self.model.to_str())

    def to_json(self) -> str:
        """Return the saved JSON of the tokenizer's file, or else the library's own JSON."""
        return self._saved or json.dumps({"kind": "bpe", "model": json.loads(self.model.to_str())})


def byte_level_bpe(
    ranks: Mapping[bytes, int], special: Mapping[str, int] = MappingProxyType({})
) -> Any:
    """Build a byte-level BPE tokenizer that merges pairs by rank, the lowest rank first.

    `ranks` maps the bytes of each token to its rank, which is its id. `special` maps special tokens
    to their ids, which may leave gaps; merges never produce special tokens.
    """
    import tokenizers

    characters = _byte_characters()
    vocab = {"".join(characters[b] for b in token): rank for token, rank in ranks.items()}
    # A pre-split part of a text that is itself a token becomes that token, as in tiktoken.
    bpe = tokenizers.models.BPE(
        vocab={**vocab, **special}, merges=list_merges(vocab), ignore_merges=True
    )
    model = tokenizers.Tokenizer(bpe)
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.pre_tokenizer, model.decoder = level, tokenizers.decoders.ByteLevel()
    return model


def list_merges(order: Mapping[str, float]) -> list[tuple[str, str]]:
    """List all pairs of tokens that merge to a token, ordered by merged token."""
    return [
        (token[:i], token[i:])
        for token in sorted(order, key=lambda token: order[token])
        for i in range(len(token) - 1, 0, -1)
        if token[:i] in order and token[i:] in order
    ]


def _byte_characters() -> dict[int, str]:
    """Map each byte to the character that represents the byte in `tokenizers`' byte-level BPE.

    A printable byte maps to itself. The other bytes map, in order, to the characters from code
    point 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


@dataclass(frozen=True)
class Maker:
    """Function that makes a tokenizer from a corpus' text, and a key for caching the tokens.

    `identity` identifies the inputs other than the text, for example by a file's hash; "" if there
    are none. `most` is the largest number of bytes of the training split that the function reads;
    None for no limit.
    """

    make: Callable[[Text], Tokenizer]
    identity: str = ""
    most: int | None = None


def as_maker(built: Any) -> Maker:
    """Return a registered tokenizer's `Maker`, given the result of its function.

    A plug-in's function may return a `Maker`, a `Tokenizer`, or a tokenizer of the library
    `tokenizers`, which is wrapped.
    """
    if isinstance(built, Maker):
        return built
    tokenizer = built if isinstance(built, Tokenizer) else Pieces(built)
    identity = hashlib.sha256(tokenizer.to_json().encode()).hexdigest()[:16]
    return Maker(lambda _: tokenizer, identity)


@TOKENIZERS.register("bytes")
def byte_tokens() -> Maker:
    """Use UTF-8 bytes as tokens: 256 ids, no training, and no unknown text."""
    return Maker(lambda _: Bytes())


@TOKENIZERS.register("chars")
def char_tokens() -> Maker:
    """Use characters as tokens: every character of any split has an id."""

    def collect(text: Text) -> Chars:
        characters: set[str] = set()
        for split in text.sizes:
            for piece in text.pieces(split):
                characters.update(piece)
        return Chars("".join(sorted(characters)))

    return Maker(collect)


@TOKENIZERS.register("bpe")
def bpe_tokens(*, vocab: int = 2048) -> Maker:
    """Train byte-level BPE on the training split (Sennrich et al. 2016, arXiv:1508.07909).

    A split of more than 32 MB is sampled: 1,000 parts of 32 kB, evenly spaced.
    """
    if not 256 < vocab <= 1_000_000:
        raise ConfigError(
            f"vocab {vocab}: must be more than the 256 bytes that byte-level BPE "
            "begins with, and 1,000,000 or less",
            ("vocab",),
        )

    def train(text: Text) -> Pieces:
        import tokenizers

        model = tokenizers.Tokenizer(tokenizers.models.BPE())
        model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab,
            show_progress=False,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        )
        if text.sizes["train"] > _TRAINED_ON:
            texts = text.sample("train", 1000, _TRAINED_ON // 1000)
        else:
            texts = chain.from_iterable(p.split(SEPARATOR) for p in text.pieces("train"))
        # The trainer needs a hundred times the memory of each text that it is given.
        model.train_from_iterator(chain.from_iterable(map(split_text, texts)), trainer)
        return Pieces(model)

    return Maker(train, most=_TRAINED_ON)
