"""A read-only snapshot of an experiment's results: every file is read once."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from llama_ablate.config.experiment import Hypothesis
from llama_ablate.results.metrics import Measurement
from llama_ablate.results.plan import PlanDocument
from llama_ablate.results.record import Record
from llama_ablate.results.store import Store


class Results:
    """What reports read. Tables of an experiment share runs, so there is one set of records."""

    def __init__(self, store: Store) -> None:
        """Take a snapshot of a store; nothing is read before it is asked for."""
        self._store = store
        self.root = store.root
        #: The folder that a report of these results is written to.
        self.report = store.report

    @classmethod
    def open(cls, path: Path | str) -> "Results":
        """Open existing results: a folder, or in it an earlier plan.

        Raises ConfigError where there are none.
        """
        return cls(Store.open(path))

    @cached_property
    def plan(self) -> PlanDocument:
        """What was planned."""
        return self._store.plan

    @cached_property
    def records(self) -> Mapping[str, Record]:
        """The records of the planned runs that finished, by id, in the plan's order."""
        folders = self._store.runs.folders()
        return {
            run: self._store.runs.read(folders[run]) for run in self.plan.runs if run in folders
        }

    @cached_property
    def stated(self) -> list[Hypothesis]:
        """The hypotheses as they stood before the first run had finished."""
        return self._store.stated

    @property
    def experiment_text(self) -> str:
        """The experiment file as the user wrote it."""
        return self._store.experiment_text

    def curve(self, run: str) -> list[dict[str, float]]:
        """Return a run's learning curve, one row a point."""
        return self._store.runs.curve(run)

    def folder(self, run: str) -> Path | None:
        """Return where a run's files are; None where it has none of its own."""
        return self._store.runs.folder(run)

    def variant_metrics(self, variant: str) -> dict[str, Measurement]:
        """Return a variant's own metrics by name."""
        return self._store.variant_metrics(variant)
