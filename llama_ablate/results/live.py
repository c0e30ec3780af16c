"""Live notes: the progress of a run during training, for display only.

`working/<run id>/live.json` is written by the worker at most every two seconds, and removed when
training has ended. Results never depend on the note, it is never flushed to the disk, and a failed
write does not fail the run. Therefore the note bypasses `files.disk`, which is for files that
results depend on.
"""

import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.fields import Number
from llama_ablate.files.strict_json import parse, to_line

LIVE = "live.json"
#: Seconds between two notes.
EVERY_S = 2.0
#: Column of a curve that is present at points with a held-out evaluation.
_EVALUATED = "validation_loss_nats"
_MOST = 10**18  # upper bound of every count; a note with a larger number is ignored


class Live(BaseModel):
    """Progress of a run: `step` of `steps`, `tokens` so far, training loss in nats per token.

    `tokens_per_s` is the average since this process started or resumed the run, including its work
    between training steps; 0 while unknown. `peak_memory_bytes` is 0 until the first evaluation,
    since later steps and evaluations need no more memory. `curve` contains the points of the
    learning curve so far, with the columns of `curve.csv`. `updated` is the time of writing, in
    seconds since 1970 by the clock of the worker's machine.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    run: str
    step: int = Field(ge=0, le=_MOST)
    steps: int = Field(gt=0, le=_MOST)
    tokens: int = Field(ge=0, le=_MOST)
    train_loss: Number
    tokens_per_s: Annotated[float, Field(ge=0, le=_MOST), AfterValidator(partial(round, ndigits=6))]
    peak_memory_bytes: int = Field(0, ge=0, le=_MOST)
    curve: tuple[dict[str, Number], ...]
    updated: float = Field(ge=0, le=_MOST)

    @property
    def seconds_left(self) -> float | None:
        """Remaining training time in seconds at the present speed; None while unknown."""
        if not self.tokens_per_s or not self.step:
            return None
        return (self.steps - self.step) * self.tokens / self.step / self.tokens_per_s


class LiveNote(AbstractContextManager["LiveNote"]):
    """Writer of a run's live note during training; removes the note at the end."""

    def __init__(
        self,
        folder: Path,
        run: str,
        steps: int,
        tokens_per_step: int,
        read_peak: Callable[[], int] = lambda: 0,
    ) -> None:
        """Prepare the note in the working folder of a run of `steps` steps."""
        self._folder, self._run, self._read_peak = folder, run, read_peak
        self._evaluated = False
        self._steps, self._tokens_per_step = steps, tokens_per_step
        self._file, self._partial = folder / LIVE, folder / f"{disk.PARTIAL}{LIVE}"
        self._began: tuple[int, float] | None = None
        self._written = time.monotonic()
        self._failed = False

    def __exit__(self, *_: object) -> None:
        for file in (self._file, self._partial):
            with suppress(OSError):  # it may never have existed, or is removed with its folder
                os.unlink(file)

    def __call__(self, step: int, loss: float, curve: Sequence[Mapping[str, float]]) -> None:
        """Write the progress of the run, if the last note is old enough.

        No OSError is raised. The first evaluation is written at once, since the peak memory in this
        note determines whether more workers can start.
        """
        now = time.monotonic()
        self._began = began = self._began or (step, now)
        loss_seen = any(math.isfinite(point.get(_EVALUATED, math.nan)) for point in curve[-1:])
        first = not self._evaluated and loss_seen
        self._evaluated |= first
        if now - self._written < EVERY_S and not first:
            return
        self._written = now
        passed, done = now - began[1], step - began[0]
        values = {
            "run": self._run,
            "step": step,
            "steps": self._steps,
            "tokens": step * self._tokens_per_step,
            "train_loss": loss,
            "tokens_per_s": done * self._tokens_per_step / passed if done else 0.0,
            "peak_memory_bytes": self._read_peak() if self._evaluated else 0,
            "curve": curve,
            "updated": time.time(),
        }
        try:
            self._partial.write_text(to_line(values) + "\n", "utf-8")
            os.replace(self._partial, self._file)
        except OSError as error:
            if not self._failed:
                sys.stderr.write(f"note: how far the run is cannot be shown: {error}\n")
            self._failed = True


def read(folder: Path) -> Live | None:
    """Read the latest live note in a run's working folder; None without a valid note.

    The folder may be removed during reading; an unreadable file counts as no note.
    """
    file = folder / LIVE
    try:
        return Live.model_validate(parse(disk.read(file), file))
    except (OSError, ConfigError, ValidationError):
        return None
