"""Ratios of speeds: turn by turn, with intervals over processes that hold for a column."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from llama_ablate.findings.rows import cells
from scipy import stats

from llama_ablate.evidence import medians
from llama_ablate.evidence.medians import estimate_column
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.speeds import Ratio, find_peak
from llama_ablate.findings.warnings import list_speed_limits
from llama_ablate.results import Results, Store
from llama_ablate.results.record import Measurement, Value
from tests import plans, tables

ROOT = Path(__file__).parents[2]
#: Tokens a second by process and turn. The machine halves its speed in the second process.
BASE = [[1000.0, 1100.0, 900.0], [500.0, 500.0, 500.0], [1000.0, 1000.0, 1000.0]]
RATIOS = [[1.2, 1.3, 1.1], [1.25, 1.25, 1.0], [1.15, 1.15, 2.0]]


@pytest.fixture
def frames(tmp_path):
    """Read an experiment of a baseline, a variant and an A/A arm whose speeds were measured."""

    def read(again=((1.0,) * 3,) * 3):
        arms = [
            plans.variant("aa", "baseline"),
            plans.variant("bb", "faster"),
            plans.variant("cc", "again", role="aa", reseed="none"),
        ]
        table = plans.table(arms, [plans.run(f"{v.id}0", v.id, 0) for v in arms])
        store = Store(tmp_path / "x")
        store.create(plans.document(table), "name: x\n")
        ones = [[1.0] * 3] * 3
        with store.alone("measure") as lease:
            for arm, ratios in zip(arms, (ones, RATIOS, again), strict=True):
                turns = np.array(BASE) * np.array(ratios)
                speed = Value(
                    "train_tokens_per_s",
                    float(np.median(turns)),
                    samples=tuple(turns.ravel().tolist()),
                    turns=(3, 3, 3),
                )
                metric = Measurement((speed,))
                store.add_metric(
                    lease, store.variant_folder(arm.label, arm.id), "train_speed", metric
                )
        return Frames.of(Results(store.root))

    return read


def test_a_column_of_speeds_shares_one_variance_and_its_intervals_hold_at_once(frames):
    """Medians of the turns' ratios in a process: 1.2, 1.25, 1.15, and 1.01, 1, 0.99."""
    again = (1.01, 1.0, 0.99)
    table = frames([[ratio] * 3 for ratio in again]).table
    logs = np.log([(1.2, 1.25, 1.15), again])
    error = math.sqrt(logs.var(1, ddof=1).mean() / 3)
    half = stats.t.ppf(1 - 0.05 / 2 / 2, 2 * 2) * error
    faster, same = table.comparison[1:]
    for row, log in ((faster, logs[0].mean()), (same, logs[1].mean())):
        ends = [math.exp(log + by) for by in (0.0, -half, half)]
        assert row.train_speed[:3] == pytest.approx(tuple(ends))
    assert math.isnan(faster.decode_speed.ratio)
    shown = cells(table.comparison)["speed"].tolist()
    low, high = (f"{end:.2f}" for end in same.train_speed[1:3])
    assert shown[::2] == ["1.00x", f"{same.train_speed.ratio:.2f}x [{low}, {high}]"]
    assert shown[1].startswith("1.20x* [")


def test_a_row_that_varies_more_than_the_others_has_its_own_variance_and_lends_it_to_none():
    generator = np.random.default_rng(0)
    logs = generator.normal(0, 0.01, (6, 5))
    logs[0] *= 20
    mean, half = estimate_column(logs)
    own = stats.t.ppf(1 - 0.05 / 6 / 2, 4) * stats.sem(logs[0])
    assert half[0] == pytest.approx(own)
    pooled = math.sqrt(logs.var(1, ddof=1).mean() / 5)
    assert half[1:] == pytest.approx(stats.t.ppf(1 - 0.05 / 6 / 2, 24) * pooled)
    assert mean == pytest.approx(logs.mean(1))


def test_the_same_code_at_another_speed_is_a_warning(frames):
    differs = frames([[1.3] * 3] * 3).table.comparison
    (note,) = (line for line in map(str, list_speed_limits(differs)) if "same" in line)
    assert note.startswith("The same code differs in its training speed: 'again' 1.30x* [")
    assert not any(
        "same" in line for line in map(str, list_speed_limits(frames().table.comparison))
    )


def timed(**train):
    """A row of a comparison with a training speed of 15 turns in 5 processes."""
    (row,) = tables.frames({"": {"faster": [2.0]}}).table.comparison
    ratio = Ratio(1.2, 1.16, 1.24, 15, 5, 0.1)._replace(**train)
    return replace(row, train_tokens_per_s=100.0, train_speed=ratio)


def test_a_star_marks_just_the_speeds_whose_interval_leaves_out_1():
    lows = {0.9: "1.20x [0.90, 1.24]", 1.01: "1.20x* [1.01, 1.24]", math.nan: "1.20x"}
    for low, cell in lows.items():
        assert cells([timed(low=low)])["speed"].tolist() == [cell]


def test_a_speed_of_the_runs_has_no_interval_no_note_and_a_mark():
    row = timed(low=math.nan, high=math.nan, turns=0, processes=0)
    row = replace(row, baseline=False)
    assert cells([row])["speed"].tolist() == ["~1.20x"]
    assert not any("training" in line for line in map(str, list_speed_limits([row])))


def test_training_speeds_that_were_not_paired_are_those_of_the_runs_median_by_median():
    made = tables.frames({"": {"base": [2.0] * 3, "slow": [2.1] * 3}})
    seconds = {"base": (1.0, 2.0, 9.0), "slow": (4.0, 4.0, 1.0)}
    planned = [
        replace(run, numbers={**run.numbers, "train_s": seconds[run.label][run.seed]})
        for run in made.table.planned
    ]
    base, slow = replace(made.table, planned=planned).comparison
    tokens = 2 * made.table.experiment.train.batch * made.table.experiment.model.context
    assert base.train_tokens_per_s == tokens / 2
    assert (slow.train_tokens_per_s, slow.train_speed.ratio) == (tokens / 4, 0.5)
    assert math.isnan(slow.train_speed.low)


def test_speeds_that_were_not_taken_in_the_same_turns_have_no_ratio():
    for own, base in ((((1.0, 2.0),), ((1.0,), (2.0,))), ((), ()), (((1.0,),), ((0.0,),))):
        found = medians.compare_column({"own": own, "base": base}, "base")
        assert math.isnan(found["own"].value)


def test_the_share_of_a_known_devices_peak_is_tokens_a_second_times_their_flops():
    table = Frames.of(Results.open(ROOT / "results/reference/gpu-10m")).table
    base = table.comparison[0]
    flops = 3 * table.plan.baseline.flops_per_token
    assert base.mfu == pytest.approx(base.train_tokens_per_s * flops / 989e12)  # H100, bfloat16
    assert cells(table.comparison)["MFU"].iloc[0] == f"{base.mfu:.1%}"
    other = table.machines.assign(processors="x with NVIDIA Unheard-Of 9000")
    assert math.isnan(find_peak(other))
    on_cpu = Frames.of(Results.open(ROOT / "results/reference/first")).table
    assert "MFU" not in cells(on_cpu.comparison)
