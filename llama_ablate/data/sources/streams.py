"""Synthetic corpora of known entropy: a source's symbols as text, one character each."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

from llama_ablate.config.registry import Entry
from llama_ablate.data.corpus import CORPORA, SPLITS, Corpus
from llama_ablate.data.readers import Document
from llama_ablate.data.sources.episodes import HELD_OUT, DrawnEpisodes, Episodes, depo, mano, mqar
from llama_ablate.data.sources.source import (
    Induction,
    LagCopy,
    Recall,
    Source,
    Symbols,
    at_least,
    within,
)

#: The code point of symbol 0. More than `source.SYMBOLS` letters follow it, before the surrogates
#: at 0xD800, which text cannot contain.
_FIRST = 0x4E00
_TOKENS = 20_000_000  # most tokens: a minute of sampling, and a gigabyte of memory

#: Functions that build the source of each synthetic corpus, by the corpus' name; their options are
#: options of the corpus, too.
_SOURCES: dict[str, Callable[..., Source]] = {}


def source_of(entry: Entry) -> Source | None:
    """Return the source of a synthetic corpus, or None for ordinary text."""
    make = _SOURCES.get(entry if isinstance(entry, str) else entry["name"])
    if make is None:
        return None
    choice = CORPORA.resolve(entry)
    return make(**{key: value for key, value in choice.options if key not in _STREAM})


def symbols_of(characters: str, ids: NDArray[np.int64]) -> Symbols:
    """Convert the token ids of a character tokenizer to the source's symbols."""
    points = np.frombuffer(characters.encode("utf-32-le"), np.uint32).astype(np.int64)
    return np.asarray(points[ids] - _FIRST)


def _stream(source: Source, *, tokens: int = 1_000_000, seed: int = 0) -> Corpus:
    within(1000, _TOKENS, tokens=tokens)
    at_least(0, seed=seed)
    lengths = (tokens, tokens // HELD_OUT, tokens // HELD_OUT)

    def sample() -> Iterator[Document]:
        for i, (split, length) in enumerate(zip(SPLITS, lengths, strict=True)):
            split_source = replace(source, split=i) if isinstance(source, Episodes) else source
            symbols = split_source.sample(np.random.default_rng([seed, i]), length)
            yield Document((_text(symbols),), split)

    return Corpus(sample, state=np.__version__)


def _text(symbols: Symbols) -> bytes:
    return (symbols + _FIRST).astype("<u4").tobytes().decode("utf-32-le").encode()


_STREAM = {
    p.name: p for p in inspect.signature(_stream).parameters.values() if p.kind == p.KEYWORD_ONLY
}


def _register(name: str, declared: Callable[..., Any], make: Callable[..., Source]) -> None:
    """Register a synthetic corpus, whose options are the parameters of `declared` with defaults.

    `make` builds the corpus' source from these options.
    """

    def corpus(**options: Any) -> Corpus:
        stream_options = {key: options.pop(key) for key in _STREAM}
        return _stream(make(**options), **stream_options)

    _SOURCES[name], corpus_function = make, cast("Any", corpus)
    parameters = [
        p for p in inspect.signature(declared).parameters.values() if p.default != p.empty
    ]
    options = [p.replace(kind=p.KEYWORD_ONLY) for p in [*parameters, *_STREAM.values()]]
    corpus_function.__signature__ = inspect.Signature(options)
    corpus_function.__annotations__ = get_type_hints(declared) | get_type_hints(_stream)
    corpus_function.__doc__ = declared.__doc__
    CORPORA.register(name)(corpus)


def _episodes(draw: Callable[..., DrawnEpisodes], **options: Any) -> Source:
    return Episodes(partial(draw, **options))


for _source in (LagCopy, Recall, Induction):
    _register(_source.name, _source, _source)
for _draw in (mqar, depo, mano):
    _register(_draw.__name__, _draw, partial(_episodes, _draw))
