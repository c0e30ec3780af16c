"""Lease files with heartbeats and fencing tokens.

The leases on a piece of work are the files `lease-1`, `lease-2` ... in its folder. A process
acquires the lease by creating the next file, which only one process can do; the number is the
fencing token. With every heartbeat the holder advances the file's modification time (a counter, not
a clock). A waiting process observes this time with its own monotonic clock. If the time does not
change within the lease timeout, the waiting process renames the file to `released-N`. A former
holder that resumes finds its lease file gone.
"""

import contextlib
import hashlib
import math
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk

#: Lease timeout: seconds without a heartbeat until another process may acquire the work. On a
#: network file system it must exceed the time for which file attributes are cached.
LEASE_S = 20.0
_BEATS = 10  # heartbeats in a lease timeout


def lease_timeout() -> float:
    """Return the lease timeout in seconds: LLAMA_ABLATE_LEASE_S, or 20.

    Raises ConfigError if this variable is not a positive number.
    """
    text = os.environ.get("LLAMA_ABLATE_LEASE_S") or str(LEASE_S)
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise ConfigError(f"LLAMA_ABLATE_LEASE_S: '{text}' is no number of seconds above 0")


class LostError(OSError):
    """Error for an expired lease whose work another process has acquired."""


class Lease(contextlib.AbstractContextManager["Lease"]):
    """Exclusive lease on a piece of work; a context manager that releases it at the end."""

    def __init__(self, folder: Path, number: int) -> None:
        """Create the lease file `lease-<number>` and start its heartbeat.

        Raises FileExistsError if the file exists.
        """
        self.folder, self.number, self._timeout = folder, number, lease_timeout()
        self._path = folder / f"lease-{number}"
        self._handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with disk.naming(self._path):
                os.write(self._handle, myself().encode())
                os.fsync(self._handle)
        except OSError:  # others would wait for a lease that names no holder
            os.close(self._handle)
            disk.remove(self._path)
            raise
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    @property
    def held(self) -> bool:
        """Validity of the lease: false once the lease expired and another process released it."""
        try:
            there, ours = os.stat(self._path), os.fstat(self._handle)
        except FileNotFoundError:
            return False
        return (there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev)

    def set_once(self, key: str, value: str) -> str:
        """Return a value that all successive holders of the lease share; set it if missing."""
        file = self.folder / key
        try:
            return disk.read(file).decode("utf-8", "replace")
        except FileNotFoundError:
            disk.replace(file, value.encode())
            return value

    def replace(self, path: Path, content: bytes) -> None:
        """Write a results file atomically. Raises LostError if the lease was lost."""
        if not self.held:
            raise LostError(f"'{self.folder}' was taken over by another process")
        disk.replace(path, content, aside=self.folder)

    def release(self) -> None:
        """Release the lease so that others can continue the work; no effect once it has ended."""
        if self._stop():
            _release(self.folder, self.number)

    def finish(self) -> None:
        """End the lease of finished work: remove the work's folder, the lease file last."""
        if self._stop():
            for name in set(disk.names(self.folder)) - {self._path.name}:
                disk.remove_tree(self.folder / name)
            disk.remove_tree(self.folder)

    def __exit__(self, *_: object) -> None:
        self.release()

    def _stop(self) -> bool:
        """Stop the heartbeat; return whether the lease was still active and valid."""
        if self._stopped.is_set():
            return False
        self._stopped.set()
        self._thread.join()
        was_held = self.held
        os.close(self._handle)
        return was_held

    def _renew(self) -> None:
        beat = 0
        while not self._stopped.wait(self._timeout / _BEATS):
            beat += 2  # whole seconds: the resolution of some file systems
            with contextlib.suppress(OSError):  # the file server is unavailable: retry at next beat
                os.utime(self._handle, ns=(0, beat * 10**9))


def take(folder: Path) -> Lease | None:
    """Acquire the lease on a folder's work; None if another process has the lease."""
    disk.make(folder)
    number, lives = _newest(folder)
    if lives is not False:
        return None
    _release(folder, number)  # no effect if its holder has released it
    try:
        return Lease(folder, number + 1)
    except (FileExistsError, FileNotFoundError):  # the folder is removed when the work is done
        return None


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[Lease]:
    """Acquire a folder's lease as a mutex: wait for it, and finish it on exit.

    Raises LostError in place of an OSError if the lease expired and another process acquired it.
    """
    watch = Watch()
    while (lease := take(folder)) is None:
        if watch.waits(folder):
            time.sleep(0.1)
    try:
        yield lease
    except OSError as error:
        if lease.held:
            raise
        lost = f"'{folder}' was taken over by another process: this one had stopped for a while"
        raise LostError(lost) from error
    finally:
        lease.finish()


