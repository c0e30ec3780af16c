"""Follow an experiment's results, and send new points and metrics to a tracker."""

import fcntl
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.results import FINAL, Record, Results
from llama_ablate.results.live import EVERY_S
from llama_ablate.track.sinks import Sink, TrackedRun, make

_LONGEST_S = 60.0  # longest wait before a failing sink is tried again


@dataclass
class _Open:
    """Open sink (tracker connection) of a run, and the last step sent."""

    sink: Sink
    step: int


class Follower:
    """Sender of an experiment's runs to a tracker.

    Each call of `send_new` sends the results that are new since the previous call.
    """

    def __init__(self, results: Results, name: str) -> None:
        self._results, self._name = results, name
        self._open: dict[str, _Open] = {}
        #: Folder and metrics that were sent of each run that has ended.
        self._sent: dict[str, tuple[Path | None, dict[str, float]]] = {}

    @property
    def sent(self) -> int:
        """Number of runs that were sent completely."""
        return len(self._sent)

    @property
    def done(self) -> bool:
        """True if every planned run was sent with a final outcome."""
        finished = self._results.finished
        return len(self._sent) == len(self._results.plan.runs) and all(
            finished[run].outcome()[0] in FINAL for run in self._sent
        )

    def send_new(self, *, last: bool = False) -> None:
        """Send the results of all runs since the previous call.

        If `last` is set, metrics that were measured after a run had been sent are sent, too, and
        runs that have not ended are closed. Errors of a run's sink are raised; the next call opens
        a new sink for that run.
        """
        results = self._results.reopen()
        results.plan = self._results.plan  # the plan does not change while its runs train
        self._results = results
        for run, live in results.live.items():
            self._points(run, live.curve)
        for run, finished in results.finished.items():
            sent = self._sent.get(run)
            if last or sent is None or sent[0] != finished.path:
                metrics = self._metrics(finished.record())
                if sent != (finished.path, metrics):
                    self._points(run, finished.curve())
                    self._finish(run, finished.outcome()[0], metrics)
                    self._sent[run] = finished.path, metrics
        if last:
            for run in list(self._open):
                self._finish(run, "cancelled", {})

    def _points(self, run: str, curve: Iterable[Mapping[str, float]]) -> None:
        """Send the points of a learning curve that the sink has not received yet."""
        with self._opened(run) as ours:
            for point in curve:
                step = int(point["step"])
                if step > ours.step:
                    ours.sink.log(step, {k: v for k, v in _finite(point) if k != "step"})
                    ours.step = step

    def _finish(self, run: str, outcome: str, metrics: Mapping[str, float]) -> None:
        with self._opened(run) as ours:
            ours.sink.finish(outcome, metrics)
        del self._open[run]

    @contextmanager
    def _opened(self, run: str) -> Iterator[_Open]:
        """Yield the open sink of a run, or a new sink after an error."""
        try:
            if run not in self._open:
                plan = self._results.plan
                sink = make(self._name, self._results.track)
                step = sink.open(TrackedRun.of(plan, plan.runs[run]))
                self._open[run] = _Open(sink, step)
            yield self._open[run]
        except BaseException:
            self._open.pop(run, None)
            raise

    def _metrics(self, record: Record) -> dict[str, float]:
        """Return the metrics of a run and of its variant, by name."""
        numbers = {
            "steps_done": record.steps_done,
            "tokens_done": record.tokens_done,
            "train_s": record.train_s,
            "peak_memory_bytes": record.peak_memory_bytes,
            **record.numbers,
        }
        for metric in self._results.variant_metrics(record.variant).values():
            numbers |= metric.numbers
        return {f"final/{name}": value for name, value in _finite(numbers)}


def follow(
    follower: Follower, ended: Callable[[float], bool], fail: Callable[[Exception], None]
) -> None:
    """Send new results every two seconds, until `ended` returns true.

    `ended(seconds)` waits for the given number of seconds, and returns whether to stop. The first
    error of the sink is passed to `fail`; after each error the wait is doubled, up to a minute.
    """
    wait, has_warned = EVERY_S, False
    while True:
        last = ended(wait)
        try:
            follower.send_new(last=last)
            wait = EVERY_S
        except Exception as error:  # noqa: BLE001  whatever a tracker's package raises
            if not has_warned:
                fail(error)
            wait, has_warned = min(2 * wait, _LONGEST_S), True
        if last:
            return


@contextmanager
def alone(results: Results, name: str) -> Iterator[TextIO]:
    """Lock the transfer of an experiment to a tracker; yield the transfer's log file.

    Raises ConfigError if another process has the lock, and for a link in the results; OSError if
    the folder cannot be made.
    """
    results.refuse_links()
    _ = results.plan  # refuses results of another version before anything is written
    handle = disk.append(disk.below(results.track, f"{name}.log"))
    with os.fdopen(handle, "a", encoding="utf-8") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another process is sending '{results.root}' to {name}") from None
        yield log


def _finite(values: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    return ((key, value) for key, value in values.items() if math.isfinite(value))
