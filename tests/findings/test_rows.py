"""Rows of tables: which of their fields and methods are columns, and in what order these stand."""

import importlib
import math
import pkgutil
from dataclasses import dataclass, replace
from pathlib import Path

from llama_ablate import findings
from llama_ablate.evidence.written import Estimate
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.rows import Row, cell, cells, column, columns, frame, means
from tests import tables

ROOT = Path(__file__).parents[2]
for module in pkgutil.iter_modules(findings.__path__, f"{findings.__name__}."):
    importlib.import_module(module.name)
KINDS = {  # by name, as a class with slots is made twice
    kind.__name__: kind
    for kind in Row.__subclasses__()
    if kind.__module__.startswith(findings.__name__)
}


@dataclass(frozen=True)
class Fruit(Row):
    """A row with a column of each kind."""

    name: str = column("what it is called", "{kind}")
    kind: str = column("what it is")

    @cell("in words", optional=True)
    def in_words(self) -> str:
        """Write a remark."""
        return self.remark

    weight: Estimate = column("grams", "grams", ".1f", default=Estimate())
    price: float | None = column("euros", "euros", ".2f", leading=True, default=None)
    remark: str = column("whatever is to be said", default="")

    @cell("heavy", leading=True, when=lambda row: row.weight.value > 100)
    def is_heavy(self) -> str:
        """Write whether it is heavy."""
        return "yes" if self.weight.value > 100 else "no"


def fruit(name="pear", **more):
    return Fruit(name=name, kind="fruit", **more)


def test_columns_of_data_and_cells_stand_in_the_order_of_declaration_and_leading_ones_first():
    rows = [fruit(price=1.0, remark="ripe"), fruit("plum")]
    ends = ["weight", "weight_low", "weight_high"]
    assert list(frame(rows)) == ["name", "kind", *ends, "price", "remark"]
    assert list(cells(rows)) == ["euros", "fruit", "grams", "in words"]
    assert list(frame([], Fruit)) == ["name", "kind", "weight", "price", "remark"]


def test_what_no_row_has_is_no_column_and_a_conditional_cell_needs_a_row_of_its_condition():
    plain, heavy = [fruit(), fruit("plum", remark="-")], fruit(weight=Estimate(150.0, 140.0, 160.0))
    assert "price" not in frame(plain)
    assert not {"in words", "heavy"} & {*cells(plain)}
    assert cells([fruit(), fruit("plum", remark="sour")])["in words"].tolist() == ["", "sour"]
    assert cells([fruit(), heavy])["heavy"].tolist() == ["no", "yes"]


def test_every_column_of_every_row_has_a_description():
    assert KINDS
    for kind in KINDS.values():
        assert columns(kind)
        assert all(columns(kind).values()), kind


def test_a_named_tuple_has_a_column_for_itself_and_for_each_of_its_ends():
    found = frame([fruit(weight=Estimate(1.0, 0.5, 2.0)), fruit("plum")])
    ends = found[["weight", "weight_low", "weight_high"]].to_numpy().tolist()
    assert ends[0] == [1.0, 0.5, 2.0]
    assert all(map(math.isnan, ends[1]))
    assert cells([fruit(weight=Estimate(1.0, 0.5, 2.0))])["grams"].tolist() == ["1.0 [0.5, 2.0]"]


def test_a_column_whose_default_is_nan_is_the_mean_over_runs_of_the_number_of_its_name():
    made = tables.frames({"": {"base": [1.0, 1.0], "other": ["pending"] * 2}}).table
    runs = [
        replace(run, numbers={**run.numbers, "test_perplexity": of, "peak_memory_bytes": 4 * of})
        for run, of in zip(made.planned[:2], (2.0, 4.0), strict=True)
    ]
    base, other = replace(made, planned=[*runs, *made.planned[2:]]).comparison
    assert {"perplexity", "peak_memory_bytes"} < {*means(ComparisonRow)}
    assert (base.perplexity, base.peak_memory_bytes) == (3.0, 12.0)
    assert math.isnan(other.perplexity)
    assert math.isnan(other.peak_memory_bytes)
