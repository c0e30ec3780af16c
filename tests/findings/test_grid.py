"""Grids of factors with any number of levels: effects, axes, missing runs and looks."""

import itertools
import math

import numpy as np
import pytest

from llama_ablate.findings.factors import (
    compare_axes,
    describe_confounding,
    estimate_factors,
    find_contrasts,
)
from llama_ablate.findings.stages import mark_runs
from tests.evidence.rows import most
from tests.tables import frames

LEVELS = {"norm": 2, "position": 4, "feedforward": 5}
DESIGN = {"design": "product", "axes": {name: ["a", "b"] for name in LEVELS}}


def of_grid(losses, seeds=None, without=(), sizes=LEVELS, **more):
    """Frames of a grid with losses (cells, seeds); `without` some of its cells."""
    cells = [c for c in itertools.product(*map(range, sizes.values())) if c not in without]
    names = ["".join(map(str, cell)) for cell in cells]
    levels = {
        name: dict(zip(sizes, cell, strict=True)) for name, cell in zip(names, cells, strict=True)
    }
    own = dict(zip(names, losses, strict=True))
    experiment = {"variants": DESIGN, **({"seeds": seeds} if seeds else {}), **more}
    return frames({"": own}, levels=levels, **experiment).table


def test_the_axes_of_a_2_x_4_x_5_are_ordered_by_their_range():
    """Position and feedforward have effects; one run failed."""
    cells = np.array([*itertools.product(*map(range, LEVELS.values()))])
    noise = np.random.default_rng(0).normal(0, 0.005, (40, 2))
    effects = np.array([0.0, 0.02, 0.05, 0.06])[cells[:, 1]] + 0.01 * cells[:, 2]
    losses = (1.5 + effects[:, None] + [0.0, 0.01] + noise).tolist()
    losses[38][1] = "error"
    table = of_grid(losses, margin="0.02 nats")
    axes = compare_axes(table).set_index("axis")
    assert [*axes.index] == ["position", "feedforward", "norm"]
    assert axes.loc["norm", "low"] == 0
    assert axes.loc["position", "lowest"] == "position0"
    assert "norm" in axes.loc["position", "more_than"]
    rows = estimate_factors(table)
    assert rows["factor"].str.contains(" x ").tolist() == [False] * 17 + [True] * 19
    assert rows["effect"].iloc[0] == "position3 instead of position0"


def test_an_effect_whose_combinations_were_not_run_says_so():
    """The interaction of the last levels has no cells; the others keep their own intervals."""
    sizes = {"norm": 3, "block": 2}
    losses = np.random.default_rng(1).normal(size=(5, 3)).tolist()
    table = of_grid(losses, without=[(2, 1)], sizes=sizes)
    rows = estimate_factors(table).set_index("effect")
    lost = rows.loc["norm2 with block1"]
    assert lost["verdict"] == "not estimable"
    assert math.isnan(lost["difference"])
    assert rows.drop("norm2 with block1")["difference"].notna().all()
    assert rows["alpha"].dropna().round(6).unique().tolist() == [round(0.05 / 5, 6)]
    assert describe_confounding(table).startswith("5 of 6 combinations were run: an effect is that")


def test_the_range_of_an_axis_is_held_by_its_interval(volume):
    """Of every axis at once in 95%, and what is called the lowest may be that."""
    generator, tables, held = np.random.default_rng(3), volume(40, 1_000, 4_000), 0
    sizes, ranges = {"norm": 2, "position": 4, "block": 3}, {"norm": 0.0, "position": 1.5}
    means = np.tile(np.repeat([0.0, 0.4, 0.5, 1.5], 3), 2)
    for _ in range(tables):
        losses = means[:, None] + generator.normal(size=(24, 3)) + generator.normal(size=3)
        rows = compare_axes(of_grid(losses.tolist(), sizes=sizes)).set_index("axis")
        true = [ranges.get(axis, 0.0) for axis in rows.index]
        within = (rows["low"] <= true).all() and (rows["high"] >= true).all()
        held += within and "position0" in rows.loc["position", "lowest"]
    assert 1 - held / tables <= most(0.05, tables)


def test_a_grid_is_judged_at_the_last_look_at_the_whole_level_whatever_its_rows_say():
    sizes, looks = {"norm": 2, "block": 3}, {"looks": [2, 4]}
    noise = np.random.default_rng(4).normal(0, 0.01, (6, 4))
    first = [[*own, "pending", "pending"] for own in noise[:, :2].tolist()]
    first[5] = [9.0, 9.1, "pending", "pending"]  # its row is decided at the first look
    table = of_grid(first, looks, sizes=sizes)
    assert find_contrasts(table).empty
    runs = mark_runs(table).query("use == 'next'")
    assert {*zip(runs["label"], runs["seed"], strict=True)} >= {("12", 3)}
    last = find_contrasts(of_grid(noise.tolist(), looks, sizes=sizes))
    assert {*last["n"]} == {4}
    assert last["alpha"].tolist() == pytest.approx([0.05 / len(last)] * len(last))
