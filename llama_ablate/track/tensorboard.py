"""Sink for TensorBoard: event files in the experiment's folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_ablate.files import disk
from llama_ablate.files.slugs import slug
from llama_ablate.track.sinks import SINKS, TrackedRun


@SINKS.register("tensorboard")
class TensorBoard:
    """TensorBoard event files below `track/tensorboard`, in a folder for each run.

    A run's files are written anew whenever the run is opened.
    """

    package = "tensorboard"
    viewer = "tensorboard --logdir {folder}/tensorboard"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = 0

    def open(self, run: TrackedRun) -> int:
        """Create the run's event file, with its config as hyperparameters.

        An earlier file is replaced. Return -1, since the new file has no steps.
        """
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        names = ("tensorboard", slug(run.group), f"{slug(run.name)}--{run.id}")
        place = disk.below(self._folder, *names)
        disk.remove_tree(place)
        writer: Any = SummaryWriter(str(place))
        self._writer = writer
        for summary in hparams(dict(run.flat), {}):  # type: ignore[no-untyped-call]
            writer.file_writer.add_summary(summary)
        return -1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a point of the learning curve as scalars, and flush the file."""
        self._last = step
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def finish(self, outcome: str, metrics: Mapping[str, float]) -> None:
        """Write the metrics at the last step, and the outcome as text."""
        self.log(self._last, metrics)
        self._writer.add_text("outcome", outcome, self._last)
        self._writer.close()
