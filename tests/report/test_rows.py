"""Rows of tables: which of their fields and methods are columns, and in what order these stand."""

import importlib
import math
import pkgutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from llama_ablate import findings
from llama_ablate.evidence.written import Estimate
from llama_ablate.findings import comparison
from llama_ablate.findings.rows import (
    ComparisonRow,
    Row,
    cell,
    cells,
    column,
    columns,
    frame,
    means,
)

ROOT = Path(__file__).parents[2]
for module in pkgutil.iter_modules(findings.__path__, f"{findings.__name__}."):
    importlib.import_module(module.name)
KINDS = [kind for kind in Row.__subclasses__() if kind.__module__.startswith(findings.__name__)]


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


def test_columns_of_data_and_cells_stand_in_the_order_of_declaration():
    rows = [fruit(price=1.0, remark="ripe"), fruit("plum")]
    ends = ["weight", "weight_low", "weight_high"]
    assert list(frame(rows)) == ["name", "kind", *ends, "price", "remark"]
    assert [head for head in cells(rows) if head != "euros"] == ["fruit", "in words", "grams"]


def test_leading_columns_stand_first():
    rows = [fruit(price=1.0, weight=Estimate(150.0, 140.0, 160.0)), fruit("plum")]
    assert list(cells(rows)) == ["euros", "heavy", "fruit", "grams"]


def test_a_column_that_is_none_in_all_rows_is_left_out_of_the_frame():
    assert "price" not in frame([fruit(), fruit("plum")])
    assert frame([fruit(), fruit("plum", price=2.0)])["price"].tolist()[1] == 2.0


def test_an_optional_cell_is_left_out_where_no_row_has_anything_to_show():
    assert "in words" not in cells([fruit(), fruit("plum", remark="-")])
    assert cells([fruit(), fruit("plum", remark="sour")])["in words"].tolist() == ["", "sour"]


def test_a_conditional_cell_is_left_out_unless_its_condition_holds_of_a_row():
    heavy = fruit(weight=Estimate(150.0, 140.0, 160.0))
    assert "heavy" not in cells([fruit(), fruit("plum")])
    assert cells([fruit(), heavy])["heavy"].tolist() == ["no", "yes"]


def test_a_named_tuple_has_a_column_for_itself_and_for_each_of_its_ends():
    found = frame([fruit(weight=Estimate(1.0, 0.5, 2.0)), fruit("plum")])
    ends = found[["weight", "weight_low", "weight_high"]].to_numpy().tolist()
    assert ends[0] == [1.0, 0.5, 2.0]
    assert all(map(math.isnan, ends[1]))
    assert cells([fruit(weight=Estimate(1.0, 0.5, 2.0))])["grams"].tolist() == ["1.0 [0.5, 2.0]"]


def test_no_rows_are_an_empty_frame_with_the_columns_of_their_kind():
    assert list(frame([], Fruit)) == ["name", "kind", "weight", "price", "remark"]
    assert frame([], Fruit).empty


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_column_of_every_row_has_a_description(kind):
    assert all(columns(kind).values())
    assert columns(kind)


def test_a_column_whose_default_is_nan_is_the_mean_over_runs_of_the_number_of_its_name():
    runs = pd.DataFrame({"test_perplexity": [2.0, 4.0], "peak_memory_bytes": [8.0, 10.0]})
    assert {"perplexity", "peak_memory_bytes"} < {*means(ComparisonRow)}
    assert comparison._means(runs, "test") == {"perplexity": 3.0, "peak_memory_bytes": 9.0}
    assert comparison._means(runs[:0], "test") == {}


@pytest.mark.full  # mypy reads pandas too
def test_a_misspelt_field_of_a_row_fails_mypy(tmp_path):
    program = (
        "from llama_ablate.findings.controls import ControlRow\n"
        "print(ControlRow(control='', result='', why='').whi)\n"
        "print(ControlRow(control='', resul='', why=''))\n"
    )
    alone = ["--config-file=", "--follow-imports=silent", "--cache-dir", str(tmp_path)]
    check = [sys.executable, "-m", "mypy", *alone, "-c", program]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    read, made = (line for line in done.stdout.splitlines() if ": error: " in line)
    assert '"ControlRow" has no attribute "whi"' in read
    assert 'Unexpected keyword argument "resul" for "ControlRow"' in made
