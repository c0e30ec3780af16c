"""Laws of a ladder in the report: what is fitted, checked on the largest size, and projected."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from llama_ablate.evidence.scaling import Law, fit
from llama_ablate.evidence.written import Estimate
from llama_ablate.findings import ladder
from llama_ablate.findings.frames import LossPoint
from llama_ablate.findings.rows import RunRow, cells
from llama_ablate.findings.rows import frame as framed

LAW = Law(1.2, 15.0, 0.25)
SIZES = [1e4, 3e4, 1e5, 3e5, 1e6]


def of_sizes(sizes, floor=None, law=LAW, gap=0.0):
    """Frames of a ladder of a baseline and a variant: three seeds, a little noise."""
    noise = np.random.default_rng(4).normal(0, 0.002, (2, len(sizes), 3))
    points = [
        LossPoint(
            label=label,
            baseline=not arm,
            role="",
            seed=seed,
            parameters=x,
            tokens=20 * x,
            compute=120 * x * x,
            loss=law(x) + arm * (gap + 0.01 * math.log10(x / 1e4)) + noise[arm, i, seed],
            branch=False,
            rung=f"rung {i}",
        )
        for arm, label in enumerate(("base", "other"))
        for i, x in enumerate(sizes)
        for seed in range(3)
    ]
    numbers = {} if floor is None else {"test_floor_nats": floor}
    run = RunRow(id="r", variant="v", label="base", seed=0, steps_done=2, numbers=numbers)
    table = SimpleNamespace(reported=[run], split="test", margin=0.01)
    return SimpleNamespace(ladder=points, table=table)


def row(frames, label="base", axis="parameters"):
    frame = framed(ladder.laws(frames))
    return frame[(frame["label"] == label) & (frame["axis"] == axis)].iloc[0]


def test_a_projection_stands_beside_what_the_smaller_sizes_predict_of_the_largest():
    frames = of_sizes(SIZES)
    shown = row(frames)
    losses = np.array([point.loss for point in frames.ladder if point.baseline]).reshape(-1, 3)
    check = fit(SIZES[:-1], losses[:-1].tolist(), at=SIZES[-1]).projected
    whole = fit(SIZES, losses.tolist(), at=1e7)
    assert (shown["form"], shown["n"], shown["at"]) == ("floor fitted", 5, 1e7)
    assert tuple(shown[["predicted", "predicted_low", "predicted_high"]]) == pytest.approx(
        (check.value, check.low, check.high)
    )
    assert shown["measured"] == pytest.approx(losses[-1].mean())
    assert shown["projected"] == pytest.approx(whole.projected.value)
    assert check.low < shown["measured"] < check.high


@pytest.mark.parametrize(
    ("sizes", "floor", "form", "projects"),
    [
        (5, None, "floor fitted", True),
        (4, None, "floor fitted", False),  # three sizes cannot predict the fourth
        (3, None, "local", False),
        (2, None, "local", False),
        (4, 1.2, "floor known", True),
        (3, 1.2, "floor known", False),
        (2, 1.2, "local", False),
    ],
)
def test_what_cannot_be_checked_is_not_projected_and_too_few_sizes_have_no_law(
    sizes, floor, form, projects
):
    shown = row(of_sizes(SIZES[:sizes], floor))
    assert shown["form"] == form
    assert math.isfinite(shown["projected"]) is projects
    assert math.isfinite(shown["predicted"]) is projects
    assert math.isfinite(shown["floor"]) is (form != "local")
    assert math.isfinite(shown["exponent_low"])


def test_three_sizes_that_fit_any_floor_are_told_as_a_slope_over_these_sizes():
    """e08's case: three sizes, for which any floor from 0 to 0.8 fits."""
    shown = cells(ladder.laws(of_sizes(SIZES[:3], law=Law(0.4, 9.0, 0.25))))
    assert set(shown["law"]) == {"none: power law over these sizes alone"}
    assert set(shown["floor (nats)"]) == {"-"}
    assert set(shown["projected (nats)"]) == {"-"}


def test_a_floor_that_reaches_its_bound_is_written_as_a_one_sided_statement():
    rows = ladder.laws(of_sizes(SIZES, law=Law(0.0, 6.0, 0.12)))
    first = next(row for row in rows if row.axis == "parameters")
    assert cells([first])["floor (nats)"].tolist() == [f"at most {first.floor.high:.3f}"]
    ends = [(0.0, 2.0), (0.5, math.inf), (0.0, math.inf)]
    written = [f"{Estimate(1.0, *of):.1f}" for of in ends]
    assert written == ["at most 2.0", "at least 0.5", "not determined"]


def test_a_gap_has_a_trend_and_is_not_projected():
    shown = row(of_sizes(SIZES[:3], gap=0.03), "other")
    assert shown["trend"] in ("grows", "undecided")
    assert pd.isna(row(of_sizes(SIZES[:3]))["trend"])  # the baseline has no gap
    assert shown["slope_low"] < shown["slope"] < shown["slope_high"]
    assert not [column for column in shown.index if column.startswith("gap")]


def test_a_law_that_misses_the_largest_size_is_not_projected():
    """A size whose rate was not tuned: 0.3 nats above the law through the others."""
    frames = of_sizes(SIZES)
    assert framed(ladder.laws(frames))["projected"].notna().all()
    frames.ladder = [
        replace(point, loss=point.loss + 0.3 * (point.parameters == SIZES[-1]))
        for point in frames.ladder
    ]
    failed = [row for row in ladder.laws(frames) if row.axis == "parameters"]
    assert framed(failed)["projected"].isna().all()
    assert framed(failed)["predicted"].notna().all()
    assert set(cells(failed)["projected (nats)"]) == {"none: the check failed"}


def test_an_exponent_that_may_be_1_is_not_determined():
    ends = [(0.5, 0.0, 1.527), (0.5, 0.0, 0.8), (0.6, 0.2, 1.2)]
    known = dict.fromkeys(("E", "A", "alpha", "B", "beta"), Estimate(1.0, 0.5, 1.5))
    rows = [
        ladder.SurfaceRow(label="a", n=6, **known, parameters_exponent=Estimate(*of)) for of in ends
    ]
    shown = cells(rows)["best parameters grow as compute^"]
    assert list(shown) == ["not determined", "at most 0.800", "at least 0.200"]
