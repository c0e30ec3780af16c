"""Crash-safe files: atomic writes by flush and rename, partial folders, removal, bounded reading.

All calls that change the disk go through `os` of this module, so that a test can replace it by one
that fails, crashes or loses power at any call. No call writes through a symbolic link: names that
come from a file become paths by `below` alone.
"""

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from io import BufferedReader
from pathlib import Path
from typing import Any

from llama_ablate.errors import ConfigError

try:
    import fcntl
except ModuleNotFoundError:
    raise ConfigError("llama_ablate needs Linux or macOS; on Windows, use WSL") from None

#: Prefix of the names of files and folders that are not complete yet.
PARTIAL = ".partial-"
Save = Callable[["Writer"], Any]
Content = bytes | Save
_CHUNK = 1 << 20
_MOST = 1 << 30
#: A pipe in the place of a file is an error then, where it would wait for a reader.
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
#: Seconds for which a network file system's cache may show a folder that is gone.
_STALE_S = 20.0


def below(root: Path, *names: str) -> Path:
    """Return a path below a folder, each name a level: the only way from a name to such a path.

    Raises ConfigError for what is no name of one file or folder, and for a link on the way, since
    what is written or removed would lie elsewhere.
    """
    path = root
    for name in names:
        if name in ("", ".", "..") or {"/", "\0", os.sep} & {*name}:
            raise ConfigError(f"{name!r} is not the name of a file or a folder in '{path}'")
        path /= name
        if os.path.islink(path):
            raise ConfigError(f"'{path}' is a link: results are kept in real folders and files")
    return path


def opened(path: Path | str) -> BufferedReader:
    """Open a file to read. Raises ConfigError for a folder, a pipe or a device, which may not end.

    A pipe that nobody writes to does not make it wait.
    """
    return os.fdopen(_regular(path)[0], "rb")


def read(path: Path | str) -> bytes:
    """Return the content of a file. Raises ConfigError where it is none, as `opened` does.

    And for one of more than a gibibyte, as none that is read as a whole ever is.
    """
    handle, size = _regular(path)
    try:
        if size > _MOST:
            raise ConfigError(f"{path}: damaged, it has more than {_MOST >> 20} MiB")
        # Of a small file a buffer would take as long as the reading.
        return b"".join(iter(lambda: os.read(handle, max(size, 4096)), b""))
    finally:
        os.close(handle)


def _regular(path: Path | str) -> tuple[int, int]:
    """Return a handle to read a file by, and its size."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
        raise ConfigError(f"{path}: damaged, it is {kind} and not a file")
    return handle, found.st_size


class Writer:
    """A new file open for buffered writing, with the SHA-256 of its content."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._sum = sha256()
        self._held = bytearray()

    def write(self, content: Any) -> int:
        """Write some bytes, buffered up to a megabyte."""
        view = memoryview(content).cast("B")
        self._held += view
        if len(self._held) >= _CHUNK:
            self.flush()
        return len(view)

    def flush(self) -> None:
        """Write out the buffer."""
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
        """Flush the file to the disk, and close it."""
        try:
            self.flush()
            os.fsync(self._handle)
        finally:
            os.close(self._handle)


def write(path: Path, content: Content) -> str:
    """Write a new file to the disk, and return its SHA-256. A file of that name is an error."""
    file = Writer(path)
    try:
        with contextlib.closing(file):
            content(file) if callable(content) else file.write(content)
    except BaseException:
        remove(path)
        raise
    return file.digest


def replace(path: Path, content: Content, aside: Path | None = None) -> str:
    """Write a file atomically: readers see the old content or the new, never a part.

    It is written `aside` first, in a folder of the same file system. Returns its SHA-256.
    """
    partial = (aside or path.parent) / f"{PARTIAL}{secrets.token_hex(8)}"
    try:
        digest = write(partial, content)
        os.replace(partial, path)
    finally:
        remove(partial)
    sync(path.parent)
    return digest


def make(folder: Path, tries: int = 3) -> None:
    """Make a folder and its missing parents, again where another process removes one of them.

    Without looking first whether it exists: a network file system's cache may be out of date.
    """
    try:
        os.mkdir(folder)
    except FileNotFoundError as error:
        # The working directory was removed, or it is no place for folders, as in /proc.
        if folder.parent == folder or not tries:
            raise FileNotFoundError(error.errno, "no folder can be made there", folder) from None
        make(folder.parent)
        make(folder, tries - 1)
    except FileExistsError:
        if os.path.isdir(folder):
            return
        if not tries:
            raise
        make(folder, tries - 1)  # no folder, or one that another process removed just now
    else:
        sync(folder.parent)


def append(path: Path) -> int:
    """Open a file for appending, and return its handle; a missing folder is made, no link followed.

    Another machine may have removed the folder while a cache still shows it: retries for a while.
    """
    until = time.monotonic() + _STALE_S
    while True:
        make(path.parent)
        try:
            return os.open(path, _APPENDING, 0o666)
        except FileNotFoundError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def is_file(path: Path) -> bool:
    """Return whether there is a file at a path."""
    return path.is_file()


def names(folder: Path) -> list[str]:
    """Return the names in a folder; none where there is no such folder."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def links_below(folder: Path) -> Iterator[Path]:
    """Yield the symbolic links in a folder and below it."""
    for below, folders, files in os.walk(folder):
        yield from (path for n in (*folders, *files) if os.path.islink(path := Path(below, n)))


def place(partial: Path, target: Path) -> bool:
    """Commit a finished folder by renaming it; return whether the target was free.

    The first one wins: in POSIX a folder never replaces one that is not empty.
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
def _handle_of(folder: Path) -> Iterator[int]:
    """Open a folder; what is locked by its handle is free again at the end."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def partial_folder(parent: Path) -> Iterator[Path]:
    """Make a temporary folder to write in, to be committed by `place`; removed at the end.

    A shared lock on the parent, which ends with this process, keeps `sweep` away meanwhile.
    """
    with _handle_of(parent) as handle:
        with contextlib.suppress(OSError):  # a file system without locks: `sweep` does nothing
            fcntl.flock(handle, fcntl.LOCK_SH)
        folder = parent / f"{PARTIAL}{secrets.token_hex(8)}"
        os.mkdir(folder)
        try:
            yield folder
        finally:
            remove_tree(folder)


def sweep(parent: Path) -> None:
    """Remove the partial folders of killed processes, unless a partial folder is in use."""
    # Not where the parent is locked, missing, or not ours to write.
    with contextlib.suppress(OSError), locked(parent, wait=False):
        for name in names(parent):
            if name.startswith(PARTIAL):
                remove_tree(parent / name)


def move(folder: Path, place: Path) -> None:
    """Rename a folder."""
    os.rename(folder, place)
    sync(folder.parent)
    sync(place.parent)


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock of a folder, which ends with the process; nothing is written for it.

    Raises BlockingIOError where another process holds it and nobody is to wait.
    """
    with _handle_of(folder) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def sync(folder: Path) -> None:
    """Flush a folder's entries to the disk."""
    with _handle_of(folder) as handle:
        os.fsync(handle)


def remove(path: Path) -> None:
    """Remove a file, if it exists."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def remove_tree(path: Path) -> None:
    """Remove a folder and its content, if it exists; what others add meanwhile stays.

    A symbolic link is removed itself, not what it leads to.
    """
    if os.path.islink(path) or not os.path.isdir(path):
        remove(path)
        return
    for name in names(path):
        remove_tree(path / name)
    remove_empty(path)


def remove_empty(folder: Path) -> None:
    """Remove a folder, unless something lies in it, or it is gone."""
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
