"""Tokenizers: bytes, characters and byte-level BPE, trained on a corpus or read from a file."""

import hashlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_ablate.config.registry import Registry
from llama_ablate.data.readers import SEPARATOR
from llama_ablate.data.texts import Text
from llama_ablate.errors import ConfigError

TOKENIZERS = Registry("tokenizer")

Ids = NDArray[np.int64]

#: Names of the end-of-document token; the first that a tokenizer has is used.
_ENDS = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|im_end|>")
#: Tokens at which generation stops.
_STOPS = (*_ENDS, "<|eot_id|>", "<|eom_id|>")
#: Names of the padding token; the first that a tokenizer has is used.
_PADS = ("<pad>", "<|pad|>", "<|finetune_right_pad_id|>", "[PAD]")
SPACE = "\u2581"  # how pieces of SentencePiece write a space
_PART = 8_000  # characters of a part of a text
#: Where byte-level BPE cuts a text into words, whatever stands on either side.
_WORD_START = re.compile(r"(?=[ \n])(?:(?<=[0-9A-Za-z])|(?<=[!-~])(?= ))", re.ASCII)
_TRAINED_ON = 32_000_000  # bytes of text that a tokenizer is trained on: more takes gigabytes


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Raise ConfigError, with `what` and the reason, for whatever a library raises.

    A panic in Rust is no Exception, and is written to standard error before it is raised: standard
    error is discarded meanwhile, for all threads.
    """
    with _without_stderr():
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  panics are not Exceptions
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigError(f"{what} ({reason})") from None


@contextmanager
def _without_stderr() -> Iterator[None]:
    try:
        stderr_copy = os.dup(2)
    except OSError:  # it is closed already
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr_copy, 2)
        os.close(nowhere)
        os.close(stderr_copy)


def split_text(text: str) -> Iterator[str]:
    """Yield a text in parts of 8,000 characters or a few more, cut at the beginning of words."""
    start = 0
    while match := _WORD_START.search(text, start + _PART):
        yield text[start : match.start()]
        start = match.start()
    yield text[start:]


class Tokenizer(ABC):
    """Text to ids and back. Special tokens are parsed only by `prompt(special=True)`."""

    #: The special tokens by name; most tokenizers that are trained here have none.
    special: Mapping[str, int] = MappingProxyType({})
    #: The beginning-of-sequence token, put before every prompt; None where there is none.
    bos: int | None = None
    #: The token for text that the vocabulary does not have; None where nothing is unknown.
    unknown: int | None = None

    @property
    @abstractmethod
    def vocab(self) -> int:
        """Number of ids, special ids included."""

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """Return the ids of a text; names of special tokens in it are text like any other."""

    @abstractmethod
    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text of ids."""

    @abstractmethod
    def to_json(self) -> str:
        """Return the JSON from which `read_saved` makes it again."""

    @abstractmethod
    def expressed(self) -> Any:
        """Return the same tokenizer as the library `tokenizers` has it."""

    @property
    def end(self) -> int | None:
        """End-of-document token, if any."""
        return next((self.special[name] for name in _ENDS if name in self.special), None)

    @property
    def separator(self) -> int | None:
        """The token that stands between documents; None where no text of several was encoded."""
        if self.end is not None:
            return self.end
        try:
            token = self.encode(SEPARATOR)[-1:].tolist()
        except ConfigError:  # characters of a corpus of one document
            return None
        return token[0] if self.decode(token) == SEPARATOR else None

    @property
    def pad(self) -> int | None:
        """Padding token, if any."""
        return next((self.special[name] for name in _PADS if name in self.special), None)

    @property
    def stops(self) -> frozenset[int]:
        """Tokens at which generation stops, the beginning-of-sequence token included."""
        named = {self.special[name] for name in _STOPS if name in self.special}
        return frozenset(named if self.bos is None else named | {self.bos})

    def piece(self, token: int) -> str:
        """Return what one token looks like, for labels."""
        return self.decode([token])

    def prompt(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of a prompt; with `special`, names of special tokens in it are parsed."""
        ids = [] if self.bos is None else [self.bos]
        names = sorted(self.special, key=len, reverse=True) if special else []
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
        for part in parts:
            ids += [self.special[part]] if part in names else self.encode(part).tolist()
        return ids

    def encode_documents(self, text: str) -> Ids:
        """Return the ids of documents joined by SEPARATOR, each encoded alone.

        Between them stands the end-of-document token, or the separator where there is none.
        """
        documents = text.split(SEPARATOR)
        if self.end is None:
            documents[:-1] = [document + SEPARATOR for document in documents[:-1]]
            return np.concatenate(self.encode_many(documents))
        end = np.array([self.end], np.int64)
        parts = [part for ids in self.encode_many(documents) for part in (ids, end)]
        return np.concatenate(parts[:-1])

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of several texts."""
        return [self.encode(text) for text in texts]


@dataclass(frozen=True)
class Bytes(Tokenizer):
    """The 256 bytes of UTF-8."""

    @property
    def vocab(self) -> int:
        """Number of ids: 256."""
        return 256

    def encode(self, text: str) -> Ids:
        """Return the bytes."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text; broken sequences become the replacement character."""
        return bytes(int(i) for i in ids).decode("utf-8", "replace")

    def to_json(self) -> str:
        """Return the kind alone: nothing was learned."""
        return json.dumps({"kind": "bytes"})

    def expressed(self) -> Any:
        """Return byte-level BPE without merges."""
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
        """Return the characters' ids. Raises ConfigError for one that is not in the vocabulary."""
        symbols = np.frombuffer(self.characters.encode("utf-32-le"), np.uint32)
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        ids = np.searchsorted(symbols, points)
        wrong = np.flatnonzero(symbols[np.minimum(ids, len(symbols) - 1)] != points)
        if len(wrong):
            raise ConfigError(f"the character {text[wrong[0]]!r} is not in the vocabulary")
        return ids.astype(np.int64)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text."""
        return "".join(self.characters[int(i)] for i in ids)

    def to_json(self) -> str:
        """Return the characters."""
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
    """A tokenizer of the `tokenizers` library: trained here, or read from files.

    `saved` is the JSON from which `read_saved` makes it again; the library's own by default.
    `aliases` are further names of special tokens; `unknown` is given where the library does not
    name that token.
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
        # Else the library would take "<|endoftext|>" in a user's text for the token.
        model.encode_special_tokens = True
        added = model.get_added_tokens_decoder()
        self.special = {token.content: i for i, token in added.items() if token.special}
        self.special |= aliases
        first = model.encode("", add_special_tokens=True).ids[:1]
        # Some add no token before a text but one after it.
        before = bool(first) and model.encode("a", add_special_tokens=True).ids[:1] == first
        self.bos = first[0] if before and first[0] != self.end else None
        named = getattr(model.model, "unk_token", None)
        self.unknown = model.token_to_id(named) if named else unknown

    @property
    def vocab(self) -> int:
        """Largest id plus one, since ids may have gaps."""
        return int(max(self.model.get_vocab(with_added_tokens=True).values(), default=0)) + 1

    def encode(self, text: str) -> Ids:
        """Return the pieces' ids."""
        with refusing("the tokenizer cannot encode this text"):
            return np.asarray(self.model.encode(text, add_special_tokens=False).ids, np.int64)

    def encode_many(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of several texts."""
        with refusing("the tokenizer cannot encode this text"):
            encodings = self.model.encode_batch_fast(texts, add_special_tokens=False)
        return [np.asarray(encoding.ids, np.int64) for encoding in encodings]

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """Return the text."""
        with refusing("the tokenizer cannot decode these tokens"):
            return str(self.model.decode([int(i) for i in ids], skip_special_tokens=False))

    def piece(self, token: int) -> str:
        """Return the piece as the vocabulary lists it, with plain spaces, or its bytes as text."""
        if type(self.model.decoder).__name__ == "ByteLevel":
            return self.decode([token])
        return (self.model.id_to_token(int(token)) or "").replace(SPACE, " ")

    def expressed(self) -> Any:
        """Return a copy of the library's tokenizer."""
        import tokenizers

        return tokenizers.Tokenizer.from_str(self.model.to_str())

    def to_json(self) -> str:
        """Return the library's own JSON, or the file that it was read from."""
        return self._saved or json.dumps({"kind": "bpe", "model": json.loads(self.model.to_str())})


def byte_level_bpe(
    ranks: Mapping[bytes, int], special: Mapping[str, int] = MappingProxyType({})
) -> Any:
    """Return byte-level BPE that merges by rank, the lowest first.

    `special` tokens get their ids, which may leave gaps, and are made by no merge.
    """
    import tokenizers

    characters = _byte_characters()
    vocab = {"".join(characters[b] for b in token): rank for token, rank in ranks.items()}
    # A part of a text that is a token as a whole stays whole, as in tiktoken.
    bpe = tokenizers.models.BPE(
        vocab={**vocab, **special}, merges=list_merges(vocab), ignore_merges=True
    )
    model = tokenizers.Tokenizer(bpe)
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.pre_tokenizer, model.decoder = level, tokenizers.decoders.ByteLevel()
    return model


def list_merges(order: Mapping[str, float]) -> list[tuple[str, str]]:
    """List all pairs of tokens that form a token, in the order of the formed tokens."""
    return [
        (token[:i], token[i:])
        for token in sorted(order, key=lambda token: order[token])
        for i in range(len(token) - 1, 0, -1)
        if token[:i] in order and token[i:] in order
    ]


def _byte_characters() -> dict[int, str]:
    """Return the character as which `tokenizers` shows each byte.

    A printable one is shown as itself, the others, in order, as those from code point 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


@dataclass(frozen=True)
class Maker:
    """Maker of a tokenizer from a text; `identity` identifies its other inputs.

    `most` is how many bytes of the training split it looks at.
    """

    make: Callable[[Text], Tokenizer]
    identity: str = ""
    most: int | None = None


def as_maker(built: Any) -> Maker:
    """Return the maker of a registered tokenizer; a plug-in may build a library's tokenizer."""
    if isinstance(built, Maker):
        return built
    tokenizer = built if isinstance(built, Tokenizer) else Pieces(built)
    identity = hashlib.sha256(tokenizer.to_json().encode()).hexdigest()[:16]
    return Maker(lambda _: tokenizer, identity)


@TOKENIZERS.register("bytes")
def byte_tokens() -> Maker:
    """Take the bytes of UTF-8: 256 ids, nothing to train, nothing unknown."""
    return Maker(lambda _: Bytes())


@TOKENIZERS.register("chars")
def char_tokens() -> Maker:
    """Take characters: an id for each that the corpus holds in any split, so none is unknown."""

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
        # The trainer needs a hundred times the memory of what it gets at a time.
        model.train_from_iterator(chain.from_iterable(map(split_text, texts)), trainer)
        return Pieces(model)

    return Maker(train, most=_TRAINED_ON)
