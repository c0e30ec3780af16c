"""Effective speed-ups in the report, from records made by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from analysis import speed_up
from analysis.speed_up import Multiple, speed_ups
from llama_ablate.evidence import simultaneous
from llama_ablate.evidence.scaling import Law
from llama_ablate.findings.frames import Frames, LossPoint, TableFrames
from llama_ablate.findings.rows import MeasuredValues, cells
from llama_ablate.findings.rows import frame as framed
from llama_ablate.results import Store
from llama_ablate.results.plan_document import NATS
from llama_ablate.results.record import Measurement, Value, row
from llama_ablate.results.snapshot import Results
from tests import plans

BASE = Law(1.5, 20.0, 0.4)
#: How many times fewer tokens each variant needs, and what it costs in FLOPs and speed.
VARIANTS = {"base": (1.0, 2000, 1.0), "better": (1.6, 2500, 0.5), "far": (40.0, 2000, 1.0)}
SPEEDS = (1000.0, 1010.0, 990.0)


def measured(times, seed):
    """The losses of a run of 64 tokens and of its branches at a quarter and a half of them."""
    law = Law(BASE.floor, BASE.scale * times**-BASE.exponent, BASE.exponent)
    loss = {tokens: law(tokens) + 0.001 * times * seed for tokens in (16, 32, 64)}
    branches = [
        row(f"test_loss_at_{t}_tokens_nats", loss[t], "nats", "loss", split="test", tokens=t)
        for t in (16, 32)
    ]
    end = row("test_loss_nats", loss[64], "nats", "loss", split="test")
    return {"training": Measurement(tuple(branches)), "perplexity": Measurement((end,))}


@pytest.fixture
def frames(tmp_path):
    """Results of three variants with two branches, two seeds and measured training speeds."""
    store = Store(tmp_path / "x")
    runs = [plans.run(f"{label}{seed}", label, seed) for seed in (0, 1) for label in VARIANTS]
    arms = [plans.variant(k, flops_per_token=v[1]) for k, v in VARIANTS.items()]
    train = {"steps": 2, "batch": 4, "schedule": "wsd", "branches": [0.25, 0.5]}
    model = {"context": 8}
    store.create(
        plans.document(plans.table(arms, runs), seeds=2, train=train, model=model), "name: x\n"
    )
    for run in runs:
        times = VARIANTS[run.variant][0]
        record = replace(plans.RECORD, id=run.id, label=run.variant, variant=run.variant)
        store.commit(replace(record, seed=run.seed, metrics=measured(times, run.seed)), [], None)
    with store.alone("measure") as lease:
        for label, (_, _, pace) in VARIANTS.items():
            speeds = tuple(pace * speed for speed in SPEEDS)
            turns = (1,) * len(speeds)  # a process each
            name = "train_tokens_per_s"
            value = Value(name, speeds[1], "tokens/s", samples=speeds, turns=turns)
            store.add_variant_metric(lease, label, label, "train_speed", Measurement((value,)))
    return Frames.of(Results(store))


def test_multiples_are_of_tokens_and_of_the_flops_and_seconds_that_they_cost(frames):
    found = framed(speed_ups(frames)).set_index("label").loc["better"]
    assert found["tokens"] == pytest.approx(1.6, rel=0.02)
    assert found["flops"] == pytest.approx(found["tokens"] * 2000 / 2500)
    assert found["seconds"] == pytest.approx(found["tokens"] * 0.5)
    assert found["tokens_low"] < 1.6 < found["tokens_high"]
    assert found["n"] == 2
    widths = [math.log(found[f"{c}_high"] / found[f"{c}_low"]) for c in ("tokens", "flops")]
    assert widths[0] == pytest.approx(widths[1])


def test_a_multiple_leaves_out_1_where_the_difference_in_loss_leaves_out_0(frames, monkeypatch):
    """It has that interval, with all that is part of it, read off a curve."""
    frame = framed(speed_ups(frames)).set_index("label")
    assert frame.loc["better", "tokens_low"] > 1
    assert frames.table.intervals["better"].high < 0
    assert math.isinf(frame.loc["far", "tokens_low"])
    wide = {id_: row.widened((-9.0, 9.0)) for id_, row in frames.table.intervals.items()}
    monkeypatch.setattr(TableFrames, "intervals", wide)
    after = framed(speed_ups(frames)).set_index("label")
    assert [*after["tokens"]] == [*frame["tokens"]]
    assert (after.loc["better", "tokens_low"], after.loc["better", "tokens_high"]) == (0, math.inf)


def test_turns_of_one_process_are_one_observation_of_a_pace():
    base = [[100.0, 110.0, 90.0], [100.0, 100.0, 100.0]]
    own = [[200.0, 220.0, 180.0], [100.0, 400.0, 200.0]]
    assert speed_up._log_ratios(own, base) == pytest.approx([math.log(2)] * 2)
    assert speed_up._log_ratios(own, base[:1]) == []


def test_a_pace_of_one_process_has_no_interval_and_gives_no_bound(frames):
    at_once = MeasuredValues(
        replace(row, by_process=(row.samples,)) for row in frames.table.metrics
    )
    table = replace(frames.table, metrics=at_once)
    found = framed(speed_ups(replace(frames, tables=(table,)))).set_index("label")
    assert found.loc["better", "seconds"] == pytest.approx(found.loc["better", "tokens"] * 0.5)
    assert found.loc[["better", "far"], ["seconds_low", "seconds_high"]].isna().all(axis=None)


def test_what_no_run_reached_is_a_bound(frames):
    found = framed(speed_ups(frames)).set_index("label").loc["far"]
    assert (found["tokens"], found["tokens_most"]) == (math.inf, 4.0)
    shown = cells(speed_ups(frames)).set_index("variant")
    assert shown.loc["far", "tokens [95% interval]"] == "above 4.00x"
    assert shown.loc["better", "tokens [95% interval]"].startswith(f"{1.6:.1f}")
    assert [*shown["form of the curve"]] == ["unchecked"] * 2  # of three lengths


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        ((3.5, 2.9, math.inf, 0.25, 4.0), "3.50x [2.90, above 4.00]"),
        ((math.inf, 2.9, math.inf, 0.25, 4.0), "above 4.00x [2.90, above 4.00]"),
        ((0.0, 0.0, 0.3, 0.25, 4.0), "below 0.25x [below 0.25, 0.30]"),
        ((math.nan,) * 5, "-"),
        ((1.2, math.nan, math.nan, 0.25, 4.0), "1.20x"),
        ((1.0, 0.0, math.inf, 0.25, 4.0), "1.00x [below 0.25, above 4.00]"),
    ],
)
def test_each_end_beyond_the_runs_is_written_as_what_it_is_beyond(row, shown):
    assert str(Multiple(*row)) == shown


def _gap(times, compute):
    law = Law(1.5, 90.0, 0.2)
    return law(compute * times) - law(compute)


def test_a_ladder_of_sizes_without_branches_compares_compute_alone():
    noise = 0.002 * np.random.default_rng(2).normal(size=(2, 4, 3))
    points = [
        LossPoint(
            label=label,
            baseline=not arm,
            role="",
            seed=seed,
            parameters=1,
            tokens=1,
            compute=compute,
            loss=Law(1.5, 90.0 * times**-0.2, 0.2)(compute) + noise[arm, i, seed],
            branch=False,
            rung="",
        )
        for arm, (label, times) in enumerate({"base": 1.0, "other": 1.5}.items())
        for i, compute in enumerate((1e10, 1e11, 1e12, 1e13))
        for seed in range(3)
    ]
    (difference,) = simultaneous({"": noise[1, -1] - noise[0, -1] + _gap(1.5, 1e13)}).values()
    arms = [plans.variant("base", baseline=True), plans.variant("other")]
    largest = SimpleNamespace(
        plan=plans.table(arms, []), intervals={arms[1].id: difference}, unit=NATS
    )
    ladder = SimpleNamespace(tables=(), table=largest, rungs=[largest], ladder=points)
    (shown,) = framed(speed_ups(ladder)).to_dict("records")
    assert (shown["label"], shown["along"], shown["n"]) == ("other", "sizes", 3)
    assert shown["flops_low"] < 1.5 < shown["flops_high"]
    assert shown["flops"] == pytest.approx(1.5, rel=0.05)
    assert math.isnan(shown["tokens"])
    assert speed_ups(SimpleNamespace(tables=(), rungs=[])) == []


def test_without_three_lengths_there_is_no_section(frames):
    table = frames.table
    short = replace(
        table, metrics=MeasuredValues(row for row in table.metrics if row.metric != "training")
    )
    assert speed_ups(replace(frames, tables=(short,))) == []
