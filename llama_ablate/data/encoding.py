"""Encode the text of a split, chunk by chunk, in threads."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_ablate.data.readers import SEPARATOR
from llama_ablate.data.texts import Text
from llama_ablate.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Chunk:
    """Byte range of a split's text, with its token ids."""

    start: int
    stop: int
    ids: NDArray[np.integer]
    lost: str  # first change by encode and decode if a token is unknown, else ""


def kind_of(vocab: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the integer type of a vocabulary's token ids, with 16 or 32 bits."""
    return np.dtype(np.uint16 if vocab <= 2**16 else np.uint32)


def encode(text: Text, split: str, tokenizer: Tokenizer) -> Iterator[Chunk]:
    """Yield the chunks of a split in order.

    The library `tokenizers` lets other threads run while it encodes. Raises ConfigError for a text
    that the tokenizer cannot encode.
    """
    waiting: deque[Future[Chunk]] = deque()
    pool = ThreadPoolExecutor(_cores())
    try:
        for start, stop in text.chunks(split):
            waiting.append(pool.submit(_encoded, tokenizer, text, split, start, stop))
            if len(waiting) > 2 * _cores():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def difference(tokenizer: Tokenizer, parts: Iterable[str]) -> str:
    """Describe the first change of a text by encoding and decoding; "" if no text changes."""
    for part in parts:
        back = tokenizer.decode(tokenizer.encode(part))
        if back != part:
            return changed(part, back)
    return ""


def changed(text: str, back: str) -> str:
    """Describe the first difference between a text and `back`, the text of its tokens."""
    at = max(0, next(i for i, (a, b) in enumerate(zip_longest(text, back)) if a != b) - 8)
    return f"{text[at : at + 24]!r} becomes {back[at : at + 24]!r}"


def _encoded(tokenizer: Tokenizer, text: Text, split: str, start: int, stop: int) -> Chunk:
    part = text.read(split, start, stop)
    ids = tokenizer.encode_documents(part)
    unknown = tokenizer.unknown is not None and bool((ids == tokenizer.unknown).any())
    lost = difference(tokenizer, part.split(SEPARATOR)) if unknown else ""
    return Chunk(start, stop, ids.astype(kind_of(tokenizer.vocab)), lost)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
