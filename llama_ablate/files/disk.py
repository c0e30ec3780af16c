"""Crash-safe files: atomic writes by flush and rename, partial folders, removal, bounded reading.

All calls that change the disk use this module's `os`, so that a test can replace `os` by a version
that fails, crashes or loses power at any call. No call writes through a symbolic link: names from a
file become paths only by `below`.
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

#: Prefix of the names of incomplete files and folders.
PARTIAL = ".partial-"
Save = Callable[["Writer"], Any]
Content = bytes | Save
_CHUNK = 1 << 20
_MOST = 1 << 30
#: With O_NONBLOCK a pipe in place of a file is an error; otherwise opening would wait for a reader.
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
#: Seconds for which a network file system's cache may show a removed folder.
_STALE_S = 20.0


def below(root: Path, *names: str) -> Path:
    """Build a path below a folder from names, one name per folder level.

    All paths from stored names are built by this function. Raises ConfigError for an invalid name
    of a file or folder, and for a link in the path, since writes and removals would then affect
    another place.
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
    """Open a file for reading; never wait for the writer of a pipe.

    Raises ConfigError for a folder, a pipe or a device, whose content may be endless.
    """
    return os.fdopen(_regular(path)[0], "rb")


def read(path: Path | str) -> bytes:
    """Read the content of a file of at most one gibibyte.

    Raises ConfigError for a larger file, and for a folder, a pipe or a device, as `opened` does.
    All valid files that are read as a whole are smaller.
    """
    handle, size = _regular(path)
    try:
        if size > _MOST:
            raise ConfigError(f"{path}: damaged, it has more than {_MOST >> 20} MiB")
        # For a small file, a buffered reader would take as long as the reading itself.
        return b"".join(iter(lambda: os.read(handle, max(size, 4096)), b""))
    finally:
        os.close(handle)


def _regular(path: Path | str) -> tuple[int, int]:
    """Open a regular file for reading; return its handle and size."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
        raise ConfigError(f"{path}: damaged, it is {kind} and not a file")
    return handle, status.st_size


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add a file's path to errors of the disk, which name none for an open file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


class Writer:
    """New file, open for buffered writing, that computes the SHA-256 of its content."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._path = path
        self._sum = sha256()
        self._held = bytearray()

    def write(self, content: Any) -> int:
        """Write bytes, buffered up to a mebibyte; return their number."""
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
        with naming(self._path):
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
            with naming(self._path):
                os.fsync(self._handle)
        finally:
            os.close(self._handle)


def write(path: Path, content: Content) -> str:
    """Write a new file to the disk; return its SHA-256. Raises FileExistsError if it exists.

    `content` is bytes, or a function that writes to a `Writer`.
    """
    file = Writer(path)
    try:
        with contextlib.closing(file):
            content(file) if callable(content) else file.write(content)
    except BaseException:
        remove(path)
        raise
    return file.digest


def replace(path: Path, content: Content, aside: Path | None = None) -> str:
    """Write a file atomically, and return its SHA-256.

    Readers see the old or the new content. The content is written first to the folder `aside`
    (default: the file's folder), which must be on the same file system.
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
    """Create a folder and its missing parents; retry if another process removes a parent.

    The call does not check first whether the folder exists, since a network file system's cache may
    be out of date.
    """
    try:
        os.mkdir(folder)
    except FileNotFoundError as error:
        # The working directory was removed, or folders cannot be created there, as in /proc.
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
    """Open a file for appending and return its handle; create a missing folder.

    Links are not followed. The call retries for `_STALE_S` seconds, since a cache may still show a
    folder that another machine has removed.
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
    """Return whether a path is a file."""
    return path.is_file()


def names(folder: Path) -> list[str]:
    """List the names in a folder; an empty list for a missing folder."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def links_below(folder: Path) -> Iterator[Path]:
    """Yield the symbolic links in a folder and below it."""
    for below, folders, files in os.walk(folder):
        yield from (path for n in (*folders, *files) if os.path.islink(path := Path(below, n)))


def place(partial: Path, target: Path) -> bool:
    """Commit a finished folder by a rename; return whether the target was free.

    The first commit wins: in POSIX a folder never replaces a folder that is not empty.
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
    """Open a folder and yield its handle; locks on it are released at the end."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def partial_folder(parent: Path) -> Iterator[Path]:
    """Create a temporary folder, which `place` may commit, and remove it after the block.

    Meanwhile, a shared lock on the parent prevents `sweep` from removing the folder; the lock ends
    with this process at the latest.
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
    """Remove the partial folders in `parent` that killed processes have left.

    Nothing is removed while any partial folder in `parent` is in use.
    """
    # A locked, missing or read-only parent is left alone.
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
    """Lock a folder exclusively, without writing; the lock ends with the process at the latest.

    Raises BlockingIOError if another process has the lock and `wait` is False.
    """
    with _handle_of(folder) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def sync(folder: Path) -> None:
    """Flush a folder's entries to the disk."""
    with _handle_of(folder) as handle:
        os.fsync(handle)


def remove(path: Path) -> None:
    """Remove a file, if it exists.

    A file that NFS has renamed to `.nfs...`, since a process has it open, stays until it is closed.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.EBUSY or not os.path.basename(path).startswith(".nfs"):
            raise


def remove_tree(path: Path) -> None:
    """Remove a folder and its content, if it exists; files added meanwhile stay.

    A symbolic link is removed, and its target stays.
    """
    if os.path.islink(path) or not os.path.isdir(path):
        remove(path)
        return
    for name in names(path):
        remove_tree(path / name)
    remove_empty(path)


def remove_empty(folder: Path) -> None:
    """Remove a folder if it exists and is empty."""
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
