"""Texts to tokens, chunk by chunk, in as many processes as there are cores.

Run as a module, it is one of these processes: it gets the file of a tokenizer, and on its standard
input a line of JSON for each chunk.
"""

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from llama_ablate.data.corpora.documents import SEPARATOR
from llama_ablate.data.texts import Text
from llama_ablate.data.tokenizers.tokenizer import Tokenizer
from llama_ablate.data.tokenizers.tokenizer_files import from_json
from llama_ablate.errors import ConfigError

_PER_PROCESS = 16_000_000  # bytes of text: for less, starting one takes longer than it saves


@dataclass(frozen=True)
class Chunk:
    """A part of a split's text, in bytes, and its tokens."""

    start: int
    stop: int
    ids: NDArray[np.integer]
    lost: str  # the first difference of a round trip where some token is unknown, or ""


def kind_of(vocab: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the integers that the tokens of a vocabulary are kept as."""
    return np.dtype(np.uint16 if vocab <= 2**16 else np.uint32)


def encode(text: Text, split: str, start: int, file: Path) -> Iterator[Chunk]:
    """Yield the chunks of a split in order, from a byte on, encoded by the tokenizer of a file.

    Raises ConfigError for a text that it cannot encode.
    """
    chunks = text.chunks(split, start)
    processes = min(_cores(), (text.sizes[split] - start) // _PER_PROCESS)
    if processes < 2:
        tokenizer = from_json(file.read_text("utf-8"))
        for first, last in chunks:
            yield Chunk(first, last, *_encoded(tokenizer, text.read(split, first, last)))
        return
    with ExitStack() as stack:
        idle: SimpleQueue[_Process] = SimpleQueue()
        for _ in range(processes):
            idle.put(stack.enter_context(_Process(file)))
        pool = stack.enter_context(ThreadPoolExecutor(processes))

        def ask(first: int, last: int) -> Chunk:
            process = idle.get()
            try:
                return process.encode(text.file(split), first, last)
            finally:
                idle.put(process)

        waiting: deque[Future[Chunk]] = deque()
        try:
            for first, last in chunks:
                waiting.append(pool.submit(ask, first, last))
                if len(waiting) > 2 * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def difference(tokenizer: Tokenizer, parts: Iterable[str]) -> str:
    """Return the first difference of a round trip (encode, decode) over texts, or ""."""
    for part in parts:
        back = tokenizer.decode(tokenizer.encode(part))
        if back != part:
            return changed(part, back)
    return ""


def changed(text: str, back: str) -> str:
    """Say where a text first differs from what its tokens decode to."""
    at = max(0, next(i for i, (a, b) in enumerate(zip_longest(text, back)) if a != b) - 8)
    return f"{text[at : at + 24]!r} becomes {back[at : at + 24]!r}"


def _encoded(tokenizer: Tokenizer, text: str) -> tuple[NDArray[np.integer], str]:
    """Return the tokens of a text, and what is lost where one of them is unknown."""
    ids = tokenizer.encode_documents(text)
    unknown = tokenizer.unknown is not None and bool((ids == tokenizer.unknown).any())
    lost = difference(tokenizer, text.split(SEPARATOR)) if unknown else ""
    return ids.astype(kind_of(tokenizer.vocab)), lost


class _Process:
    """A process of this module."""

    def __init__(self, tokenizer: Path) -> None:
        # One core each: the library's own threads would get in each other's way.
        paths = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-m", __spec__.name, tokenizer],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": paths},
            start_new_session=True,  # an interrupt is for the process that waits for this one
        )

    def __enter__(self) -> "_Process":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def encode(self, file: Path, start: int, stop: int) -> Chunk:
        """Return a part of a file, encoded."""
        into, out = self._process.stdin, self._process.stdout
        assert into is not None
        assert out is not None
        try:
            into.write(json.dumps([str(file), start, stop]).encode() + b"\n")
            into.flush()
            answer = json.loads(out.readline())
        except (OSError, ValueError):
            code = self._process.wait()
            raise OSError(f"a process that encodes the text has ended (exit code {code})") from None
        if "error" in answer:
            raise ConfigError(answer["error"])
        ids = np.frombuffer(out.read(answer["bytes"]), answer["kind"])
        return Chunk(start, stop, ids, answer["lost"])


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def serve(tokenizer: Tokenizer, asked: Iterable[bytes], out: IO[bytes]) -> None:
    """Answer each line with a line of JSON, and the tokens behind it."""
    for line in asked:
        file, start, stop = json.loads(line)
        text = Path(file)
        with text.open("rb") as opened:
            opened.seek(start)
            data = opened.read(stop - start)
        try:
            ids, lost = _encoded(tokenizer, data.decode("utf-8"))
        except ConfigError as error:
            out.write(json.dumps({"error": error.message}).encode() + b"\n")
        else:
            head = {"bytes": ids.nbytes, "kind": ids.dtype.str, "lost": lost}
            out.write(json.dumps(head).encode() + b"\n")
            out.write(ids.tobytes())
        out.flush()


if __name__ == "__main__":
    served = from_json(Path(sys.argv[1]).read_text("utf-8"))
    serve(served, sys.stdin.buffer, sys.stdout.buffer)
