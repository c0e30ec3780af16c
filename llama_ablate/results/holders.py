"""Naming a process so that others on its machine can tell whether it still lives."""

import hashlib
import os
from functools import cache
from pathlib import Path

import psutil


def myself() -> str:
    """Return the name of this process: machine, boot, process id, and when it began."""
    return f"{_machine()} {_boot()} {os.getpid()} {_began(os.getpid())}"


def alive(name: str) -> bool | None:
    """Return whether the process of a name lives; None where that cannot be told from here."""
    machine, boot, pid, began = [*name.split(" "), "", "", "", ""][:4]
    if machine != _machine() or not began:
        return None
    return boot == _boot() and pid.isdecimal() and _began(int(pid)) == began


@cache
def _machine() -> str:
    """Name this machine, as seen from this container, without giving its name away."""
    try:
        made, space = Path("/etc/machine-id").read_text("ascii"), os.readlink("/proc/self/ns/pid")
    except OSError:
        made, space = "", ""
    return hashlib.sha256(f"{os.uname().nodename} {made} {space}".encode()).hexdigest()[:16]


@cache
def _boot() -> str:
    """Name the time since which this machine has been up."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:  # not Linux
        return str(psutil.boot_time())


def _began(pid: int) -> str:
    """Say when a process began, in a way that no change of the clock alters; "" if it is gone."""
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
