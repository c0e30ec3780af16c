"""MLflow: the server or the database of MLFLOW_TRACKING_URI, by default mlflow.db where one is."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ablate.track.sinks import SINKS, TrackedRun

if TYPE_CHECKING:
    from mlflow.entities import Metric

_RUN = "llama_ablate.run"
_ENDED = {"ok": "FINISHED", "cancelled": "KILLED"}
_PARAMS = 100  # of one call: MLflow's own limits
_METRICS = 1000
_EVERY_S = 2.0
_LONGEST = 6000  # letters of a parameter: MLflow's own limit


@SINKS.register("mlflow")
class MLflow:
    """A run of MLflow that has our id as a tag, by which it is found again."""

    package = "mlflow"
    viewer = "mlflow ui, of the server or database in MLFLOW_TRACKING_URI"

    def __init__(self, folder: Path) -> None:
        del folder  # where runs are kept is what the user has set up for MLflow
        self._last = 0
        self._waiting: list[Metric] = []
        self._called = time.monotonic()

    def open(self, run: TrackedRun) -> int:
        """Find the run, or begin it with its recipe as parameters."""
        from mlflow import MlflowClient
        from mlflow.entities import Param

        for name in ("mlflow", "alembic"):  # they tell of every table of a new database
            logging.getLogger(name).setLevel(logging.WARNING)
        self._client = client = MlflowClient()
        known = client.get_experiment_by_name(run.project)
        experiment = known.experiment_id if known else client.create_experiment(run.project)
        found = client.search_runs([experiment], f"tags.`{_RUN}` = '{run.id}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            client.update_run(self._id, status="RUNNING")
            points = client.get_metric_history(self._id, "train_loss_nats")
            self._last = max((point.step for point in points), default=-1)
            return self._last
        tags = {_RUN: run.id, "variant": run.group}
        self._id = client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        params = [Param(key, str(value)[:_LONGEST]) for key, value in run.flat.items()]
        for first in range(0, len(params), _PARAMS):
            client.log_batch(self._id, params=params[first : first + _PARAMS])
        return -1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Collect a point; what is collected goes in one call, a transaction, every two seconds."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._last = step
        self._waiting += [Metric(key, value, now, step) for key, value in values.items()]
        if len(self._waiting) >= _METRICS or time.monotonic() - self._called > _EVERY_S:
            self._send()

    def finish(self, outcome: str, metrics: Mapping[str, float]) -> None:
        """Send the metrics at the last step, the outcome as a tag, and end the run."""
        self.log(self._last, metrics)
        self._send()
        self._client.set_tag(self._id, "outcome", outcome)
        self._client.set_terminated(self._id, _ENDED.get(outcome, "FAILED"))

    def _send(self) -> None:
        for first in range(0, len(self._waiting), _METRICS):
            self._client.log_batch(self._id, self._waiting[first : first + _METRICS])
        self._waiting, self._called = [], time.monotonic()
