"""Format 2's plan for report/, until it reads Results."""

from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, TypeVar

from llama_ablate.results.layout import PLAN
from llama_ablate.results.metrics import Measurement
from llama_ablate.results.pack import Pack
from llama_ablate.results.plan import PlanDocument
from llama_ablate.results.record import Record
from llama_ablate.results.snapshot import Results
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
    """Results as report/ reads them."""

    def __init__(
        self, root: Path, table: int = 0, plan: str = PLAN, results: Results | None = None
    ) -> None:
        super().__init__(root, plan)
        self._table = table
        source = Pack(root) if Pack.is_at(root) else Store(root, plan)
        self.results = results or Results(source)
        self.runs: Any = _Runs(self.results)
        self.made: dict[Callable[..., Any], Any] = {}

    @cached_property
    def plan(self) -> Any:
        """The plan of a table in the layout of format 2."""
        found = self._whole_plan
        return found if self._table == 0 else {**found, **found["others"][self._table - 1]}

    @cached_property
    def _whole_plan(self) -> dict[str, Any]:
        return legacy(self.results.plan)

    def records(self) -> list[Record]:
        """Return the records of the table's runs."""
        records = self.results.records
        return [records[run["id"]] for run in self.plan["runs"] if run["id"] in records]

    def record(self, run: str) -> Record | None:
        """Return a record."""
        return self.results.records.get(run)

    @property
    def stated(self) -> Any:
        """The hypotheses."""
        return [hypothesis.model_dump(mode="json") for hypothesis in self.results.stated]

    @property
    def experiment_text(self) -> str:
        """The text."""
        return self.results.experiment_text

    def variant_metrics(self, variant: str) -> dict[str, Measurement]:
        """Return the metrics."""
        return self.results.variant_metrics(variant)

    @property
    def compute(self) -> Any:
        """The compute."""
        return self.plan["compute"]

    @cached_property
    def tables(self) -> list[Any]:
        """The tables."""
        count = 1 + len(self._whole_plan["others"])
        name = self.plan_file.name
        found: list[Any] = [type(self)(self.root, n, name, self.results) for n in range(count)]
        found[self._table] = self
        for table in found:
            table.__dict__ |= {"tables": found, "_whole_plan": self._whole_plan}
        return found


class _Runs:
    def __init__(self, results: Results) -> None:
        self._results = results
        self.curve, self.folder = results.curve, results.folder


def once(of: Callable[..., T]) -> Callable[..., T]:
    """Cache."""

    @wraps(of)
    def found(store: Any) -> T:
        if not isinstance(store, Still):
            return of(store)
        if of not in store.made:
            store.made[of] = of(store)
        made: T = store.made[of]
        return made

    return found
