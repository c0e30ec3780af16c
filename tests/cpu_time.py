"""CPU seconds of a test and of all processes that it starts, for `pytest --cpu`.

Wall-clock time says little on a machine that others use; CPU time is much the same on a busy one.
"""

import ctypes
import resource
from collections import Counter
from contextlib import suppress

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """Become the parent of what outlives its parent, so that its time is not lost (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def used():
    """Return the CPU seconds of this process and of all that descend from it, so far."""
    own, ended = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    total = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # with those of the children that it has buried
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
