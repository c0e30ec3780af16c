"""Work on a text that outlives the process that does it: what is known of texts, what is done.

A note of either is sealed, and nothing is taken from one whose seal does not hold.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from llama_ablate.config.spec import digest
from llama_ablate.data import texts
from llama_ablate.data.corpora.corpus import UNCHANGED, Corpus
from llama_ablate.data.encoding import Chunk
from llama_ablate.data.texts import Text
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.fields import Count, Fingerprint, Positive, typed
from llama_ablate.files.strict_json import read_json, sealed
from llama_ablate.terminal import Bar, say

_READING = 1  # raise it when some corpus is read in another way: what is known is forgotten
_SAVE_S = 2.0  # between notes of how far the work is
_KEPT_S = 7 * 24 * 3600  # unfinished work is kept for a week
#: What a write may raise, which names no file.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
#: What reading a note raises that is missing, damaged or of another version.
_NO_NOTE = (OSError, ValueError, TypeError, LookupError)


def recall(root: Path, entry: object, state: str | None) -> Text | None:
    """Return what a corpus was when it was last read, without its files; None where it changed."""
    return _noted_text(_known(root, entry), root, state)


def remember(root: Path, entry: object, state: str | None, text: Text) -> None:
    """Keep what a corpus is, unless a change of it would not be seen."""
    if state is not None:
        file = _known(root, entry)
        disk.make(file.parent)
        _note_text(file, state, text)


@dataclass
class _Known:
    """What is noted of a text, beside its files."""

    state: str | None
    fingerprint: Fingerprint
    sizes: dict[str, Positive]
    longest: Count


_KNOWN = TypeAdapter(_Known)


def _known(root: Path, entry: object) -> Path:
    return root / "texts" / f"{digest([_READING, entry], 16)}.json"


def _noted_text(file: Path, folder: Path, state: str | None) -> Text | None:
    with contextlib.suppress(*_NO_NOTE):
        known = typed(_KNOWN, _noted(file), file)
        if state is not None and state in (known.state, UNCHANGED):
            return Text(folder, known.fingerprint, known.sizes, known.longest)
    return None


def _note_text(file: Path, state: str | None, text: Text) -> None:
    known = {"fingerprint": text.fingerprint, "sizes": text.sizes, "longest": text.longest}
    _note(file, {"state": state, **known})


def _note(file: Path, values: Mapping[str, object]) -> None:
    if file.is_dir():
        disk.remove_tree(file)
    disk.replace(file, sealed(values, _place(file)))


def _noted(file: Path) -> dict[str, Any]:
    """Return what was noted in a file. Raises ConfigError where it is not what was written."""
    return dict(read_json(file, _place(file)))


def _place(file: Path) -> str:
    return "/".join(file.parts[-2:])


@contextlib.contextmanager
def folder(root: Path, name: str) -> Iterator[Path]:
    """Hold a folder to work in, alone; it stays when this process is killed or interrupted.

    Waits for a process that holds it. Raises ConfigError where the cache cannot be written.
    """
    try:
        disk.make(root / "tokens")
        disk.make(root / "working")
        _forget(root / "working")
        held, path = _held(disk.below(root, "working", name))
        try:
            yield path
        except Exception:
            disk.remove_tree(path)
            raise
        else:
            disk.remove_tree(path)
        finally:
            os.close(held)
    except OSError as error:
        if not _at_fault(root, error):
            raise
        raise ConfigError(
            f"the token cache '{root}' cannot be written ({error.strerror}); "
            "set LLAMA_ABLATE_CACHE to a folder that can"
        ) from None


def _at_fault(root: Path, error: OSError) -> bool:
    """Return whether it is in the cache that the system refused something."""
    place = error.filename2 or error.filename
    if place is None:
        return error.errno in _DISK
    return Path(os.fsdecode(place)).is_relative_to(root)


def _held(path: Path) -> tuple[int, Path]:
    """Return a folder that is locked, and its handle."""
    while True:
        disk.make(path)
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # the process that held the lock removed the folder
            continue
        try:
            if not _locked(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
                say("waiting for another process, which prepares the same text")
                _locked(handle, fcntl.LOCK_EX)
            # It may have been removed, and made anew, while this process waited.
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle, path
        except FileNotFoundError:
            pass
        except OSError:  # a file system without locks: nobody else knows this name
            path = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
        os.close(handle)


def _locked(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        return False
    return True


def _forget(parent: Path) -> None:
    """Remove unfinished work that nobody has gone on with for long."""
    for name in disk.names(parent):
        with contextlib.suppress(OSError):
            if time.time() - (parent / name).stat().st_mtime > _KEPT_S:
                handle = os.open(parent / name, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    if _locked(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
                        disk.remove_tree(parent / name)
                finally:
                    os.close(handle)


def read(source: Corpus, working: Path) -> Text:
    """Return the text of a corpus, in a folder: read now, or by a process that was killed since."""
    place, file = disk.below(working, "text"), working / "text.json"
    with contextlib.suppress(OSError, ValueError):
        if known := _noted_text(file, place, source.state):
            return texts.opened(known)
    disk.remove_tree(place)
    disk.make(place)
    with Bar("reading the text", "B") as bar:
        text = texts.write(source, place, bar.update)
    _note_text(file, source.state, text)
    return text


@dataclass
class Done:
    """How much of a split is encoded: where each chunk of its text ends, and how many tokens it is.

    The chunks follow each other from the first byte of the text on, and so do their tokens.
    """

    chunks: list[list[Count]] = field(default_factory=list)
    sha256: str = sha256().hexdigest()  # of the tokens' file

    @property
    def read(self) -> int:
        """Bytes of text."""
        return self.chunks[-1][0] if self.chunks else 0

    @property
    def tokens(self) -> int:
        """How many tokens the file holds."""
        return sum(tokens for _, tokens in self.chunks)


@dataclass
class _Noted:
    """What is noted of the encoding of a text."""

    fingerprint: str  # of the text
    tokenizer: str = ""  # SHA-256 of its file
    splits: dict[str, Done] = field(default_factory=dict)
    lost: str = ""  # what the tokenizer was seen to lose


_NOTED = TypeAdapter(_Noted)


class EncodingProgress(_Noted):
    """How far the encoding of a text is, kept in a working folder."""

    def __init__(self, working: Path, fingerprint: str, **noted: Any) -> None:
        super().__init__(fingerprint, **noted)
        self._working, self._saved = working, time.monotonic()

    @classmethod
    def of(cls, working: Path, text: Text) -> "EncodingProgress":
        """Return how far a text was encoded here; nothing, where its chunks end elsewhere."""
        with contextlib.suppress(*_NO_NOTE):
            file = working / "progress.json"
            noted = typed(_NOTED, _noted(file), file)
            if noted.fingerprint == text.fingerprint and all(
                [end for end, _ in done.chunks] == _ends(text, split, len(done.chunks))
                for split, done in noted.splits.items()
            ):
                return cls(working, **vars(noted))
        return cls(working, text.fingerprint)

    def save(self) -> None:
        """Keep it on disk."""
        _note(self._working / "progress.json", asdict(self))
        self._saved = time.monotonic()

    def save_sometimes(self, flush: Callable[[], None]) -> None:
        """Keep it on disk every two seconds, after what it tells of was written by `flush`."""
        if time.monotonic() - self._saved > _SAVE_S:
            flush()
            self.save()


def _ends(text: Text, split: str, count: int) -> list[int]:
    """Return where the first chunks of a split end."""
    return [stop for _, stop in islice(text.chunks(split), count)]


class Appended:
    """A file that is written to behind what of it was done, if that is still what it was.

    Each token takes `width` bytes.
    """

    def __init__(self, path: Path, done: Done, width: int) -> None:
        self._sum, left = sha256(), done.tokens * width
        with contextlib.suppress(OSError, ConfigError), disk.opened(path) as file:
            while left > 0 and (block := file.read(min(left, 1 << 20))):
                self._sum.update(block)
                left -= len(block)
        if left or self._sum.hexdigest() != done.sha256 or not done.chunks:
            self._sum, done = sha256(), Done()
            disk.remove_tree(path)
        self.done = done
        self._file = disk.below(path.parent, path.name).open("ab")
        self._file.truncate(done.tokens * width)

    def __enter__(self) -> "Appended":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, chunk: Chunk) -> None:
        """Write the tokens of the chunk that follows."""
        assert chunk.start == self.done.read, "a chunk of the text was left out"
        data = chunk.ids.tobytes()
        self._file.write(data)
        self._sum.update(data)
        self.done.chunks.append([chunk.stop, len(chunk.ids)])
        self.done.sha256 = self._sum.hexdigest()

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    def sync(self) -> None:
        """Flush the file to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
