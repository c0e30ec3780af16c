"""Read-only snapshot of an experiment's results, from a folder or a pack.

Every reader of results uses this module. Files are read on demand. Small documents are cached;
records and curves are read again each time.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import parse, sealed, to_json
from llama_ablate.results import leases, live
from llama_ablate.results.archive import is_pack
from llama_ablate.results.folder import Folder, experiments_in
from llama_ablate.results.live import Live
from llama_ablate.results.plan_document import PLAN, PlanDocument
from llama_ablate.results.protocol import StatedMetrics
from llama_ablate.results.record import FINAL, Measurement, Record
from llama_ablate.results.run import RunFolder
from llama_ablate.results.store import Store


@dataclass(frozen=True)
class RunStatus:
    """Status of a planned run: its outcome, `running` with an active lease, or `pending`.

    A failed run that is being retried is `running` too. A running run has a live note of its
    progress once its worker has trained for some seconds.
    """

    id: str
    label: str
    seed: int
    outcome: str = "pending"
    reason: str = ""
    live: Live | None = None
    #: Display name: label, seed, table if there are several, and tuned values.
    name: str = ""


class Results(Folder):
    """Results of an experiment for reports; its tables share one set of records."""

    def reopen(self, **known: object) -> "Results":
        """Return a new snapshot of the same results; `known` values are not read again."""
        other = Results(self.root, self.plan_name)
        other.files = self.files  # an archive is read once
        vars(other).update(known)
        return other

    def only(self, runs: Collection[str]) -> "Results":
        """Return a snapshot restricted to some of the planned runs."""
        return self.reopen(plan=self.plan.only(runs))

    @cached_property
    def plan(self) -> PlanDocument:
        """Plan of the experiment, with unchanged models labelled by their axis values."""
        return super().plan.named()

    @cached_property
    def finished(self) -> Mapping[str, RunFolder]:
        """Finished runs of the plan by id, in the plan's order."""
        finished = self.folders()
        return {run: finished[run] for run in self.plan.runs if run in finished}

    def record(self, run: str) -> Record:
        """Return the record of a finished run.

        Records are not cached, since thousands of records take a gigabyte. A metric that was
        measured with other options than the experiment states has an error in place of values.
        """
        record, planned = self.finished[run].record(), self.plan.runs[run]
        if (record.id, record.variant, record.seed) != (run, planned.variant, planned.seed):
            raise ConfigError(f"'{self.root}': damaged, the record of {run} is another run's")
        return replace(record, metrics=self._stated_metrics.read(record.metrics))

    @property
    def statuses(self) -> list[RunStatus]:
        """Status of every planned run."""
        labels = {v.id: v.label for table in reversed(self.plan.tables) for v in table.variants}
        statuses = []
        for run in self.plan.runs.values():
            outcome, reason, note = "pending", "", None
            if finished := self.finished.get(run.id):
                outcome, reason = finished.outcome()
            if outcome not in FINAL and leases.taken(working := self.working(run.id)):
                outcome, reason, note = "running", "", live.read(working)
            label, name = labels[run.variant], self.plan.run_name(run)
            statuses.append(RunStatus(run.id, label, run.seed, outcome, reason, note, name))
        return statuses

    @property
    def experiment_text(self) -> str:
        """Text of the experiment file; without a stored copy, the planned experiment as JSON."""
        try:
            return self.files.read(self.experiment_file).decode("utf-8", "replace")
        except FileNotFoundError:
            return to_json(self.plan.experiment.model_dump(mode="json"))

    def curve(self, run: str) -> list[dict[str, float]]:
        """Return a run's learning curve, one row per point."""
        return self.finished[run].curve() if run in self.finished else []

    def folder(self, run: str) -> Path | None:
        """Return the folder of a finished run on disk; None in a pack or for another run."""
        return self.finished[run].path if run in self.finished and not self.is_packed else None

    def packable(self) -> Iterator[tuple[str, bytes]]:
        """Yield the files that readers need, by path in the results folder, without weights.

        Raises ConfigError for a damaged file.
        """
        # The pack of an earlier plan stores it under the name of the current plan.
        plan = parse(self.files.read(self.plan_file), self.plan_file, self.plan_name)
        yield PLAN, sealed(plan, PLAN)
        yield self.experiment_file.name, self.experiment_text.encode()
        protocol = self.document("protocol")
        if self.files.is_file(protocol):
            yield self.place(protocol), self.files.read(protocol)
        for fingerprint in self.plan.fingerprints:
            if self.tokenizer(fingerprint):  # raises for a damaged file
                file = self.tokenizer_file(fingerprint)
                yield self.place(file), self.files.read(file)
        for run in self.finished.values():
            for name, content in run.files():
                yield self.place(run.path / name), content
        self.metrics_of(self.plan.variant_ids)  # raises for a damaged file
        for _variant, file in self._metric_files(self.plan.variant_ids):
            yield self.place(file), self.files.read(file)

    @cached_property
    def variant_metrics(self) -> dict[str, dict[str, Measurement]]:
        """Per-variant metrics, by the variant's id and the metric's name."""
        metrics = self.metrics_of(self.plan.variant_ids)
        return {variant: self._stated_metrics.read(stored) for variant, stored in metrics.items()}

    @cached_property
    def _stated_metrics(self) -> StatedMetrics:
        return StatedMetrics(self.plan.experiment)


def experiments(folder: Path) -> list[Results]:
    """Return the results of every experiment in a folder, packed ones too, by name."""
    return [Results.open(path) for path in experiments_in(folder)]


def is_experiment(folder: Path) -> bool:
    """Return whether a folder holds the results of one experiment, packed or not."""
    return (folder / PLAN).is_file() or is_pack(folder)


def around(path: Path) -> Store | None:
    """Return the store that contains a path; None outside of results.

    Raises ConfigError for a pack.
    """
    return next((Store.open(folder) for folder in path.parents if is_experiment(folder)), None)


def run_at(folder: Path) -> tuple[Store, str] | None:
    """Return the store and the run id of a run's folder; None for any other folder."""
    if not (folder / "record.json").is_file():
        return None
    path = folder.resolve()
    return Store(path.parent.parent), RunFolder(path).record().id


def remove_empty(root: Path) -> None:
    """Remove the empty folders below a folder, and the folder itself if it is empty."""
    for below, _folders, _files in os.walk(root, topdown=False):
        disk.remove_empty(Path(below))
