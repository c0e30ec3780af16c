"""Process names that tell others whether the process is alive, where that can be known.

A process id is unique only within one pid namespace of one boot. Containers, and clones of a
virtual machine, may share everything else: host name, machine id, number of the namespace.
"""

import hashlib
import os
import secrets
import sys
from pathlib import Path

import psutil

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Drawn once by every program: no two machines use a name twice, whatever they share.
_RANDOM = secrets.token_hex(8)


def myself() -> str:
    """Return the name of this process: boot, pid namespace, process id, start, a random part."""
    return f"{_boot()} {_namespace()} {os.getpid()} {_began(os.getpid())} {_RANDOM}"


def alive(name: str) -> bool | None:
    """Return whether the process of a name is alive; None if unknown here.

    Known only within one boot and pid namespace: elsewhere the same id is another process's.
    """
    boot, namespace, pid, began = [*name.split(" "), "", "", "", ""][:4]
    if not (boot and namespace and began) or (boot, namespace) != (_boot(), _namespace()):
        return None
    return pid.isdecimal() and _began(int(pid)) == began


def _boot() -> str:
    """Name this boot of this machine; "" where that cannot be read."""
    if sys.platform != "linux":
        since = f"{os.uname().nodename} {psutil.boot_time()}"
        return hashlib.sha256(since.encode()).hexdigest()[:32]
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return ""


def _namespace() -> str:
    """Name the pid namespace; "" where that cannot be read, or /proc is that of another one."""
    if sys.platform != "linux":
        return "all"
    try:
        ours = os.readlink("/proc/self") == str(os.getpid())
        return os.readlink("/proc/self/ns/pid") if ours else ""
    except OSError:
        return ""


def _began(pid: int) -> str:
    """Return when a process started, independent of the clock; "" if it is gone."""
    try:
        # After the name, which may hold anything: the state, and 19 fields later the start.
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
