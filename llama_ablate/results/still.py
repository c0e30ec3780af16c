"""Format 2's plan for report/, until it reads Results."""

from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar

from llama_ablate.results.documents import Documents
from llama_ablate.results.metrics import Measurement
from llama_ablate.results.plan import PlanDocument
from llama_ablate.results.plans import PLAN
from llama_ablate.results.record import Record
from llama_ablate.results.run_folder import RunFolder
from llama_ablate.results.runs import Runs
from llama_ablate.results.store import Store

T = TypeVar("T")


def legacy(plan: PlanDocument) -> dict[str, Any]:
    """Return the plan as format 2 had it."""
    values = plan.model_dump(mode="json")
    tables = []
    for table in values.pop("tables"):
        text = table.pop("text")
        text["recipe"] = text.pop("source")
        tables.append({**table, "table": table.pop("name"), "data": text})
    first, *others = tables
    return {**values, "question": values["experiment"]["question"], **first, "others": others}


class Still(Store):
    """A store as report/ reads it."""

    def __init__(self, root: Path, table: int = 0, plan: str = PLAN) -> None:
        super().__init__(root, plan)
        self._table = table
        self.runs = _StillRuns(root, lambda: False)
        self._documents = _StillDocuments(root, lambda: False)
        self.made: dict[Callable[..., Any], Any] = {}

    @cached_property
    def plan(self) -> Any:
        found = self._whole_plan
        return found if self._table == 0 else {**found, **found["others"][self._table - 1]}

    @cached_property
    def _whole_plan(self) -> dict[str, Any]:
        return legacy(Store(self.root, self.plan_file.name).plan)

    def records(self) -> list[Record]:
        folders = self.runs.folders()
        planned = [run["id"] for run in self.plan["runs"]]
        return [self.runs.read(folders[run]) for run in planned if run in folders]

    @property
    def stated(self) -> Any:
        return [hypothesis.model_dump(mode="json") for hypothesis in super().stated]

    @property
    def compute(self) -> Any:
        return self.plan["compute"]

    @cached_property
    def tables(self) -> list[Any]:
        count = 1 + len(self._whole_plan["others"])
        found: list[Any] = [type(self)(self.root, n, self.plan_file.name) for n in range(count)]
        found[self._table] = self
        shared = ("_whole_plan", "runs", "_documents")
        for table in found:
            table.__dict__ |= {"tables": found, **{name: getattr(self, name) for name in shared}}
        return found


class _StillRuns(Runs):
    def folders(self) -> dict[str, Path]:
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
        if folder not in self._opened:
            self._opened[folder] = super().at(folder)
        return self._opened[folder]

    def read(self, folder: Path) -> Record:
        if folder not in self._records:
            self._records[folder] = super().read(folder)
        return self._records[folder]


class _StillDocuments(Documents):
    def variant_metrics(self, variant: str) -> dict[str, Measurement]:
        if variant not in self._measured:
            self._measured[variant] = super().variant_metrics(variant)
        return self._measured[variant]

    def of_variants(self) -> dict[str, list[Path]]:
        return self._of_variants

    @cached_property
    def _measured(self) -> dict[str, dict[str, Measurement]]:
        return {}

    @cached_property
    def _of_variants(self) -> dict[str, list[Path]]:
        return super().of_variants()


def once(of: Callable[..., T]) -> Callable[..., T]:
    @wraps(of)
    def found(store: Any) -> T:
        if not isinstance(store, Still):
            return of(store)
        if of not in store.made:
            store.made[of] = of(store)
        made: T = store.made[of]
        return made

    return found