def taken(folder: Path) -> bool:
    """Return whether a folder appears to be leased, without waiting for a heartbeat."""
    return _newest(folder)[1] is not False


def at_work(folders: Sequence[Path]) -> list[Path]:
    """Return the folders with an active lease.

    If the process that has a lease cannot be checked, as on another machine, the heartbeat of the
    lease is observed.
    """
    here = [folder for folder in folders if _newest(folder)[1]]
    watch, until = Watch(), time.monotonic() + 1.5 * lease_timeout()
    while away := [folder for folder in folders if folder not in here and watch.waits(folder)]:
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    return here + away


class Watch:
    """Observer of lease heartbeats, with which a waiting process releases expired leases."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[tuple[int, int, int], float]] = {}

    def waits(self, folder: Path) -> bool:
        """Return whether a process has the lease; release an expired lease."""
        number, lives = _newest(folder)
        if lives is False:
            self._seen.pop(folder, None)
            return False
        try:
            # Opening the file bypasses the attribute cache of a network file system's client.
            with disk.opened(folder / f"lease-{number}") as file:
                at = os.fstat(file.fileno())
        except FileNotFoundError:
            return False
        beat, now = (number, at.st_ino, at.st_mtime_ns), time.monotonic()
        before, since = self._seen.setdefault(folder, (beat, now))
        if beat != before:
            self._seen[folder] = (beat, now)
        elif now - since > lease_timeout():
            _release(folder, number)
            return False
        return True


def _newest(folder: Path) -> tuple[int, bool | None]:
    """Return the highest lease number, and whether the lease's holder is alive.

    The second value is None if unknown on this machine. It is False for a released lease, which has
    no holder.
    """
    names = disk.names(folder)
    number, released = (
        max((int(n[len(kind) :]) for n in names if _numbered(n, kind)), default=0)
        for kind in ("lease-", "released-")
    )
    if number <= released:
        return released, False
    try:
        return number, alive(disk.read(folder / f"lease-{number}").decode("utf-8", "replace"))
    except FileNotFoundError:
        return number, None  # it is being released now: the next check will show the result


def _numbered(name: str, kind: str) -> bool:
    return name.startswith(kind) and name[len(kind) :].isdecimal()


def _release(folder: Path, number: int) -> None:
    try:
        os.rename(folder / f"lease-{number}", folder / f"released-{number}")
    except FileNotFoundError:
        pass  # another process released it first, or the work is finished


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Random part, drawn once per process, so that names are unique across machines.
_RANDOM = secrets.token_hex(8)


def myself() -> str:
    """Return the unique name of this process: boot, pid namespace, pid, start, random part."""
    return f"{_boot()} {_namespace()} {os.getpid()} {_began(os.getpid())} {_RANDOM}"


def alive(name: str) -> bool | None:
    """Return whether the process with a name is alive; None if unknown on this machine.

    The answer is known only within the same boot and pid namespace: elsewhere the same pid belongs
    to another process.
    """
    boot, namespace, pid, began = [*name.split(" "), "", "", "", ""][:4]
    if not (boot and namespace and began) or (boot, namespace) != (_boot(), _namespace()):
        return None
    return pid.isdecimal() and _began(int(pid)) == began


def _boot() -> str:
    """Return an identifier of this machine's boot; "" if it cannot be read."""
    if sys.platform != "linux":
        since = f"{os.uname().nodename} {psutil.boot_time()}"
        return hashlib.sha256(since.encode()).hexdigest()[:32]
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def _namespace() -> str:
    """Return this process's pid namespace, or "" if it is unknown.

    It is unknown if it cannot be read, or if /proc belongs to another namespace.
    """
    if sys.platform != "linux":
        return "all"
    try:
        ours = os.readlink("/proc/self") == str(os.getpid())
        return os.readlink("/proc/self/ns/pid") if ours else ""
    except OSError:
        return ""


def _began(pid: int) -> str:
    """Return the start time of a process, independent of the clock; "" if it has ended."""
    try:
        # The process name may contain any text; the state follows it, the start 19 fields later.
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return ""
    except ProcessLookupError:
        return ""
    try:
        return str(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return ""
