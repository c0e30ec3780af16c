"""Work on a text that outlives the process that does it: what is known of texts, what is done."""

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from llama_ablate.config.spec import digest
from llama_ablate.data import texts
from llama_ablate.data.corpora import UNCHANGED, Corpus
from llama_ablate.data.texts import Text
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.terminal import Bar, say

_READING = 1  # raise it when some corpus is read in another way: what is known is forgotten
_SAVE_S = 2.0  # between notes of how far the work is
_KEPT_S = 7 * 24 * 3600  # unfinished work is kept for a week


def recall(root: Path, entry: object, state: str | None) -> Text | None:
    """Return what a corpus was when it was last read, without its files; None where it changed."""
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        known = json.loads(_known(root, entry).read_bytes())
        was = known.pop("state")
        if state is not None and state in (was, UNCHANGED):
            return Text(root, **known)
    return None


def remember(root: Path, entry: object, state: str | None, text: Text) -> None:
    """Keep what a corpus is, unless a change of it would not be seen."""
    if state is not None:
        file = _known(root, entry)
        disk.make(file.parent)
        known = {"fingerprint": text.fingerprint, "sizes": text.sizes, "longest": text.longest}
        disk.replace(file, json.dumps({"state": state, **known}).encode())


def _known(root: Path, entry: object) -> Path:
    return root / "texts" / f"{digest([_READING, entry], 16)}.json"


@contextlib.contextmanager
def folder(root: Path, name: str) -> Iterator[Path]:
    """Hold a folder to work in, alone; it stays when this process is killed or interrupted.

    Waits for a process that holds it. Raises ConfigError where it cannot be made.
    """
    try:
        disk.make(root / "tokens")
        disk.make(root / "working")
        _forget(root / "working")
        held, path = _held(root / "working" / name)
    except OSError as error:
        raise ConfigError(
            f"the token cache '{root / 'tokens'}' cannot be written ({error.strerror}); "
            "set LLAMA_ABLATE_CACHE to a folder that can"
        ) from None
    try:
        yield path
    except Exception:
        disk.remove_tree(path)
        raise
    else:
        disk.remove_tree(path)
    finally:
        os.close(held)


def _held(path: Path) -> tuple[int, Path]:
    """Return a folder that is locked, and its handle."""
    while True:
        disk.make(path)
        handle = os.open(path, os.O_RDONLY)
        try:
            if not _locked(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
                say("waiting for another process, which prepares the same text")
                _locked(handle, fcntl.LOCK_EX)
            # Whoever held it before may have removed it.
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
                handle = os.open(parent / name, os.O_RDONLY)
                try:
                    if _locked(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
                        disk.remove_tree(parent / name)
                finally:
                    os.close(handle)


def read(source: Corpus, working: Path) -> Text:
    """Return the text of a corpus, in a folder: read now, or by a process that was killed since."""
    place, file = working / "text", working / "text.json"
    with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
        known = json.loads(file.read_bytes())
        if source.state is not None and known.pop("state") == source.state:
            return texts.opened(Text(place, **known))
    disk.make(place)
    with Bar("reading the text", "B") as bar:
        text = texts.write(source, place, bar.update)
    known = {"fingerprint": text.fingerprint, "sizes": text.sizes, "longest": text.longest}
    disk.replace(file, json.dumps({"state": source.state, **known}).encode())
    return text


@dataclass(frozen=True)
class Done:
    """How much of a split is encoded."""

    read: int = 0  # bytes of text
    tokens: int = 0
    size: int = 0  # bytes of the tokens' file
    sha256: str = sha256().hexdigest()  # of these


@dataclass
class Progress:
    """How far the encoding of a text is, kept in a working folder."""

    working: Path
    fingerprint: str  # of the text
    tokenizer: str = ""  # SHA-256 of its file
    splits: dict[str, Done] = field(default_factory=dict)
    lost: str = ""  # what the tokenizer was seen to lose
    _saved: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, working: Path, text: Text) -> "Progress":
        """Return how far a text was encoded here; nothing, of another text."""
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError):
            values: dict[str, Any] = json.loads((working / "progress.json").read_bytes())
            if values["fingerprint"] == text.fingerprint:
                values["splits"] = {k: Done(**v) for k, v in values["splits"].items()}
                return cls(working, **values)
        return cls(working, text.fingerprint)

    def save(self) -> None:
        """Keep it on disk."""
        values = asdict(self)
        kept = {key: values[key] for key in ("fingerprint", "tokenizer", "splits", "lost")}
        disk.replace(self.working / "progress.json", json.dumps(kept).encode())
        self._saved = time.monotonic()

    def save_sometimes(self, flush: Callable[[], None]) -> None:
        """Keep it on disk every two seconds, after what it tells of was written by `flush`."""
        if time.monotonic() - self._saved > _SAVE_S:
            flush()
            self.save()


class Appended:
    """A file that is written to behind what of it was done, if that is still what it was."""

    def __init__(self, path: Path, done: Done) -> None:
        path.touch()
        self._file = path.open("r+b")
        self._sum, self.done = sha256(), Done()
        left = done.size
        while left and (block := self._file.read(min(left, 1 << 20))):
            self._sum.update(block)
            left -= len(block)
        if left or self._sum.hexdigest() != done.sha256:
            self._sum, done = sha256(), Done()
        self.done = done
        self._file.seek(done.size)
        self._file.truncate()

    def __enter__(self) -> "Appended":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, data: bytes, read: int, tokens: int) -> Done:
        """Write the tokens of a chunk, up to a byte of the text, and return what is done now."""
        self._file.write(data)
        self._sum.update(data)
        done = Done(read, self.done.tokens + tokens, self.done.size + len(data))
        self.done = replace(done, sha256=self._sum.hexdigest())
        return self.done

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    def sync(self) -> None:
        """Flush the file to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
