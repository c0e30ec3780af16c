"""Facts beside the first table: what is drawn of seeds, and what comes next."""

from pathlib import Path

import pytest

from llama_ablate.findings.compare import pair_differences
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.stages import find_runs
from llama_ablate.report.contents import order_rows
from llama_ablate.report.facts import count_families, list_facts
from llama_ablate.results import Results
from tests.tables import frames, move

PACKS = Path(__file__).parents[2] / "results" / "reference"


@pytest.fixture
def opened():
    return lambda pack: Frames.of(Results.open(PACKS / pack))


def test_strokes_are_of_the_seeds_that_the_interval_is_of(opened):
    """The pack trained twelve seeds, and a look after six decided these rows."""
    table = opened("claims/e15-kv-heads-quality").table
    strokes = pair_differences(table, find_runs(table))
    rows = compare_variants(table).set_index("label").query("not baseline")
    assert {label: len(strokes[label]) for label in rows.index} == rows["n"].to_dict()


@pytest.mark.parametrize(
    ("pack", "said"),
    [
        ("first", "every row is decided here"),
        ("hybrids-state-small", "a new table of 105 seeds would decide wider windows"),
        ("cs336", "with five seeds or more it can be said how many would decide post-norm"),
        ("prose", "1,000 seeds would not decide layernorm"),
    ],
)
def test_the_next_step_follows_from_what_is_undecided(opened, pack, said):
    assert list_facts(opened(pack))["what next"].startswith(said)


def test_families_of_intervals_are_counted(opened):
    """A family each: the rows, each of two controls, and the rows at branches."""
    found = count_families(opened("atlas/tied-higher-rates"))
    assert found == "4 families of intervals at 5% each: rows, controls (2), branches."


def test_variants_without_a_loss_stand_behind_the_others_and_before_the_controls():
    losses = {"base": move(0), "open": ["pending"] * 5, "worse": move(0.2), "better": move(-0.2)}
    made = frames({"": {**losses, "harm": move(0.9)}}, roles={"harm": "positive"})
    rows = order_rows(made.table, compare_variants(made.table))
    assert [*rows["label"]] == ["base", "better", "worse", "open", "harm"]
    assert [*order_rows(made.table, rows.iloc[::-1])["label"]] == [*rows["label"]]
