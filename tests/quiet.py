"""Limits in seconds, on machines that others use too."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: What a million passes of the loop below take on a core of the machine that limits are stated for,
#: when nobody else uses it.
_QUIET_S = 0.108


def within(took: float, limit: float) -> bool:
    """Return whether work took less than a limit in seconds, as a quiet machine would have had it.

    Where it took longer, it is asked how much longer a fixed piece of work takes here just now, up
    to four times: neighbours on a core's other half make it two.
    """
    return took < limit or took < limit * min(4.0, max(_slowness() for _ in range(5)))


def until(condition: Callable[[], T], limit: float) -> T:
    """Wait for something true, and return it: at most a limit in seconds of a quiet machine."""
    began = time.monotonic()
    while not (found := condition()):
        assert within(time.monotonic() - began, limit), f"nothing came in {limit} s"
        time.sleep(0.02)
    return found


def since(_report: object, began: float) -> float:
    """Return the seconds since a time: a task for a process, in a module that imports little."""
    return time.time() - began


def _slowness() -> float:
    began, total = time.perf_counter(), 0
    for number in range(1_000_000):
        total += number * number % 7
    return (time.perf_counter() - began) / _QUIET_S
