"""Limits of a container: memory and CPU time of this process, from Linux control groups."""

import math
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_GROUPS = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60  # bytes: version 1 writes a number beyond it for no limit


def memory_left(root: Path = _ROOT, groups: Path = _GROUPS) -> float:
    """Return the bytes that the control groups of this process leave; infinity without a limit.

    Pages of files that may be dropped count as left. Versions 1 and 2 are read.
    """
    least = math.inf
    for folder in _folders("memory", root, groups):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if limit < _UNLIMITED and math.isfinite(used):
            least = min(least, max(0.0, limit - used + _droppable(folder)))
    return least


def cpus(root: Path = _ROOT, groups: Path = _GROUPS) -> float:
    """Return the CPUs that the control groups of this process grant; infinity without a limit."""
    least = math.inf
    for folder in _folders("cpu", root, groups):
        quota = _number(folder, "cpu.max", "cpu.cfs_quota_us")
        words = _read(folder / "cpu.max").split()
        period = float(words[1]) if len(words) > 1 else _number(folder, "cpu.cfs_period_us")
        if 0 < quota < math.inf:
            least = min(least, quota / period)
    return least


def _folders(controller: str, root: Path, groups: Path) -> Iterator[Path]:
    """Yield the folders of a controller's group and of all groups around it.

    In a container, the paths of version 1 may be those of the machine, where the root is its group.
    """
    for line in _read(groups).splitlines():
        _, names, path = line.split(":", 2)
        if not names or controller in names.split(","):
            top = root / controller if names else root
            folder = top / path.lstrip("/")
            yield from (part for part in (folder, *folder.parents) if part.is_relative_to(top))


def _number(folder: Path, *names: str) -> float:
    """Return the first number of the first file that exists; infinity for `max` or no file."""
    for name in names:
        if words := _read(folder / name).split():
            return math.inf if words[0] == "max" else float(words[0])
    return math.inf


def _droppable(folder: Path) -> float:
    rows = (line.split() for line in _read(folder / "memory.stat").splitlines())
    sizes = {key: float(value) for key, value in rows}
    return sizes.get("inactive_file", sizes.get("total_inactive_file", 0.0))


def _read(file: Path) -> str:
    try:
        return file.read_text("ascii", "replace")
    except OSError:
        return ""
