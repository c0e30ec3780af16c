"""Notes of texts that were read before, and whose turn it is to make the tokens of one.

A note is sealed, and nothing is taken from one whose seal does not hold.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from llama_ablate.config.spec import digest
from llama_ablate.data.corpus import UNCHANGED
from llama_ablate.data.texts import Text
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.fields import Count, Fingerprint, Positive, typed
from llama_ablate.files.strict_json import read_json, sealed
from llama_ablate.terminal import say

_READING = 2  # raise it when some corpus is read in another way: what is known is forgotten
#: What a write may raise, which names no file.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@dataclass
class _Known:
    """What is noted of a text, beside its files."""

    state: str | None
    fingerprint: Fingerprint
    sizes: dict[str, Positive]
    longest: Count


_KNOWN = TypeAdapter(_Known)


def recall(root: Path, entry: object, state: str | None) -> Text | None:
    """Return what a corpus was when it was last read, without its files; None where it changed."""
    file = _note(root, entry)
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        known = typed(_KNOWN, read_json(file, _place(file)), file)
        if state is not None and state in (known.state, UNCHANGED):
            return Text(root, known.fingerprint, known.sizes, known.longest)
    return None


def remember(root: Path, entry: object, state: str | None, text: Text) -> None:
    """Keep what a corpus is, unless a change of it would not be seen."""
    if state is not None:
        file = _note(root, entry)
        disk.make(file.parent)
        if file.is_dir():
            disk.remove_tree(file)
        known = {"fingerprint": text.fingerprint, "sizes": text.sizes, "longest": text.longest}
        disk.replace(file, sealed({"state": state, **known}, _place(file)))


def _note(root: Path, entry: object) -> Path:
    return root / "texts" / f"{digest([_READING, entry], 16)}.json"


def _place(file: Path) -> str:
    return "/".join(file.parts[-2:])


@contextlib.contextmanager
def folder(root: Path, name: str) -> Iterator[Path]:
    """Yield an empty folder to make tokens in, one process at a time for each name.

    Raises ConfigError where the cache cannot be written.
    """
    try:
        turns, parts = disk.below(root, "turns", name), root / "working"
        for needed in (root / "tokens", turns, parts):
            disk.make(needed)
        disk.sweep(parts)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(disk.locked(turns, wait=False))
            except BlockingIOError:
                say("waiting for another process, which prepares the same text")
                held.enter_context(disk.locked(turns))
            except OSError:  # a file system without locks: the first to finish is kept
                pass
            yield held.enter_context(disk.partial_folder(parts))
    except OSError as error:
        place = error.filename2 or error.filename
        in_cache = place is not None and Path(os.fsdecode(place)).is_relative_to(root)
        if not in_cache and (place is not None or error.errno not in _DISK):
            raise
        raise ConfigError(
            f"the token cache '{root}' cannot be written ({error.strerror}); "
            "set LLAMA_ABLATE_CACHE to a folder that can"
        ) from None
