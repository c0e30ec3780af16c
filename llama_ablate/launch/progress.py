"""Progress bars for an experiment and its workers, or plain lines without a terminal."""

import sys
import time
from contextlib import AbstractContextManager
from typing import Any

from tqdm import tqdm

from llama_ablate.results import Record
from llama_ablate.terminal import Bar

_GRID = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}{postfix}"
_MAX_BARS = 32  # most bars of workers, to fit a terminal
_WORKER = "  {desc:28.28s} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps{postfix}"


class Progress(AbstractContextManager["Progress"]):
    """Progress on standard error: bars on a terminal, else a line per finished run.

    The experiment's bar covers training, evaluation on held-out text, and the `measuring_s` seconds
    of timed metrics.
    """

    def __init__(self, name: str, measuring_s: float = 0.0) -> None:
        self._name, self._measuring_s = name, measuring_s
        self._measured = Bar("measuring, variants in turn")
        self._bars_wanted = sys.stderr.isatty()
        self._grid: Any = None
        self._bars: list[Any] = []
        self._fractions: dict[int, float] = {}
        self._steps: dict[int, int] = {}
        self._began = time.monotonic()
        self._measuring_began = 0.0

    def begin(self, stage: str, *, total: int, done: int, workers: int) -> None:
        """Start the bars of the experiment and its workers, and remove earlier bars.

        `done` of the `total` runs have finished. `stage` names the experiment's stage, or is "".
        """
        self._total, self._done, self._before = total, done, done
        self._began = time.monotonic()
        name = f"{self._name}, {stage}" if stage else self._name
        if self._bars_wanted:
            self._close()
            self._grid = tqdm(total=1.0, desc=name, bar_format=_GRID)
            self._bars = [
                tqdm(total=1, bar_format=_WORKER, position=i + 1, leave=False)
                for i in range(min(workers, total, _MAX_BARS))
            ]
        else:
            sys.stderr.write(f"{name}: {done} of {total} runs done\n")
            sys.stderr.flush()

    def start(self, slot: int, label: str, steps: int) -> None:
        """Show that the worker in a slot has started a run of `steps` steps."""
        self._fractions[slot], self._steps[slot] = 0.0, steps
        if slot < len(self._bars):
            bar = self._bars[slot]
            bar.set_description_str(label, refresh=False)
            bar.set_postfix_str("", refresh=False)  # remove the previous run's loss
            bar.reset(total=steps)

    def step(self, slot: int, step: int, loss: float | None) -> None:
        """Show the step of a worker's run, and its loss unless None."""
        self._fractions[slot] = step / self._steps[slot]
        if slot < len(self._bars):
            bar = self._bars[slot]
            bar.n = step
            if loss is not None:
                bar.set_postfix_str(f"loss {loss:.3f}")
            self._draw_grid()

    def finish(self, slot: int | None, label: str, record: Record) -> None:
        """Show that a run has ended.

        `slot` is the number of its worker, or None if another launcher's worker trained it.
        """
        if slot is not None:
            self._fractions.pop(slot, None)
        self._done += 1
        word = "too short" if record.too_short else record.outcome
        what = f"{label} {word}" + (f": {record.reason}" if record.reason else "")
        if self._bars_wanted:
            self._draw_grid()
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
        if self._grid is None:
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
        for bar in self._bars[::-1]:
            bar.close()
        if self._grid is not None:
            self._grid.close()

    def _draw_grid(self) -> None:
        done = self._done + sum(self._fractions.values())
        self._draw(f"{done:.1f}/{self._total} runs", self._times(done)[1])

    def _draw(self, what: str, left: float) -> None:
        passed = time.monotonic() - self._began
        self._grid.n = passed / max(1e-9, passed + left)
        self._grid.set_postfix_str(f"{what}, {tqdm.format_interval(left)} left", refresh=False)
        self._grid.refresh()
