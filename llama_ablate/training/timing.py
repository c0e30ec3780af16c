"""Interleaved timing: cases take turns (A B C B A C), so that machine drift affects all alike.

The speed of a shared machine changes by tens of percent over minutes. Within a round, all cases run
at nearly the same machine speed, so ratios of their medians are stable. The contents of caches and
of freed memory depend on the preceding case; a new order in every round spreads this effect over
all cases.
"""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

Case = TypeVar("Case")
Result = TypeVar("Result")


def interleave(
    cases: Mapping[Case, Callable[[], Result]],
    rounds: int,
    *,
    warm_up: int = 0,
    shuffle: Callable[[list[Case]], object] = lambda _cases: None,
    progress: Callable[[int], object] = lambda _calls: None,
    enough: Callable[[], bool] = lambda: False,
) -> tuple[dict[Case, list[Result]], dict[Case, Exception]]:
    """Call every case once a round; return the results of each case, and the errors.

    `warm_up` rounds come before the `rounds`; the results of the warm-up are dropped. A case that
    raises is not called again, and has an error instead of results. `shuffle` reorders the cases of
    every round in place; by default they stay in order. `progress` gets the number of calls so far,
    skipped calls included. `enough` is called before each round but the first; if it returns True,
    the timing ends.
    """
    results: dict[Case, list[Result]] = {case: [] for case in cases}
    errors: dict[Case, Exception] = {}
    calls = 0
    order = list(cases)
    for turn in range(warm_up + rounds):
        if turn and enough():
            break
        shuffle(order)
        for case in order:
            if case in results:
                try:
                    result = cases[case]()
                except Exception as error:  # noqa: BLE001  the other cases go on
                    errors[case] = error
                    del results[case]
                else:
                    results[case] += [result] if turn >= warm_up else []
            calls += 1
            progress(calls)
    return results, errors


def seconds_of(call: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Return the seconds of one call, including all the work that it queues on the device."""
    synchronize()
    start = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - start
