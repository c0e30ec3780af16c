"""Trackio: its local store, or the Hugging Face Space of TRACKIO_SPACE_ID."""

from collections.abc import Mapping
from contextvars import Context
from pathlib import Path

from llama_ablate.track.registry import SINKS, TrackedRun


@SINKS.register("trackio")
class Trackio:
    """A run of Trackio, which knows runs by their names: so its name ends with our id."""

    package = "trackio"

    def __init__(self, folder: Path) -> None:
        del folder  # Trackio has a folder of its own: TRACKIO_DIR
        self._last = 0

    def open(self, run: TrackedRun) -> int:
        """Begin the run in place of an earlier copy in the local store."""
        import trackio

        name = f"{run.name} {run.id}"
        try:
            earlier = [one for one in trackio.Api().runs(run.project) if one.name == name]
        except ValueError:  # the project is new
            earlier = []
        for one in earlier:
            one.delete()
        # A context of its own: where there is a current run, `init` ends that one.
        self._run = Context().run(
            trackio.init,
            run.project,
            name=name,
            group=run.group,
            config=dict(run.flat),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return -1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send a point."""
        self._run.log(dict(values), step=step)
        self._last = step

    def finish(self, outcome: str, metrics: Mapping[str, float]) -> None:
        """Send metrics and outcome at the last step, and wait until they are stored."""
        self._run.log({**metrics, "outcome": outcome}, step=self._last)
        self._run.finish()
