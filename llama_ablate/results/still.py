"""Results as they are at one moment: what a report asks for again and again is read once."""

from functools import cached_property
from typing import Any

from llama_ablate.results.record import Record
from llama_ablate.results.store import Store


class Still(Store):
    """A store that goes on saying what it found first: for reading, not for working on."""

    @cached_property
    def plan(self) -> dict[str, Any]:
        """What was planned for this table, as plain values."""
        return super().plan

    @cached_property
    def tables(self) -> list[Store]:
        """The same results, seen as each of the experiment's tables."""
        found = super().tables
        found[self._table] = self
        for table in found:
            table.__dict__["tables"] = found
        return found

    def records(self) -> list[Record]:
        """Return the records of the planned runs, in the plan's order, as far as they finished."""
        return self._records

    @cached_property
    def _records(self) -> list[Record]:
        return super().records()

    def variant_measures(self, variant: str) -> dict[str, dict[str, Any]]:
        """Return a variant's own measures, by metric."""
        if variant not in self._measures:
            self._measures[variant] = super().variant_measures(variant)
        return self._measures[variant]

    @cached_property
    def _measures(self) -> dict[str, dict[str, dict[str, Any]]]:
        return {}
