"""Rows by length of training, and what half of the length says of a verdict."""

import math
from pathlib import Path

import pytest

import llama_ablate as la
from llama_ablate.evidence import simultaneous
from llama_ablate.findings.rows import frame as framed
from llama_ablate.findings.sizes import LengthRow, at_half, by_length, contrary
from llama_ablate.report.sections import sections
from tests.tables import sentences_of

CLAIMS = Path(__file__).parents[2] / "results/reference/claims"


@pytest.fixture(scope="module")
def opened():
    return {
        name[:3]: la.open(CLAIMS / name)
        for name in ("e16-leave-one-out-stack", "e07-ffn-activation", "e18-isotime-pareto")
    }


def long(**words):
    """Rows by length: of each name the verdicts at a tenth, a half and the whole."""
    nothing = dict.fromkeys(("difference", "low", "high"), math.nan)
    return [
        LengthRow(name=name, tokens=tokens, end=tokens == 100, verdict=word, **nothing)
        for name, own in words.items()
        for tokens, word in zip((10, 50, 100), own, strict=True)
    ]


def test_half_the_length_says_the_same_or_turned_or_what_it_was_or_nothing():
    rows = long(
        same=("worse", "better", "better"),
        turned=("better", "better", "worse"),
        new=("inconclusive", "inconclusive", "worse"),
        gone=("better", "better", "equivalent"),
    )
    half = {"same": "same", "turned": "turned", "new": "undecided", "gone": "was better"}
    assert at_half(rows) == half
    assert contrary(rows) == {"same": 10, "turned": 50}


def test_rope_of_e16_falls_from_better_to_worse_and_the_page_says_so_in_its_answer(opened):
    frames = opened["e16"].frames
    frame = framed(by_length(frames.table))
    rope = frame[frame["name"] == "rope instead of sinusoidal"]
    assert rope["difference"].round(3).tolist() == [-0.329, -0.155, -0.027, 0.046]
    told = "Reverses with the length of training: rope instead of sinusoidal (up to 3M"
    assert any(line.startswith(told) for line in sentences_of(frames))
    (section,) = [s for s in sections(frames) if s.key == "lengths"]
    assert section.cells["at half the length"].iloc[0] == "was equivalent"
    assert section.cells["with length"].iloc[0] == "reverses"
    assert set(section.cells["with length"].iloc[1:]) <= {"", "reverses"}


def test_intervals_of_branches_hold_at_once_over_rows_and_lengths(opened):
    """e07 has nine arms in seven rows, at three branches: by hand for one of them."""
    table = opened["e07"].frames.table
    frame = framed(by_length(table))
    views = table.lengths
    assert len(views) == 3
    tokens, view = next(iter(views.items()))
    row = frame[(frame["name"] == "linear") & (frame["tokens"] == tokens)].iloc[0]
    ids = {v.label: v.id for v in table.plan.variants}
    ranked = [v.label for v in table.plan.variants if not v.baseline and not v.role]
    losses = view.losses
    base = losses[table.plan.baseline.id]
    differences = {
        label: [loss - base[seed] for seed, loss in losses[ids[label]].items() if seed in base]
        for label in ranked
    }
    by_hand = simultaneous(differences, family=len(ranked) * 3)["linear"]
    assert (row["low"], row["high"]) == pytest.approx((by_hand.low, by_hand.high))
    (stored,) = (run for run in table.reported if run.baseline and run.seed == 0)
    at_branch = stored.number(table.branches()[tokens])
    assert base[0] == pytest.approx(at_branch)


def test_runs_of_unlike_length_are_compared_at_the_same_share_of_it(opened):
    for table in opened["e18"].frames.tables:
        rows = by_length(table)
        assert not any(math.isnan(row.difference) for row in rows)
        assert len(rows) == 4
        assert at_half(rows) == {"llama": "turned"}


def test_without_branches_there_are_no_lengths():
    frames = la.open(CLAIMS.parent / "first").frames
    assert by_length(frames.table) == []
    assert contrary(by_length(frames.table)) == {}
