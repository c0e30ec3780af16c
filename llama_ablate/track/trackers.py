"""Sinks for TensorBoard, Weights & Biases and MLflow, whose packages are imported when used."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_ablate.files import disk
from llama_ablate.files.slugs import slug
from llama_ablate.track.sinks import SINKS, TrackedRun


@SINKS.register("tensorboard")
class TensorBoard:
    """TensorBoard event files below `track/tensorboard`, in a folder for each run."""

    package = "tensorboard"
    viewer = "tensorboard --logdir {folder}/tensorboard"

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        place = disk.below(folder, "tensorboard", slug(run.group), f"{slug(run.name)}--{run.id}")
        disk.remove_tree(place)
        writer: Any = SummaryWriter(str(place))
        self._writer = writer
        for summary in hparams(dict(run.flat), {}):  # type: ignore[no-untyped-call]
            writer.file_writer.add_summary(summary)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write numbers as scalars, and flush the file."""
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)
        self._writer.flush()

    def finish(self, outcome: str) -> None:
        """Write the outcome as text."""
        self._writer.add_text("outcome", outcome)
        self._writer.close()


@SINKS.register("wandb")
class WandB:
    """Weights & Biases run with our run's id; WANDB_MODE=offline needs `wandb sync`."""

    package = "wandb"
    viewer = "your page at W&B; offline: wandb sync {folder}/wandb/offline-run-*"

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        import wandb

        for earlier in (folder / "wandb").glob(f"offline-run-*-{run.id}"):
            disk.remove_tree(earlier)  # offline, runs cannot be resumed
        disk.make(folder)
        self._run = wandb.init(
            project=slug(run.project, 128),  # names of projects have no spaces and slashes
            id=run.id,
            name=run.name,
            group=run.group[:128],
            config=dict(run.config),
            dir=folder,
            resume="allow",
            reinit="create_new",  # several runs of one process
            allow_val_change=True,
            # No links, which a results folder refuses, and no statistics of the machine.
            settings=wandb.Settings(
                silent=True, console="off", symlink=False, disable_git=True, x_disable_stats=True
            ),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers; W&B leaves out steps that it has already."""
        self._run.log(dict(values), step=step)

    def finish(self, outcome: str) -> None:
        """Send the outcome as part of the summary."""
        self._run.summary["outcome"] = outcome
        self._run.finish(exit_code=0 if outcome == "ok" else 1)


@SINKS.register("mlflow")
class MLflow:
    """MLflow run, in the server or database in MLFLOW_TRACKING_URI, tagged with our run's id."""

    package = "mlflow"
    viewer = "mlflow ui, of the server or database in MLFLOW_TRACKING_URI"
    at_end = True  # a database of SQLite has one writer

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        from mlflow import MlflowClient

        del folder  # the user's settings of MLflow decide where runs are stored
        for name in ("mlflow", "alembic"):  # they log every table of a new database
            logging.getLogger(name).setLevel(logging.WARNING)
        self._client = client = MlflowClient()
        existing = client.get_experiment_by_name(run.project)
        experiment = existing.experiment_id if existing else client.create_experiment(run.project)
        for earlier in client.search_runs([experiment], f"tags.`llama_ablate.run` = '{run.id}'"):
            client.delete_run(earlier.info.run_id)
        tags = {"llama_ablate.run": run.id, "variant": run.group}
        self._id = client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        for key, value in run.flat.items():
            client.log_param(self._id, key, str(value)[:6000])  # MLflow's limit

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers."""
        for key, value in values.items():
            self._client.log_metric(self._id, key, value, step=step)

    def finish(self, outcome: str) -> None:
        """Send the outcome as a tag, and end the run."""
        self._client.set_tag(self._id, "outcome", outcome)
        self._client.set_terminated(self._id, "FINISHED" if outcome == "ok" else "FAILED")
