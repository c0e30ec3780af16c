"""A number has one interval and one verdict in all frames, and is written as far as known."""

import math

import numpy as np
import pytest

from llama_ablate.evidence import written
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.factors import describe_steps
from llama_ablate.findings.hypotheses import judge_hypotheses
from tests import tables
from tests.tables import frames

LABELS = ("base", "+a", "+b", "+c")


def path(seed, *, size=0.02, seeds=5, **experiment):
    """A path of three steps whose effects are about as large as their noise."""
    generator = np.random.default_rng(seed)
    shared = generator.normal(2.0, 0.1, seeds)
    losses = {
        label: [float(x) for x in shared + step + 0.01 * generator.normal(size=seeds)]
        for label, step in zip(LABELS, generator.normal(0.0, size, 4).cumsum(), strict=True)
    }
    return frames({"": losses}, variants={"design": "path"}, **experiment)


def leaves_out_0(low, high):
    return (low > 0) | (high < 0)


def printed(cell):
    """The ends of an interval as a cell has them."""
    return [float(end) for end in cell.partition("[")[2].rstrip("] nats").split(", ")]


def test_interval_and_verdict_agree_in_every_row_as_numbers_and_as_written():
    words = set()
    for table in (path(seed).table for seed in range(8)):
        steps = describe_steps(table)
        words |= {*steps["verdict"]}
        for frame, ends in (
            (compare_variants(table)[1:], ("difference", "low", "high")),
            (steps, ("marginal", "marginal_low", "marginal_high")),
        ):
            out = leaves_out_0(frame[ends[1]], frame[ends[2]])
            assert list(out) == list(frame["verdict"].isin(["better", "worse"]))
            cells = [written.interval(*row) for row in frame[[*ends]].to_numpy()]
            assert list(out) == [leaves_out_0(*printed(cell)) for cell in cells]
    assert words == {"better", "worse", "inconclusive"}


@pytest.mark.parametrize("seed", range(2))
def test_a_step_has_one_interval_in_every_table_that_shows_it(seed):
    stated = [
        {"variant": "+a", "direction": "better"},
        {"variant": "+b", "against": "+a", "direction": "better"},
        {"variant": "+b", "against": "+c", "direction": "worse"},
        {"variant": "+c", "against": "+a", "direction": "better"},
    ]
    made = path(seed, hypotheses=stated)
    steps, found = describe_steps(made.table), judge_hypotheses(made)
    # The first step is the difference from the baseline; the sum of steps is the last row's.
    last = compare_variants(made.table)["difference"].iloc[-1]
    assert steps["marginal"].sum() == pytest.approx(last) == steps["cumulative"].iloc[-1]
    row = compare_variants(made.table).iloc[1]
    of, ends = ["difference", "low", "high"], ["marginal", "marginal_low", "marginal_high"]
    assert steps.loc[0, ends].tolist() == row[of].tolist()
    assert found.loc[0, of].tolist() == row[of].tolist()
    assert found.loc[1, of].tolist() == steps.loc[1, ends].tolist()
    other_way = [-steps[end][2] for end in ("marginal", "marginal_high", "marginal_low")]
    assert found.loc[2, of].tolist() == other_way
    family = ["3 rows of its table", *["3 steps of its path"] * 2, "itself alone"]
    assert found["family"].tolist() == family
    for result, verdict in zip(found["result"][:2], steps["verdict"], strict=False):
        words = {"better": "supported", "worse": "refuted", "inconclusive": "undecided"}
        assert result == words[verdict]


#: Differences and their noise, with a hypothesis, its result, and the remark beside it.
#: Half the width of the interval is 0.012 at a noise of 1.
REMARKS = [
    (-0.04, 1.0, {"direction": "better", "margin": "0.035 nats"}, "undecided", "better, but"),
    (0.05, 1.0, {"direction": "equivalent", "margin": "0.05 nats"}, "undecided", "worse, but"),
    (0.0, 1.0, {"direction": "better"}, "undecided", "equivalent within 0.02 nats"),
    (-0.005, 0.1, {"direction": "better"}, "supported", "by less than the margin of 0.02"),
    (-0.04, 1.0, {"direction": "better"}, "supported", ""),
]


@pytest.mark.parametrize(("by", "noise", "stated", "result", "remark"), REMARKS)
def test_where_a_result_and_a_rows_verdict_differ_a_remark_says_how_they_go_together(
    by, noise, stated, result, remark
):
    losses = {"base": [2.0, 2.2, 2.1, 2.3, 2.15], "a": tables.move(by, noise)}
    made = frames({"": losses}, margin="0.02 nats", hypotheses=[{"variant": "a", **stated}])
    (found,) = judge_hypotheses(made).itertuples()
    assert found.result == result
    assert found.remark.startswith(remark)
    assert bool(found.remark) == bool(remark)


@pytest.mark.parametrize("end", ["pending", "error"])
def test_a_hypothesis_and_a_step_without_runs_are_pending_or_failed(end):
    base = [2.0, 2.2, 2.1]
    lost = {"base": base, "+a": [2.0, 2.1, 2.2], "+b": [end] * 3, "+c": [2.1, 2.0, 2.2]}
    stated = [
        {"variant": "+b", "direction": "better"},
        {"variant": "+b", "against": "+a", "direction": "better"},
        {"variant": "+a", "against": "+c", "direction": "better"},
    ]
    made = frames({"": lost}, variants={"design": "path"}, hypotheses=stated)
    word = {"error": "failed"}.get(end, end)
    assert compare_variants(made.table)["verdict"].tolist()[2] == word
    assert judge_hypotheses(made)["result"].tolist() == [word, word, "undecided"]
    # Without the second variant there are neither the second nor the third step.
    assert describe_steps(made.table)["verdict"].tolist() == ["inconclusive", word, word]


@pytest.mark.parametrize("seed", range(5))
def test_an_interval_is_written_with_two_digits_of_its_half_width_and_on_its_side_of_0(seed):
    generator = np.random.default_rng(seed)
    for _ in range(200):
        half = 10 ** generator.uniform(-4, 1)
        mean = half * generator.normal(0, 2)
        low, high = mean - half, mean + half
        places = written.decimals(low, high)
        shown = printed(written.interval(mean, low, high))
        assert leaves_out_0(*shown) == leaves_out_0(low, high)
        unit = 10.0**-places
        assert shown == pytest.approx([low, high], abs=unit / 2 * 1.001)
        wanted = max(0, 1 - math.floor(math.log10(half)))
        assert places == wanted or 0 in (round(low, wanted), round(high, wanted))
    assert written.interval(-0.00001, -0.01, 0.01) == "+0.000 [-0.010, +0.010]"  # no minus zero
    assert written.interval(0.1234, math.nan, math.nan) == "+0.123"
