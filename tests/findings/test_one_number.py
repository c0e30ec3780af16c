"""One number has one interval, one p and one verdict on a page, and is written as far as known."""

import math

import numpy as np
import pytest
from llama_ablate.findings.rows import DIFFERENCE, cells
from llama_ablate.findings.rows import frame as framed

from llama_ablate.evidence import written
from llama_ablate.findings import effects, hypotheses
from llama_ablate.report.figures import make
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


def test_p_interval_and_verdict_agree_in_every_row_as_numbers_and_as_printed():
    words = set()
    for made in (path(seed).table for seed in range(8)):
        rows, step_rows = made.comparison, effects.steps(made)
        steps, told = framed(step_rows), cells(step_rows)
        words |= {*steps["verdict"]}
        for frame, ends, shown, head, p in (
            (framed(rows)[1:], ("low", "high"), cells(rows)[1:], DIFFERENCE, "p, corrected"),
            (steps, ("marginal_low", "marginal_high"), told, "this step [95%]", told.columns[-1]),
        ):
            out = leaves_out_0(*(frame[end] for end in ends))
            assert list(out) == list(frame["p_corrected"] < 0.05)
            assert list(out) == list(frame["verdict"].isin(["better", "worse"]))
            assert list(out) == [leaves_out_0(*printed(cell)) for cell in shown[head]]
            assert list(out) == [float(cell.removeprefix("<")) < 0.05 for cell in shown[p]]
    assert words == {"better", "worse", "inconclusive"}


def test_the_figure_of_a_paths_steps_draws_the_intervals_that_their_table_has():
    made = path(1)
    steps = framed(effects.steps(made.table))
    (figure,) = make("steps", made)
    axes = figure.figure.axes[0]
    drawn = [line.get_xdata() for line in axes.lines if line.get_linewidth() == 1.8]
    ends = steps[["marginal_low", "marginal_high"]].to_numpy()
    assert [list(line) for line in drawn] == ends.tolist()
    assert [*make("steps", frames({"": {"base": [2.0, 2.1], "+a": [2.1, 2.2]}}))] == []


@pytest.mark.parametrize("seed", range(2))
def test_a_step_has_one_interval_in_every_table_that_shows_it(seed):
    stated = [
        {"variant": "+a", "direction": "better"},
        {"variant": "+b", "against": "+a", "direction": "better"},
        {"variant": "+b", "against": "+c", "direction": "worse"},
        {"variant": "+c", "against": "+a", "direction": "better"},
    ]
    made = path(seed, hypotheses=stated)
    steps, found = framed(effects.steps(made.table)), framed(hypotheses.results(made))
    row = framed(made.table.comparison).iloc[1]
    ends = ["marginal", "marginal_low", "marginal_high", "p_corrected"]
    first = row[["difference", "low", "high", "p_corrected"]]
    assert steps.loc[0, ends].tolist() == first.tolist()
    of = ["difference", "low", "high", "p_corrected"]
    assert found.loc[0, of].tolist() == first.tolist()
    assert found.loc[1, of].tolist() == steps.loc[1, ends].tolist()
    other_way = [-steps[end][2] for end in ("marginal", "marginal_high", "marginal_low")]
    assert found.loc[2, of[:3]].tolist() == other_way
    family = ["3 rows of its table", *["3 steps of its path"] * 2, "itself alone"]
    assert found["family"].tolist() == family
    for result, verdict in zip(found["result"][:2], steps["verdict"], strict=False):
        words = {"better": "supported", "worse": "refuted", "inconclusive": "undecided"}
        assert result == words[verdict]


@pytest.mark.parametrize(
    ("by", "noise", "stated", "result", "remark"),
    [
        # Half the width of the interval is 0.012 at a noise of 1.
        (-0.04, 1.0, {"direction": "better", "margin": "0.035 nats"}, "undecided", "better, but"),
        (0.05, 1.0, {"direction": "equivalent", "margin": "0.05 nats"}, "undecided", "worse, but"),
        (0.0, 1.0, {"direction": "better"}, "undecided", "equivalent within 0.02 nats"),
        (-0.005, 0.1, {"direction": "better"}, "supported", "by less than the margin of 0.02"),
        (-0.04, 1.0, {"direction": "better"}, "supported", ""),
    ],
)
def test_where_a_result_and_a_rows_verdict_differ_a_remark_says_how_they_go_together(
    by, noise, stated, result, remark
):
    base = [2.0, 2.2, 2.1, 2.3, 2.15]
    drawn = [0.01, -0.01, 0.005, -0.005, 0.0]
    losses = [loss + by + noise * own for loss, own in zip(base, drawn, strict=True)]
    made = frames(
        {"": {"base": base, "a": losses}},
        margin="0.02 nats",
        hypotheses=[{"variant": "a", **stated}],
    )
    (found,) = framed(hypotheses.results(made)).itertuples()
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
    assert framed(made.table.comparison)["verdict"].tolist()[2] == word
    assert framed(hypotheses.results(made))["result"].tolist() == [word, word, "undecided"]
    # Without the second variant there are neither the second nor the third step.
    assert framed(effects.steps(made.table))["verdict"].tolist() == ["inconclusive", word, word]


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
    assert written.estimate(-1.26, -3.0, 0.5) == "-1.3"


def test_a_p_is_never_rounded_across_the_level():
    assert written.p_value(0.04996) == "0.04996"
    assert written.p_value(0.0501) == "0.05"
    assert written.p_value(0.0314159) == "0.031"
    assert written.p_value(0.5) == "0.50"
    assert written.p_value(1e-9) == "< 0.0001"
    assert written.p_value(math.nan) == ""


def test_how_runs_ended_stands_beside_those_alone_that_did_not_all_end_ok():
    made = frames({"": {"base": [2.0, 2.1, 2.2], "a": [2.0, "diverged", 2.1]}})
    shown = cells(made.table.comparison)
    assert shown["runs"].tolist() == ["", "2 ok, 1 diverged: 33% [1%, 91%], p 1.00"]
    assert shown["n"].tolist() == ["3", "2"]
    assert shown["verdict"].tolist() == ["baseline", "inconclusive"]
    assert shown["loss (nats)"].tolist() == ["2.10", "2.05 (mean of the 2 that trained)"]
