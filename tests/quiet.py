"""Limits in seconds, on machines that others use too."""

import subprocess
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: What a million passes of the loop below take on a core of the machine that limits are stated for,
#: when nobody else uses it.
_QUIET_S = 0.108
#: How many times as long as on a quiet machine work may take: neighbours on the other half of a
#: core make it two.
_MOST = 4.0


def within(took: float, limit: float) -> bool:
    """Return whether work took less than a limit in seconds, as a quiet machine would have had it.

    Where it took longer, it is asked how much longer a fixed piece of work takes here just now:
    than on that machine, or than the processor's own time for it, where others have their share.
    """
    return took < limit or took < limit * min(_MOST, max(_slowness() for _ in range(5)))


def until(condition: Callable[[], T], limit: float) -> T:
    """Wait for something true, and return it: at most a limit in seconds of a quiet machine."""
    began = time.monotonic()
    while not (found := condition()):
        assert within(time.monotonic() - began, limit), f"nothing came in {limit} s"
        time.sleep(0.02)
    return found


def ended(process: "subprocess.Popen[str]", limit: float) -> tuple[str, str]:
    """Return what a command prints until it ends: after a limit in seconds of a quiet machine."""
    began = time.monotonic()
    printed = process.communicate(timeout=_MOST * limit)
    took = time.monotonic() - began
    assert within(took, limit), f"it took {took:.0f} s, in place of {limit}"
    return printed


def since(_report: object, began: float) -> float:
    """Return the seconds since a time: a task for a process, in a module that imports little."""
    return time.time() - began


def _slowness() -> float:
    began, used, total = time.perf_counter(), time.process_time(), 0
    for number in range(1_000_000):
        total += number * number % 7
    took = time.perf_counter() - began
    return took / min(_QUIET_S, time.process_time() - used)
