"""Synthetic corpora of known entropy: a source's symbols as text, one character each."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_ablate.config.registry import Entry
from llama_ablate.data.corpora.corpus import CORPORA, SPLITS, Corpus
from llama_ablate.data.corpora.documents import Document
from llama_ablate.data.sources.chains import HiddenMarkov, Markov
from llama_ablate.data.sources.skills import Counting, Induction
from llama_ablate.data.sources.source import (
    LagCopy,
    Recall,
    Source,
    Symbols,
    at_least,
    within,
)

#: The code point of symbol 0. Letters follow it for more than `sources.SYMBOLS` code points; behind
#: them, at 0xD800, lie the surrogates, which no text can hold.
_FIRST = 0x4E00
_TOKENS = 20_000_000  # a minute of sampling, and a gigabyte of memory
_HELD_OUT = 20  # validation and test each have 1/20 of the training text's tokens

#: The corpora that have a source; its fields are options of the corpus, by the same names.
_SOURCES: dict[str, type[Any]] = {
    cls.name: cls for cls in (LagCopy, Markov, HiddenMarkov, Recall, Induction, Counting)
}


def source_of(entry: Entry) -> Source | None:
    """Return the source of a synthetic corpus, or None for ordinary text."""
    cls = _SOURCES.get(entry if isinstance(entry, str) else entry["name"])
    if cls is None:
        return None
    choice = CORPORA.resolve(entry)
    source: Source = cls(**{field.name: choice[field.name] for field in fields(cls)})
    return source


def symbols_of(characters: str, ids: NDArray[np.int64]) -> Symbols:
    """Return the source's symbols of a character tokenizer's ids."""
    points = np.frombuffer(characters.encode("utf-32-le"), np.uint32).astype(np.int64)
    return np.asarray(points[ids] - _FIRST)


@CORPORA.register("lag-copy")
def lag_copy(
    *, vocab: int = 64, lag: int = 3, noise: float = 0.1, tokens: int = 1_000_000, seed: int = 0
) -> Corpus:
    """Copy the symbol `lag` back, or with probability `noise` draw any: of known entropy."""
    return _stream(LagCopy(vocab, lag, noise), tokens, seed)


@CORPORA.register("markov")
def markov(
    *,
    vocab: int = 64,
    order: int = 1,
    concentration: float = 0.05,
    table_seed: int = 0,
    tokens: int = 1_000_000,
    seed: int = 0,
) -> Corpus:
    """Draw each symbol by those before it, from a table of Dirichlet rows: of known entropy."""
    return _stream(Markov(vocab, order, concentration, table_seed), tokens, seed)


@CORPORA.register("hmm")
def hmm(
    *,
    vocab: int = 64,
    states: int = 16,
    concentration: float = 0.05,
    table_seed: int = 0,
    tokens: int = 1_000_000,
    seed: int = 0,
) -> Corpus:
    """Let a hidden chain emit the symbols: of known entropy, by the forward filter."""
    return _stream(HiddenMarkov(vocab, states, concentration, table_seed), tokens, seed)


@CORPORA.register("recall")
def recall(
    *, keys: int = 8, values: int = 8, reset: float = 0.05, tokens: int = 1_000_000, seed: int = 0
) -> Corpus:
    """Ask for the value that a key had since the last reset (Arora et al. 2023): known entropy."""
    return _stream(Recall(keys, values, reset), tokens, seed)


@CORPORA.register("induction")
def induction(
    *,
    vocab: int = 16,
    jump: float = 0.1,
    reset: float = 0.02,
    tokens: int = 1_000_000,
    seed: int = 0,
) -> Corpus:
    """Let a symbol be followed by what followed it before (Olsson et al. 2022): known entropy."""
    return _stream(Induction(vocab, jump, reset), tokens, seed)


@CORPORA.register("counting")
def counting(*, longest: int = 16, tokens: int = 1_000_000, seed: int = 0) -> Corpus:
    """Write some of one symbol, then as many of the other: of known entropy."""
    return _stream(Counting(longest), tokens, seed)


def _stream(source: Source, tokens: int, seed: int) -> Corpus:
    within(1000, _TOKENS, tokens=tokens)
    at_least(0, seed=seed)
    lengths = (tokens, tokens // _HELD_OUT, tokens // _HELD_OUT)

    def sample() -> Iterator[Document]:
        for i, (split, length) in enumerate(zip(SPLITS, lengths, strict=True)):
            drawn = source.sample(np.random.default_rng([seed, i]), length)
            yield Document((_text(drawn),), split)

    return Corpus(sample, state=np.__version__)


def _text(symbols: Symbols) -> str:
    return (symbols + _FIRST).astype("<u4").tobytes().decode("utf-32-le")
