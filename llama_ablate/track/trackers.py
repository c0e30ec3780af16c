"""Sinks for TensorBoard, Weights & Biases and MLflow, whose packages are imported when used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from llama_ablate.files import disk
from llama_ablate.files.slugs import slug
from llama_ablate.files.strict_json import to_line
from llama_ablate.track.sinks import SINKS, TrackedRun


@SINKS.register("tensorboard")
class TensorBoard:
    """TensorBoard event files below `track/tensorboard`, in a folder for each run."""

    package = "tensorboard"

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = disk.below(folder, "tensorboard", slug(run.group), f"{slug(run.name)}--{run.id}")
        disk.remove_tree(place)
        self._writer: Any = SummaryWriter(str(place))
        self._writer.add_text("config", to_line(run.config))

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

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        import wandb

        for earlier in (folder / "wandb").glob(f"offline-run-*-{run.id}"):
            disk.remove_tree(earlier)
        disk.make(folder)
        names: Any = {"project": slug(run.project, 128), "group": run.group[:128], "name": run.name}
        # Several runs of one process; no links, which a results folder refuses.
        settings = wandb.Settings(silent=True, console="off", symlink=False, reinit="create_new")
        self._run = wandb.init(
            **names,
            id=run.id,
            config=dict(run.config),
            dir=folder,
            resume="allow",
            settings=settings,
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

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        from mlflow import MlflowClient

        del folder  # the user's settings of MLflow decide where runs are stored
        self._client = client = MlflowClient()
        existing = client.get_experiment_by_name(run.project)
        experiment = existing.experiment_id if existing else client.create_experiment(run.project)
        for earlier in client.search_runs([experiment], f"tags.`llama_ablate.run` = '{run.id}'"):
            client.delete_run(earlier.info.run_id)
        tags = {"llama_ablate.run": run.id, "variant": run.group}
        self._id = client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        for key, value in pd.json_normalize(dict(run.config)).iloc[0].items():
            client.log_param(self._id, str(key), str(value)[:6000])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers."""
        for key, value in values.items():
            self._client.log_metric(self._id, key, value, step=step)

    def finish(self, outcome: str) -> None:
        """Send the outcome as a tag, and end the run."""
        self._client.set_tag(self._id, "outcome", outcome)
        self._client.set_terminated(self._id, "FINISHED" if outcome == "ok" else "FAILED")
