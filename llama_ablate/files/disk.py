"""Files that survive a crash: written beside their place, flushed to the disk, renamed once.

Everything goes through `os` of this module and nothing else, so that a test can stand in for the
disk: fail, crash or lose power at any call.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

#: What the names of files and folders begin with that are not whole yet.
PARTIAL = ".partial-"
Content = bytes | Callable[["Writer"], Any]
_CHUNK = 1 << 20
#: How long a network's cache may show a folder that is gone, in seconds: the usual lease.
_STALE_S = 20.0


class Writer:
    """A new file that is open for writing, and the SHA-256 of what has been written to it."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._sum = sha256()
        self._held = bytearray()

    def write(self, content: Any) -> int:
        """Write some bytes; a crumb is held back until there is a megabyte."""
        view = memoryview(content).cast("B")
        self._held += view
        if len(self._held) >= _CHUNK:
            self.flush()
        return len(view)

    def flush(self) -> None:
        """Hand over what is held back."""
        self._sum.update(self._held)
        rest = memoryview(bytes(self._held))
        self._held.clear()
        while rest:
            rest = rest[os.write(self._handle, rest[:_CHUNK]) :]

    @property
    def digest(self) -> str:
        """SHA-256 of the content, in hex."""
        return self._sum.hexdigest()

    def close(self) -> None:
        """Flush to the disk, and close."""
        try:
            self.flush()
            os.fsync(self._handle)
        finally:
            os.close(self._handle)


def write(path: Path, content: Content) -> str:
    """Write a new file to the disk, and return its SHA-256. A file of that name is an error."""
    file = Writer(path)
    try:
        try:
            content(file) if callable(content) else file.write(content)
        finally:
            file.close()
    except BaseException:
        remove(path)
        raise
    return file.digest


def replace(path: Path, content: Content, aside: Path | None = None) -> str:
    """Write a file in one step: readers see the old one or the new one, never half of it.

    Until it is whole it lies `aside`, in a folder of the same file system; returns its SHA-256.
    """
    partial = (aside or path.parent) / f"{PARTIAL}{secrets.token_hex(8)}"
    try:
        digest = write(partial, content)
        os.replace(partial, path)
    finally:
        remove(partial)
    sync(path.parent)
    return digest


def make(folder: Path) -> None:
    """Make a folder, and those above it that are missing.

    It is not looked for first: what a network's cache shows of it may be out of date.
    """
    try:
        os.mkdir(folder)
    except FileNotFoundError:
        if folder.parent == folder:  # the working directory is gone
            raise
        make(folder.parent)
        make(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    else:
        sync(folder.parent)


def append(path: Path) -> int:
    """Open a file to append to, and return its handle; its folder is made where it is missing.

    Another machine may have removed that folder, and a network's cache may show it for a while.
    """
    until = time.monotonic() + _STALE_S
    while True:
        make(path.parent)
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except FileNotFoundError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def names(folder: Path) -> list[str]:
    """Return the names in a folder; none of one that is not there, or has just gone."""
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def links_below(folder: Path) -> Iterator[Path]:
    """Find the links that lie in a folder or below it."""
    for below, folders, files in os.walk(folder):
        yield from (path for n in (*folders, *files) if os.path.islink(path := Path(below, n)))


def place(partial: Path, target: Path) -> bool:
    """Give a finished folder its name, unless there is one of that name: the first one wins.

    POSIX: a folder never replaces one that is not empty.
    """
    for below, _folders, _files in os.walk(partial):
        sync(Path(below))
    try:
        os.rename(partial, target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    sync(target.parent)
    return True


@contextlib.contextmanager
def partial_folder(parent: Path) -> Iterator[Path]:
    """Make a folder to write in until it is whole and gets its name; what is left goes at the end.

    A lock on the parent, which ends with this process, keeps `sweep` away meanwhile.
    """
    handle = os.open(parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: `sweep` does nothing
            fcntl.flock(handle, fcntl.LOCK_SH)
        folder = parent / f"{PARTIAL}{secrets.token_hex(8)}"
        os.mkdir(folder)
        try:
            yield folder
        finally:
            remove_tree(folder)
    finally:
        os.close(handle)


def sweep(parent: Path) -> None:
    """Remove the partial folders that killed processes have left, unless one is in use now."""
    with contextlib.suppress(OSError):  # the parent is locked, missing, or not ours to write
        handle = os.open(parent, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in names(parent):
                if name.startswith(PARTIAL):
                    remove_tree(parent / name)
        finally:
            os.close(handle)


def move(folder: Path, place: Path) -> None:
    """Give a folder another name."""
    os.rename(folder, place)
    sync(folder.parent)
    sync(place.parent)


def sync(folder: Path) -> None:
    """Flush a folder's list of names to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it, if it is there; what others put there meanwhile stays.

    Of a link the link itself goes, and nothing that it leads to.
    """
    if os.path.islink(path) or not os.path.isdir(path):
        remove(path)
        return
    for name in names(path):
        remove_tree(path / name)
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
