"""Encode the text of a split, chunk by chunk, in a process pool for long texts."""

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import zip_longest
from multiprocessing import get_context, parent_process
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_ablate.data.readers import SEPARATOR
from llama_ablate.data.texts import Text
from llama_ablate.data.tokenizer import Tokenizer
from llama_ablate.data.tokenizer_files import read_saved

_PER_PROCESS = 16_000_000  # bytes of text: for less, starting a process takes longer than it saves
_tokenizer: Tokenizer  # the tokenizer of this pool process


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


def encode(text: Text, split: str, file: Path) -> Iterator[Chunk]:
    """Yield the chunks of a split in order, encoded by the tokenizer that `file` stores.

    Long texts are encoded by several processes. Raises ConfigError for a text that the tokenizer
    cannot encode, and OSError if one of the processes dies.
    """
    processes = min(_cores(), text.sizes[split] // _PER_PROCESS)
    path, chunks = text.file(split), text.chunks(split)
    if processes < 2:
        tokenizer = read_saved(file.read_text("utf-8"))
        yield from (_encoded(tokenizer, path, start, stop) for start, stop in chunks)
        return
    waiting: deque[Future[Chunk]] = deque()
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (file,)) as pool:
        try:
            for start, stop in chunks:
                waiting.append(_submit(pool, path, start, stop))
                if len(waiting) > 2 * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise OSError(f"a process that encodes the text has ended ({error})") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


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


def _encoded(tokenizer: Tokenizer, path: Path, start: int, stop: int) -> Chunk:
    """Encode the bytes of the file `path` from `start` to `stop`."""
    with path.open("rb") as opened:
        opened.seek(start)
        text = opened.read(stop - start).decode("utf-8")
    ids = tokenizer.encode_documents(text)
    unknown = tokenizer.unknown is not None and bool((ids == tokenizer.unknown).any())
    lost = difference(tokenizer, text.split(SEPARATOR)) if unknown else ""
    return Chunk(start, stop, ids.astype(kind_of(tokenizer.vocab)), lost)


def _submit(pool: ProcessPoolExecutor, *chunk: Any) -> Future[Chunk]:
    """Submit a chunk to the pool, without running the caller's script again.

    The pool may start a process, which would import the caller's `__main__` module.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        return pool.submit(_in_process, *chunk)
    finally:
        sys.modules["__main__"] = script


def _begin(file: Path) -> None:
    """Initialise a pool process: single-threaded, ignoring Ctrl-C, ending with its parent."""
    global _tokenizer  # noqa: PLW0603
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _tokenizer = read_saved(file.read_text("utf-8"))


def _in_process(path: Path, start: int, stop: int) -> Chunk:
    return _encoded(_tokenizer, path, start, stop)


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
