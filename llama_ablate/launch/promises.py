"""What launchers have promised their workers of a machine's memory, and these have yet to take."""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from pydantic import TypeAdapter

from llama_ablate.data.tokens import cache_folder
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.fields import Count, Positive, typed
from llama_ablate.files.strict_json import parse, to_line
from llama_ablate.results.leases import alive, alone, myself


class _Promise(NamedTuple):
    launcher: str
    pid: Positive
    bytes: Count


_PROMISE = TypeAdapter(_Promise)


@contextmanager
def promised(each: int, fitting: Callable[[int], int]) -> Iterator[int]:
    """Promise `each` worker so many bytes while the context lasts; yield how many workers.

    `fitting` says how many, given the bytes that workers of the user's other launchers may still
    take. Launchers of other machines, containers and users are not seen.
    """
    folder, workers = cache_folder() / "promises", 0
    own = folder / secrets.token_hex(8)
    # Two that start at once would promise the same bytes. A cache that cannot be written only means
    # that nobody is told.
    with suppress(OSError), alone(folder / "lock"):
        others = [folder / name for name in disk.names(folder) if name != "lock"]
        workers = fitting(sum(map(_left, others)))
        promise = _Promise(myself(), os.getpid(), each * workers)
        disk.replace(own, to_line(promise._asdict()).encode())
    try:
        yield workers or fitting(0)
    finally:
        with suppress(OSError):
            disk.remove(own)


def _left(file: Path) -> int:
    """Return what is left of a promise; one whose launcher has ended is removed."""
    try:
        promise = typed(_PROMISE, parse(disk.read(file), file), file)
    except (OSError, ConfigError):  # gone just now, or damaged
        return 0
    if (living := alive(promise.launcher)) is False:
        disk.remove(file)
    return max(0, promise.bytes - _held(promise.pid)) if living else 0


def _held(launcher: int) -> int:
    """Return the bytes that a launcher's workers hold: its children's, which are fork servers."""
    held = 0
    with suppress(psutil.NoSuchProcess):
        for server in psutil.Process(launcher).children():
            for worker in server.children(recursive=True):
                with suppress(psutil.Error):
                    held += worker.memory_full_info().uss  # without what it shares with the server
    return held
