"""Rows by length of training, and what half of the length says of a verdict."""

from pathlib import Path

import pandas as pd
import pytest

from llama_ablate.findings.compare import find_losses
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.sizes import (
    compare_half,
    compare_lengths,
    find_contrary,
    view_lengths,
)
from llama_ablate.findings.stages import find_differences, find_reported
from llama_ablate.results import Results
from tests.evidence.rows import rows_of
from tests.tables import sentences_of

CLAIMS = Path(__file__).parents[2] / "results/reference/claims"


@pytest.fixture(scope="module")
def opened():
    return {
        name[:3]: Frames.of(Results.open(CLAIMS / name))
        for name in ("e16-leave-one-out-stack", "e07-ffn-activation", "e18-isotime-pareto")
    }


def long(**words):
    """Rows by length: of each name the verdicts at a tenth, a half and the whole."""
    return pd.DataFrame(
        {"name": name, "tokens": tokens, "end": tokens == 100, "verdict": word}
        for name, own in words.items()
        for tokens, word in zip((10, 50, 100), own, strict=True)
    )


def test_half_the_length_says_the_same_or_turned_or_what_it_was_or_nothing():
    rows = long(
        same=("worse", "better", "better"),
        turned=("better", "better", "worse"),
        new=("inconclusive", "inconclusive", "worse"),
        gone=("better", "better", "equivalent"),
    )
    half = {"same": "same", "turned": "turned", "new": "undecided", "gone": "was better"}
    assert compare_half(rows) == half
    assert find_contrary(rows) == {"same": 10, "turned": 50}


def test_rope_of_e16_falls_from_better_to_worse_and_a_warning_says_so(opened):
    frames = opened["e16"]
    frame = compare_lengths(frames.table)
    rope = frame[frame["name"] == "rope instead of sinusoidal"]
    assert rope["difference"].round(3).tolist() == [-0.329, -0.155, -0.027, 0.046]
    told = "Reverses with the length of training: rope instead of sinusoidal (up to 3M"
    assert any(line.startswith(told) for line in sentences_of(frames))
    assert compare_half(frame)["rope instead of sinusoidal"] == "was equivalent"
    assert {*find_contrary(frame)} == {"rope instead of sinusoidal"}


def test_intervals_of_branches_hold_at_once_over_rows_and_lengths_and_have_the_texts_error(opened):
    """e07 has nine arms in seven rows, at three branches: by hand for one of them."""
    table = opened["e07"].table
    frame, views = compare_lengths(table), view_lengths(table)
    assert len(views) == 3
    tokens, view = next(iter(views.items()))
    labels = [v.label for v in table.plan.variants if not v.baseline and not v.role]
    losses, at_end = find_losses(view), find_differences(table)
    ids = {v.label: v.id for v in table.plan.variants}
    base = losses[table.base]
    differences = [
        [loss - base[seed] for seed, loss in losses[ids[label]].items() if seed in base]
        for label in labels
    ]
    # The text is that of the end of the run, and with it the error.
    errors = [tuple(at_end.loc[ids[of], ["text_se", "text_df"]]) for of in labels]
    by_hand = rows_of(differences, errors, family=len(labels) * 3)
    without = rows_of(differences, family=len(labels) * 3)
    rows = frame[frame["tokens"].eq(tokens)].set_index("name")
    for label, row, narrow in zip(labels, by_hand, without, strict=True):
        assert rows.loc[label, ["low", "high"]].tolist() == pytest.approx([row["low"], row["high"]])
        assert row["low"] <= narrow["low"]
    assert max(row["text_se"] for row in by_hand) > 0.01
    stored = find_reported(table).query("baseline and seed == 0").iloc[0]
    assert base[0] == pytest.approx(stored[f"test_loss_at_{tokens}_tokens_nats"])


def test_runs_of_unlike_length_are_compared_at_the_same_share_of_it(opened):
    for table in opened["e18"].tables:
        rows = compare_lengths(table)
        assert rows["difference"].notna().all()
        assert len(rows) == 4
        assert compare_half(rows) == {"llama": "turned"}
