"""Tokenizers: text to integers and back. Each is made from a corpus and saved as plain JSON."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from llama_ablate.data.corpora import SEPARATOR, Corpus
from llama_ablate.errors import ConfigError
from llama_ablate.registry import Registry

TOKENIZERS = Registry("tokenizer")

Ids = NDArray[np.int64]


class Tokenizer(Protocol):
    """What the store of tokens needs; `encode` then `decode` gives the text back."""

    @property
    def vocab(self) -> int:
        """How many ids there are."""
        ...

    def encode(self, text: str) -> Ids:
        """Return the ids of a text."""
        ...

    def decode(self, ids: Ids) -> str:
        """Return the text of ids."""
        ...

    def to_json(self) -> str:
        """Return all that `from_json` needs."""
        ...


@dataclass(frozen=True)
class Bytes:
    """The 256 bytes of UTF-8."""

    vocab: int = 256

    def encode(self, text: str) -> Ids:
        """Return the bytes."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def decode(self, ids: Ids) -> str:
        """Return the text; broken sequences become the replacement character."""
        return bytes(int(i) for i in ids).decode("utf-8", "replace")

    def to_json(self) -> str:
        """Return the kind alone: nothing was learned."""
        return json.dumps({"kind": "bytes"})


@dataclass(frozen=True)
class Chars:
    """One id for each character, in the order of their code points."""

    characters: str

    @property
    def vocab(self) -> int:
        """How many characters there are."""
        return len(self.characters)

    def encode(self, text: str) -> Ids:
        """Return the characters' ids. Raises ValueError for one that is not in the vocabulary."""
        known = np.frombuffer(self.characters.encode("utf-32-le"), np.uint32)
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        ids = np.searchsorted(known, points)
        wrong = np.flatnonzero(known[np.minimum(ids, len(known) - 1)] != points)
        if len(wrong):
            raise ValueError(f"the character {text[wrong[0]]!r} is not in the vocabulary")
        return ids.astype(np.int64)

    def decode(self, ids: Ids) -> str:
        """Return the text."""
        return "".join(self.characters[int(i)] for i in ids)

    def to_json(self) -> str:
        """Return the characters."""
        return json.dumps({"kind": "chars", "characters": self.characters})


class BPE:
    """Byte-level byte-pair encoding, by the `tokenizers` library."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def vocab(self) -> int:
        """How many pieces there are."""
        return int(self._model.get_vocab_size())

    def encode(self, text: str) -> Ids:
        """Return the pieces' ids; documents are encoded apart, so no piece spans two."""
        parts = [part + SEPARATOR for part in text.split(SEPARATOR)]
        parts[-1] = parts[-1].removesuffix(SEPARATOR)
        encodings = self._model.encode_batch_fast(parts)
        return np.concatenate([np.asarray(e.ids, np.int64) for e in encodings])

    def decode(self, ids: Ids) -> str:
        """Return the text."""
        return str(self._model.decode([int(i) for i in ids], skip_special_tokens=False))

    def to_json(self) -> str:
        """Return the library's own JSON."""
        return json.dumps({"kind": "bpe", "model": json.loads(self._model.to_str())})


Maker = Callable[[Corpus], Tokenizer]


@TOKENIZERS.register("bytes")
def byte_tokens() -> Maker:
    """Take the bytes of UTF-8: 256 ids, nothing to train, nothing unknown."""
    return lambda _: Bytes()


@TOKENIZERS.register("chars")
def char_tokens() -> Maker:
    """Take characters: an id for each that the corpus holds in any split, so none is unknown."""
    return lambda corpus: Chars("".join(sorted(set().union(*corpus.splits.values()))))


@TOKENIZERS.register("bpe")
def bpe_tokens(*, vocab: int = 2048) -> Maker:
    """Train byte-level BPE on the training split (Sennrich et al. 2016, arXiv:1508.07909)."""
    if not 256 < vocab <= 1_000_000:
        message = f"vocab {vocab}: byte-level BPE needs more than its 256 bytes"
        raise ConfigError(message, ("vocab",))

    def train(corpus: Corpus) -> BPE:
        import tokenizers

        model = tokenizers.Tokenizer(tokenizers.models.BPE())
        model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=vocab,
            show_progress=False,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        )
        model.train_from_iterator(corpus.train.split(SEPARATOR), trainer)
        return BPE(model)

    return train


def from_json(text: str) -> Tokenizer:
    """Make a saved tokenizer again."""
    saved = json.loads(text)
    if saved["kind"] == "bytes":
        return Bytes()
    if saved["kind"] == "chars":
        return Chars(saved["characters"])
    import tokenizers

    return BPE(tokenizers.Tokenizer.from_str(json.dumps(saved["model"])))
