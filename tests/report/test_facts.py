"""Facts beside the first table: what is drawn of seeds, and what comes next."""

from pathlib import Path

import pytest

from llama_ablate.findings.frames import Frames
from llama_ablate.report.facts import list_facts
from llama_ablate.results import Results

PACKS = Path(__file__).parents[2] / "results" / "reference"


@pytest.fixture
def opened():
    return lambda pack: Frames.of(Results.open(PACKS / pack))


def test_strokes_are_of_the_seeds_that_the_interval_is_of(opened):
    """The pack trained twelve seeds, and a look after six decided these rows."""
    table = opened("claims/e15-kv-heads-quality").table
    strokes = table.differences()
    rows = [row for row in table.comparison if not row.baseline]
    assert {row.label: len(strokes[row.label]) for row in rows} == {r.label: r.n for r in rows}


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
