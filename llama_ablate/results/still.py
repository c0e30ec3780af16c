"""Results as they are at one moment: what a report asks for again and again is read once."""

from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar

from llama_ablate.results.documents import Documents
from llama_ablate.results.plans import PLAN
from llama_ablate.results.record import Record
from llama_ablate.results.run_folder import RunFolder
from llama_ablate.results.runs import Runs
from llama_ablate.results.store import Store

T = TypeVar("T")


class Still(Store):
    """A store that goes on saying what it found first: for reading, not for working on.

    The tables of an experiment share what was read: the plan, the folders and the records of runs.
    """

    def __init__(self, root: Path, table: int = 0, plan: str = PLAN) -> None:
        super().__init__(root, table, plan)
        self.runs = _StillRuns(root, self._unsealed)
        self._documents = _StillDocuments(root, self._unsealed)
        #: What functions made of this table, by function: see `once`.
        self.made: dict[Callable[..., Any], Any] = {}

    @cached_property
    def plan(self) -> dict[str, Any]:
        """What was planned for this table, as plain values."""
        return super().plan

    @cached_property
    def _whole_plan(self) -> dict[str, Any]:
        return super()._whole_plan

    @cached_property
    def tables(self) -> list[Store]:
        """The same results, seen as each of the experiment's tables."""
        found = super().tables
        found[self._table] = self
        shared = ("_whole_plan", "runs", "_documents")
        for table in found:
            table.__dict__ |= {"tables": found, **{name: getattr(self, name) for name in shared}}
        return found


class _StillRuns(Runs):
    """The folders of runs, listed once, and their records, each read once."""

    def folders(self) -> dict[str, Path]:
        """Return the folder of every run that has one, by id: the final one, else the last try."""
        return self._folders

    @cached_property
    def _folders(self) -> dict[str, Path]:
        return super().folders()

    @cached_property
    def _records(self) -> dict[Path, Record]:
        return {}

    @cached_property
    def _opened(self) -> dict[Path, RunFolder]:
        return {}

    def at(self, folder: Path) -> RunFolder:
        """Open a run's folder; what has been read of it is not read again."""
        if folder not in self._opened:
            self._opened[folder] = super().at(folder)
        return self._opened[folder]

    def read(self, folder: Path) -> Record:
        """Return the record of a run's folder. Raises ConfigError where it is damaged."""
        if folder not in self._records:
            self._records[folder] = super().read(folder)
        return self._records[folder]


class _StillDocuments(Documents):
    """The folders of variants, listed once, and their measures, each read once."""

    def variant_measures(self, variant: str) -> dict[str, dict[str, Any]]:
        """Return a variant's own measures, by metric. Raises ConfigError for a damaged one."""
        if variant not in self._measured:
            self._measured[variant] = super().variant_measures(variant)
        return self._measured[variant]

    def of_variants(self) -> dict[str, list[Path]]:
        """Return the folders of what was measured of variants, by variant."""
        return self._of_variants

    @cached_property
    def _measured(self) -> dict[str, dict[str, dict[str, Any]]]:
        return {}

    @cached_property
    def _of_variants(self) -> dict[str, list[Path]]:
        return super().of_variants()


def once(of: Callable[[Store], T]) -> Callable[[Store], T]:
    """Make what a function returns of a store once for each `Still`, and share it.

    What is shared is not to be changed. Of a store that others work on it is made at every call.
    """

    @wraps(of)
    def found(store: Store) -> T:
        if not isinstance(store, Still):
            return of(store)
        if of not in store.made:
            store.made[of] = of(store)
        made: T = store.made[of]
        return made

    return found
