"""Effective speed-ups in the report, from records made by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from llama_ablate.evidence.scaling import Law
from llama_ablate.evidence.text import StandardError
from llama_ablate.report import speed_up
from llama_ablate.report.frames import Frames, TableFrames
from llama_ablate.report.sections import SECTIONS
from llama_ablate.report.speed_up import speed_ups
from llama_ablate.report.units import NATS
from llama_ablate.results import Store
from llama_ablate.results.metrics import Measurement, Value, row
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
    found = speed_ups(frames).set_index("label").loc["better"]
    assert found["tokens"] == pytest.approx(1.6, rel=0.02)
    assert found["flops"] == pytest.approx(found["tokens"] * 2000 / 2500)
    assert found["seconds"] == pytest.approx(found["tokens"] * 0.5)
    assert found["tokens_low"] < 1.6 < found["tokens_high"]
    assert found["n"] == 2
    widths = [math.log(found[f"{c}_high"] / found[f"{c}_low"]) for c in ("tokens", "flops")]
    assert widths[0] == pytest.approx(widths[1])


def test_the_error_of_the_held_out_text_is_part_of_the_interval(frames, monkeypatch):
    """In units of the multiple's logarithm: divided by the fall of the loss there."""
    before = speed_ups(frames).set_index("label").loc["better"]
    error = StandardError(1.0, math.inf)  # beside which that over seeds is nothing
    monkeypatch.setattr(TableFrames, "text_errors", lambda _self: {"better": error})
    after = speed_ups(frames).set_index("label").loc["better"]
    assert after["tokens"] == before["tokens"]
    fall = 0.4 * (BASE(64) - 1.5)
    half = math.log(after["tokens_high"] / after["tokens_low"]) / 2
    level = frames.table.intervals["better"].alpha
    assert half == pytest.approx(stats.norm.ppf(1 - level / 2) / fall, rel=0.01)
    assert half > math.log(before["tokens_high"] / before["tokens_low"]) / 2


def test_turns_of_one_process_are_one_observation_of_a_pace():
    base = [[100.0, 110.0, 90.0], [100.0, 100.0, 100.0]]
    own = [[200.0, 220.0, 180.0], [100.0, 400.0, 200.0]]
    assert speed_up._log_ratios(own, base) == pytest.approx([math.log(2)] * 2)
    assert speed_up._log_ratios(own, base[:1]) == []


def test_a_pace_of_one_process_has_no_interval_and_gives_no_bound(frames):
    at_once = frames.table.metrics.assign(
        by_process=[(s,) for s in frames.table.metrics["samples"]]
    )
    table = replace(frames.table, metrics=at_once)
    found = speed_ups(replace(frames, tables=(table,))).set_index("label")
    assert found.loc["better", "seconds"] == pytest.approx(found.loc["better", "tokens"] * 0.5)
    assert found.loc[["better", "far"], ["seconds_low", "seconds_high"]].isna().all(axis=None)


def test_what_no_run_reached_is_a_bound(frames):
    found = speed_ups(frames).set_index("label").loc["far"]
    assert math.isnan(found["tokens"])
    assert (found["tokens_low"], found["tokens_high"]) == (4.0, math.inf)
    cells = SECTIONS["speed_up"](frames).cells.set_index("variant")
    assert cells.loc["far", "tokens [95% interval]"] == "> 4.00x"
    assert cells.loc["far", "beyond the runs"] == "in 2 of 2 seeds"
    assert cells.loc["better", "tokens [95% interval]"].startswith(f"{1.6:.1f}")


def test_a_ladder_of_sizes_without_branches_compares_compute_alone():
    noise = 0.002 * np.random.default_rng(2).normal(size=(2, 4, 3))
    points = [
        {
            "label": label,
            "baseline": not arm,
            "role": "",
            "seed": seed,
            "compute": compute,
            "loss": Law(1.5, 90.0 * times**-0.2, 0.2)(compute) + noise[arm, i, seed],
            "branch": False,
        }
        for arm, (label, times) in enumerate({"base": 1.0, "other": 1.5}.items())
        for i, compute in enumerate((1e10, 1e11, 1e12, 1e13))
        for seed in range(3)
    ]
    table = SimpleNamespace(unit=NATS)
    ladder = SimpleNamespace(tables=(), table=table, ladder=pd.DataFrame(points))
    (shown,) = speed_ups(ladder).to_dict("records")
    assert (shown["label"], shown["along"], shown["n"]) == ("other", "sizes", 3)
    assert shown["flops_low"] < 1.5 < shown["flops_high"]
    assert shown["flops"] == pytest.approx(1.5, rel=0.05)
    assert math.isnan(shown["tokens"])
    assert speed_ups(SimpleNamespace(tables=(), ladder=pd.DataFrame())).empty


def test_without_three_lengths_there_is_no_section(frames):
    table = frames.table
    short = replace(table, metrics=table.metrics[table.metrics["metric"] != "training"])
    assert SECTIONS["speed_up"](replace(frames, tables=(short,))) is None
