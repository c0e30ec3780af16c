"""Sink for MLflow: the server or database in MLFLOW_TRACKING_URI.

Without that variable, the database is mlflow.db if this file exists.
"""

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from llama_ablate.track.sinks import SINKS, TrackedRun

_RUN = "llama_ablate.run"
_STATUS = {"ok": "FINISHED", "cancelled": "KILLED"}
#: MLflow's limits: parameters and metrics of one call, and characters of a parameter.
_MAX_PARAMS, _MAX_METRICS, _MAX_CHARACTERS = 100, 1000, 6000


@SINKS.register("mlflow")
class MLflow:
    """MLflow run that is tagged with our run's id, and found again by this tag."""

    package = "mlflow"
    viewer = "mlflow ui, of the server or database in MLFLOW_TRACKING_URI"

    def __init__(self, folder: Path) -> None:
        del folder  # the user's settings of MLflow decide where runs are stored
        self._last = 0

    def open(self, run: TrackedRun) -> int:
        """Find the run by its id, or create it; return its last step, or -1.

        The config of a new run is sent as parameters.
        """
        from mlflow import MlflowClient
        from mlflow.entities import Param

        for name in ("mlflow", "alembic"):  # they log every table of a new database
            logging.getLogger(name).setLevel(logging.WARNING)
        self._client = client = MlflowClient()
        existing = client.get_experiment_by_name(run.project)
        experiment = existing.experiment_id if existing else client.create_experiment(run.project)
        runs_found = client.search_runs([experiment], f"tags.`{_RUN}` = '{run.id}'", max_results=1)
        if runs_found:
            self._id = runs_found[0].info.run_id
            client.update_run(self._id, status="RUNNING")
            points = client.get_metric_history(self._id, "train_loss_nats")
            self._last = max((point.step for point in points), default=-1)
            return self._last
        tags = {_RUN: run.id, "variant": run.group}
        self._id = client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        params = [Param(key, str(value)[:_MAX_CHARACTERS]) for key, value in run.flat.items()]
        for first in range(0, len(params), _MAX_PARAMS):
            client.log_batch(self._id, params=params[first : first + _MAX_PARAMS])
        return -1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send a point of the learning curve."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._last = step
        metrics = [Metric(key, value, now, step) for key, value in values.items()]
        for first in range(0, len(metrics), _MAX_METRICS):
            self._client.log_batch(self._id, metrics[first : first + _MAX_METRICS])

    def finish(self, outcome: str, metrics: Mapping[str, float]) -> None:
        """Send the metrics at the last step, the outcome as a tag, and end the run."""
        self.log(self._last, metrics)
        self._client.set_tag(self._id, "outcome", outcome)
        self._client.set_terminated(self._id, _STATUS.get(outcome, "FAILED"))
