"""Progress bar of an experiment, or plain lines without a terminal."""

import sys
import time
from contextlib import AbstractContextManager
from typing import Any

from tqdm import tqdm

from llama_ablate.results import Record
from llama_ablate.terminal import Bar

_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}{postfix}"


class Progress(AbstractContextManager["Progress"]):
    """Progress on standard error: a bar on a terminal, else a line per finished run.

    The bar covers training, evaluation on held-out text, and the `measuring_s` seconds of timed
    metrics.
    """

    def __init__(self, name: str, measuring_s: float = 0.0) -> None:
        self._name, self._measuring_s = name, measuring_s
        self._measured = Bar("measuring, variants in turn")
        self._bar: Any = None
        self._fractions: dict[str, float] = {}
        self._began = time.monotonic()
        self._measuring_began = 0.0

    def begin(self, stage: str, *, total: int, done: int) -> None:
        """Start the bar of an experiment, of whose `total` runs `done` have finished.

        `stage` names the experiment's stage, or is "".
        """
        self._total, self._done, self._before = total, done, done
        self._began = time.monotonic()
        name = f"{self._name}, {stage}" if stage else self._name
        self._close()
        if sys.stderr.isatty():
            self._bar = tqdm(total=1.0, desc=name, bar_format=_FORMAT)
        else:
            sys.stderr.write(f"{name}: {done} of {total} runs done\n")
            sys.stderr.flush()

    def step(self, run: str, fraction: float) -> None:
        """Show which fraction of its steps a run has reached."""
        self._fractions[run] = fraction
        self._draw_runs()

    def finish(self, run: str, label: str, record: Record) -> None:
        """Show that a run has ended."""
        self._fractions.pop(run, None)
        self._done += 1
        word = "too short" if record.too_short else record.outcome
        what = f"{label} {word}" + (f": {record.reason}" if record.reason else "")
        if self._bar is not None:
            self._draw_runs()
            if not record.ok:
                tqdm.write(what, file=sys.stderr)
        else:
            passed, left = self._times(self._done)
            sys.stderr.write(
                f"[{self._done}/{self._total}] {what} ({passed:.0f} s, about {left:.0f} s left)\n"
            )
            sys.stderr.flush()

    def measure(self, done: int, total: int) -> None:
        """Show that `done` of `total` measurements after training are done."""
        if self._bar is None:
            self._measured.update(done, total)
            return
        if not self._measuring_began:
            self._measuring_began = time.monotonic()
        took = time.monotonic() - self._measuring_began
        left = (took / done if done else self._measuring_s / total) * (total - done)
        self._draw(f"measuring {done}/{total}", left)

    def _times(self, done: float) -> tuple[float, float]:
        """Return the elapsed and the estimated remaining seconds, with `done` runs done."""
        passed = time.monotonic() - self._began
        left = passed / max(1.0, done - self._before) * (self._total - done)
        return passed, left + self._measuring_s

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def _draw_runs(self) -> None:
        done = self._done + sum(self._fractions.values())
        self._draw(f"{done:.1f}/{self._total} runs", self._times(done)[1])

    def _draw(self, what: str, left: float) -> None:
        if self._bar is not None:
            passed = time.monotonic() - self._began
            self._bar.n = passed / max(1e-9, passed + left)
            self._bar.set_postfix_str(f"{what}, {tqdm.format_interval(left)} left", refresh=False)
            self._bar.refresh()
