"""CPU seconds of a test and of all processes that it starts, for `pytest --cpu`.

Wall-clock time says little on a machine that others use; CPU time is much the same on a busy one.
"""

import ctypes
import os
import resource
from collections import Counter
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """Become the parent of what outlives its parent, so that its time is not lost (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def used():
    """Return the CPU seconds of this process and of all that descend from it, so far."""
    own, ended = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    total = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    return total + _of_children(os.getpid())


def _of_children(pid):
    """Sum the times of living and unburied descendants, and of what these have buried."""
    total = 0.0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                with suppress(OSError):
                    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                    total += sum(map(int, fields[11:15])) / _TICKS + _of_children(child)
    return total


def table(reports):
    """Return lines: the CPU seconds of each file, its tests, and its most expensive one."""
    files, tests, most = Counter(), Counter(), {}
    for report in reports:
        seconds = dict(report.user_properties).get("cpu_s")
        if seconds is not None:
            file = report.nodeid.partition("::")[0]
            files[file] += seconds
            tests[file] += 1
            most[file] = max(most.get(file, (0.0, "")), (seconds, report.nodeid.partition("::")[2]))
    lines = []
    for file, seconds in files.most_common():
        dearest = f"{most[file][0]:.1f} s {most[file][1][:90]}"
        lines.append(f"{seconds:7.1f} s {tests[file]:5} tests  {file}  (most: {dearest})")
    return [*lines, f"{sum(files.values()):7.1f} s {sum(tests.values()):5} tests"]
