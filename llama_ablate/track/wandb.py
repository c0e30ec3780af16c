"""Sink for Weights & Biases; runs sent offline (WANDB_MODE=offline) need `wandb sync`."""

from collections.abc import Mapping
from pathlib import Path

from llama_ablate.files import disk
from llama_ablate.files.slugs import slug
from llama_ablate.track.sinks import SINKS, TrackedRun


@SINKS.register("wandb")
class WandB:
    """Weights & Biases run with our run's id, resumed if it exists already."""

    package = "wandb"
    viewer = "your page at W&B; offline: wandb sync {folder}/wandb/offline-run-*"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, run: TrackedRun) -> int:
        """Begin or resume the run; return its last step, or -1.

        Offline, runs cannot be resumed, so an earlier copy of the run is removed.
        """
        import wandb

        for earlier in (self._folder / "wandb").glob(f"offline-run-*-{run.id}"):
            disk.remove_tree(earlier)
        disk.make(self._folder)
        self._run = wandb.init(
            project=slug(run.project, 128),  # names of projects have no spaces and slashes
            id=run.id,
            name=run.name,
            group=run.group[:128],
            config=dict(run.config),
            dir=self._folder,
            resume="allow",
            reinit="create_new",  # several runs at a time
            allow_val_change=True,
            settings=wandb.Settings(
                silent=True,
                console="off",
                symlink=False,  # a link in a results folder is refused
                disable_git=True,
                x_disable_stats=True,  # no statistics of this process, which trains nothing
                x_disable_meta=True,
                x_save_requirements=False,
            ),
        )
        return int(self._run.starting_step) - 1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send a point of the learning curve."""
        self._run.log(dict(values), step=step)

    def finish(self, outcome: str, metrics: Mapping[str, float]) -> None:
        """Send metrics and outcome as the run's summary."""
        self._run.summary.update({**metrics, "outcome": outcome})
        self._run.finish(exit_code=0 if outcome == "ok" else 1)
