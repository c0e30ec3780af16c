"""Read-only snapshot of an experiment's results, from a folder or a pack.

Every reader of results uses this module. Files are read on demand. Small documents are cached;
records and curves are read again each time.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import parse, sealed, to_json
from llama_ablate.results.folder import Folder, open_folder
from llama_ablate.results.layout import PLAN, experiments_in, is_pack
from llama_ablate.results.live import Live
from llama_ablate.results.plan_document import PlanDocument
from llama_ablate.results.protocol import StatedMetrics, Version
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


class Results:
    """Results of an experiment for reports; its tables share one set of records."""

    def __init__(self, source: Folder, known: Mapping[str, RunFolder] | None = None) -> None:
        self._source, self._known = source, known or {}
        self.root, self.is_packed = source.root, source.is_packed
        #: Folder of the report on these results.
        self.report = source.report
        #: Folder of the trackers' files.
        self.track = source.track
        self.plan_name = source.plan_name

    @classmethod
    def open(cls, path: Path | str) -> "Results":
        """Open existing results: a folder, an earlier plan's file in a folder, or a pack.

        Raises ConfigError for a path without results.
        """
        return cls(open_folder(Path(path)))

    def reopen(self) -> "Results":
        """Return a new snapshot of the same results.

        Finished runs that this snapshot has read are reused, unless a new attempt replaced them.
        """
        return Results(self._source, vars(self).get("finished", self._known))

    def only(self, runs: Collection[str]) -> "Results":
        """Return a snapshot restricted to some of the planned runs."""
        some = Results(self._source, self._known)
        some.plan = self.plan.only(runs)
        return some

    @cached_property
    def plan(self) -> PlanDocument:
        """Plan of the experiment, with unchanged models labelled by their axis values."""
        return self._source.plan.named()

    @cached_property
    def finished(self) -> Mapping[str, RunFolder]:
        """Finished runs of the plan by id, in the plan's order."""
        finished = self._source.finished()
        for run, stored in self._known.items():
            if run in finished and finished[run].path == stored.path:
                finished[run] = stored
        return {run: finished[run] for run in self.plan.runs if run in finished}

    def record(self, id_: str) -> Record:
        """Return the record of a finished run.

        Records are not cached, since thousands of records take a gigabyte. A metric that was
        measured with other options than the experiment states has an error in place of values.
        """
        record, planned = self.finished[id_].record(), self.plan.runs[id_]
        if (record.id, record.variant, record.seed) != (id_, planned.variant, planned.seed):
            raise ConfigError(f"'{self.root}': damaged, the record of {id_} is another run's")
        return replace(record, metrics=self._stated_metrics.read(record.metrics))

    @property
    def statuses(self) -> list[RunStatus]:
        """Status of every planned run, read without the run's metrics."""
        labels = {v.id: v.label for table in reversed(self.plan.tables) for v in table.variants}
        statuses = []
        for run in self.plan.runs.values():
            outcome, reason, live = "pending", "", None
            if finished := self.finished.get(run.id):
                outcome, reason = finished.outcome()
            if outcome not in FINAL and self._source.is_leased(run.id):
                outcome, reason, live = "running", "", self.live.get(run.id)
            label, name = labels[run.variant], self.plan.run_name(run)
            statuses.append(RunStatus(run.id, label, run.seed, outcome, reason, live, name))
        return statuses

    @cached_property
    def live(self) -> Mapping[str, Live]:
        """Live notes of the planned runs by id, as written by their workers.

        A run whose worker was killed may have a note too; `statuses` shows which runs are running.
        """
        return self._source.live(self.plan.runs)

    @cached_property
    def protocol(self) -> list[Version]:
        """Protocol of the experiment: its file before the first finished run, and later changes."""
        return self._source.protocol

    @property
    def experiment_text(self) -> str:
        """Text of the experiment file; without a stored copy, the planned experiment as JSON."""
        source = self._source
        try:
            return source.files.read(source.experiment_file).decode("utf-8", "replace")
        except FileNotFoundError:
            return to_json(self.plan.experiment.model_dump(mode="json"))

    def curve(self, run: str) -> list[dict[str, float]]:
        """Return a run's learning curve, one row per point."""
        return self.finished[run].curve() if run in self.finished else []

    def refuse_links(self) -> None:
        """Raise ConfigError for a symbolic link in the results, which writes would follow."""
        self._source.refuse_links()

    def lock_report(self) -> AbstractContextManager[object]:
        """Lock the report, in a context manager, for one writing process at a time.

        Raises ConfigError for a symbolic link in the results, since writes would follow the link.
        """
        return self._source.lock_report()

    def folder(self, run: str) -> Path | None:
        """Return the folder of a finished run on disk; None in a pack or for another run."""
        return self.finished[run].path if run in self.finished and not self.is_packed else None

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the files that readers need, by path in the results folder, without weights.

        Raises ConfigError for a damaged file.
        """
        source = self._source
        # The pack of an earlier plan stores it under the name of the current plan.
        plan = parse(source.files.read(source.plan_file), source.plan_file, source.plan_name)
        yield PLAN, sealed(plan, PLAN)
        yield source.experiment_file.name, self.experiment_text.encode()
        protocol = source.document("protocol")
        if source.files.is_file(protocol):
            yield source.place(protocol), source.files.read(protocol)
        for run in self.finished.values():
            for name, content in run.files():
                yield source.place(run.path / name), content
        yield from source.files_of_variants(self.plan.variant_ids)

    def variant_metrics(self, variant: str) -> dict[str, Measurement]:
        """Return the per-variant metrics of a variant by name."""
        return self._variant_metrics.get(variant, {})

    @cached_property
    def _variant_metrics(self) -> dict[str, dict[str, Measurement]]:
        metrics = self._source.metrics_of(self.plan.variant_ids)
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
