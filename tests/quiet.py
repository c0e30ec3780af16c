"""Waiting, and limits in CPU seconds: a machine that others use is slower, and no test fails of it.

How long something takes by a clock says how busy the machine is. What is waited for is an event,
for as long as pytest lets a test run; what may cost only so much is held to CPU seconds.
"""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import psutil

T = TypeVar("T")

#: What a million passes of the loop below take of a core of the machine that limits are stated for.
_QUIET_S = 0.108
#: How many times as many CPU seconds work may take: neighbours on the other half of a core make it
#: two.
_MOST = 4.0


def within(took: float, limit: float) -> bool:
    """Return whether work took fewer CPU seconds than a limit, on the machine it is stated for.

    Where it took more, it is asked how many more a fixed piece of work takes here just now.
    """
    return took < limit or took < limit * min(_MOST, max(_slowness() for _ in range(5)))


def used_seconds() -> float:
    """Return the CPU seconds of this process and of all that descend from it, so far."""
    own, ended = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    total = own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # with those of the children that it has buried
    return total


@contextmanager
def cpu_seconds(limit: float) -> Iterator[None]:
    """Hold what is done inside to CPU seconds of this process and of all that descend from it."""
    began = used_seconds()
    yield
    took = used_seconds() - began
    assert within(took, limit), f"it took {took:.1f} CPU seconds, in place of {limit}"


def until(condition: Callable[[], T]) -> T:
    """Wait for something true, and return it."""
    while not (found := condition()):
        time.sleep(0.1)
    return found


def _slowness() -> float:
    began, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number * number % 7
    return (time.process_time() - began) / _QUIET_S
