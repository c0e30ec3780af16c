"""Grids of factors with any number of levels, from their file to the report."""

import itertools
import math

import numpy as np
import pytest

from llama_ablate.findings.compare import find_losses
from llama_ablate.findings.factors import (
    compare_axes,
    describe_confounding,
    estimate_factors,
    find_contrasts,
)
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.stages import mark_runs
from llama_ablate.results import Results
from tests import filled
from tests.tables import frames

LEVELS = {"norm": 2, "position": 4, "feedforward": 5}
AXES = """
  design: product
  axes:
    norm: [rmsnorm, layernorm]
    position: [rope, alibi, sinusoidal, learned]
    feedforward: [swiglu, geglu, gelu, relu, relu2]
"""
EFFECTS = {"alibi": 0.02, "sinusoidal": 0.05, "learned": 0.06, "gelu": 0.03, "relu": 0.04}
DESIGN = {"design": "product", "axes": {name: ["a", "b"] for name in LEVELS}}


@pytest.fixture
def grid(experiment_file, tmp_path):
    """A finished 2 x 4 x 5 of two seeds, of which one run failed."""
    noise = np.random.default_rng(0)

    def loss(label, seed):
        if label == "layernorm learned relu" and seed == 1:
            return None
        effect = sum(EFFECTS.get(word, 0.0) for word in label.split())
        return 1.5 + effect + 0.01 * seed + noise.normal(0, 0.005)

    file = experiment_file(variants=AXES, measure="[perplexity]", margin="0.02 nats")
    return filled.of_file(tmp_path / "grid", file, loss)


def test_a_2_x_4_x_5_says_which_axis_matters(grid):
    table = Frames.of(Results.open(grid.root)).table
    axes = compare_axes(table).set_index("axis")
    assert [*axes.index] == ["position", "feedforward", "norm"]
    assert axes.loc["norm", "low"] == 0
    assert axes.loc["position", "lowest"].startswith("rope")
    assert axes.loc["position", "more_than"].startswith("norm")
    rows = estimate_factors(table)
    assert [len(of) for _, of in rows.groupby(rows["factor"].str.count(" x "))] == [17, 3 + 4 + 12]
    assert rows["effect"].iloc[0] == "learned instead of rope"
    assert (rows["difference"] - 0.06).abs().iloc[0] < 0.01


def test_a_run_that_failed_takes_nothing_from_the_others(grid):
    table = Frames.of(Results.open(grid.root)).table
    rows = {row.effect: row for row in estimate_factors(table).itertuples()}
    assert len(rows) == 17 + 19
    cells = [variant.id for variant in table.plan.variants if not variant.role]
    known = find_losses(table)
    losses = np.array([[known[id_].get(seed, math.nan) for seed in (0, 1)] for id_ in cells])
    (failed,) = np.nonzero(np.isnan(losses).any(1))[0]
    others = np.delete(losses, failed, 0)
    # The missing plot of Yates: what is left of the cell beside the seeds of all others.
    losses[failed, 1] = losses[failed, 0] + (others[:, 1] - others[:, 0]).mean()
    means = losses.mean(1).reshape(2, 4, 5).mean((0, 2))
    assert rows["learned instead of rope"].difference == pytest.approx(means[3] - means[0])


def of_grid(losses, seeds=None, without=(), sizes=LEVELS, **more):
    """Frames of a grid with losses (cells, seeds); `without` some of its cells."""
    cells = [c for c in itertools.product(*map(range, sizes.values())) if c not in without]
    names = ["".join(map(str, cell)) for cell in cells]
    levels = {
        name: dict(zip(sizes, cell, strict=True)) for name, cell in zip(names, cells, strict=True)
    }
    own = dict(zip(names, losses, strict=True))
    seeds = {} if seeds is None else {"seeds": seeds}
    return frames({"": own}, levels=levels, variants=DESIGN, **seeds, **more)


def test_an_effect_whose_combinations_were_not_run_says_so():
    sizes = {"norm": 3, "block": 2}
    losses = np.random.default_rng(1).normal(size=(5, 3)).tolist()
    table = of_grid(losses, without=[(2, 1)], sizes=sizes).table
    rows = estimate_factors(table).set_index("effect")
    lost = rows.loc["norm2 with block1"]
    assert lost["verdict"] == "not estimable"
    assert lost["why"] == "its combinations were not run, or failed"
    assert math.isnan(lost["difference"])
    assert rows.drop("norm2 with block1")["difference"].notna().all()
    assert rows["alpha"].dropna().round(6).unique().tolist() == [round(0.05 / 5, 6)]
    assert describe_confounding(table).startswith("5 of 6 combinations were run: an effect is that")


@pytest.mark.parametrize("seed", range(3))
def test_an_interval_five_times_as_wide_as_its_neighbours_says_why(seed):
    generator = np.random.default_rng(seed)
    losses = generator.normal(size=(40, 2)) * np.exp(generator.normal(size=(40, 1)))
    rows = estimate_factors(of_grid(losses.tolist()).table)
    width = rows["high"] - rows["low"]
    assert (rows["why"][width > 5 * width.median()] != "").all()
    assert (rows["why"][width < 2 * width.median()] == "").all()


def test_the_range_of_an_axis_is_held_by_its_interval(volume):
    """Of every axis at once in 95%, and what is called the lowest may be that."""
    generator, tables, held = np.random.default_rng(3), volume(40, 1_000, 4_000), 0
    true = np.array([0.0, 0.4, 0.5, 1.5])
    for _ in range(tables):
        means = true[[cell[1] for cell in itertools.product(range(2), range(4), range(3))]]
        losses = means[:, None] + generator.normal(size=(24, 3)) + generator.normal(size=3)
        sizes = {"norm": 2, "position": 4, "block": 3}
        found = compare_axes(of_grid(losses.tolist(), sizes=sizes).table)
        rows = {row.axis: row for row in found.itertuples()}
        ranges = {"norm": 0.0, "position": 1.5, "block": 0.0}
        held += all(rows[axis].low <= of <= rows[axis].high for axis, of in ranges.items()) and (
            "position0" in rows["position"].lowest
        )
    assert held / tables >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / tables)


def test_a_grid_is_judged_at_the_last_look_at_the_whole_level_whatever_its_rows_say():
    sizes, looks = {"norm": 2, "block": 3}, {"looks": [2, 4]}
    noise = np.random.default_rng(4).normal(0, 0.01, (6, 4))
    first = [[*own, "pending", "pending"] for own in noise[:, :2].tolist()]
    first[5] = [9.0, 9.1, "pending", "pending"]  # its row is decided at the first look
    table = of_grid(first, looks, sizes=sizes).table
    assert find_contrasts(table).empty
    runs = mark_runs(table).query("use == 'next'")
    assert {*zip(runs["label"], runs["seed"], strict=True)} >= {("12", 3)}
    last = find_contrasts(of_grid(noise.tolist(), looks, sizes=sizes).table)
    assert {*last["n"]} == {4}
    assert last["alpha"].tolist() == pytest.approx([0.05 / len(last)] * len(last))
