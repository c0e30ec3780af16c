"""Speeds of a table's rows: in turns, of its runs, and as a share of a device's peak."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from llama_ablate.evidence.medians import compare_column
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.speeds import find_peak
from llama_ablate.results import Results
from tests import tables
from tests.metric_rows import make_values
from tests.tables import sentences_of

ROOT = Path(__file__).parents[2]
#: Tokens a second by process and turn. The machine halves its speed in the second process.
BASE = [[1000.0, 1100.0, 900.0], [500.0, 500.0, 500.0], [1000.0, 1000.0, 1000.0]]
RATIOS = [[1.2, 1.3, 1.1], [1.25, 1.25, 1.0], [1.15, 1.15, 2.0]]


def frames(again):
    """Frames of a baseline, a variant and an A/A arm whose speeds were measured in turns."""
    arms = {"base": np.ones((3, 3)), "faster": np.array(RATIOS), "again": np.array(again)}
    roles = {"again": {"role": "aa", "reseed": "none"}}
    made = tables.frames({"": {label: [2.0] for label in arms}}, changes=roles)
    name = {"metric": "train_speed", "name": "train_tokens_per_s"}
    rows = [
        {"variant": of.id, "label": of.label, "turns": turns, "value": np.median(turns), **name}
        for of in made.table.plan.variants
        for turns in [(np.array(BASE) * arms[of.label]).tolist()]
    ]
    return replace(made, tables=(replace(made.table, measured=make_values(rows)),))


def test_measured_speeds_are_compared_in_the_turns_in_which_they_were_taken():
    again = [[ratio] * 3 for ratio in (1.01, 1.0, 0.99)]
    rows = compare_variants(frames(again).table)
    turns = {"base": np.ones((3, 3)), "faster": np.array(RATIOS), "again": np.array(again)}
    expected = compare_column({label: own.tolist() for label, own in turns.items()}, "base")
    for row in rows[1:].itertuples():
        found = [row.train_speed_ratio, row.train_speed_low, row.train_speed_high]
        ends = [expected[row.label][key] for key in ("value", "low", "high")]
        assert found == pytest.approx(ends)
        assert (row.train_speed_processes, row.train_speed_turns) == (3, 9)
    assert rows["train_speed_ratio"][0] == 1
    assert rows["decode_speed_ratio"].isna().all()


def test_the_same_code_at_another_speed_is_a_warning():
    def told(found):
        return [line for line in sentences_of(found) if "same code differs" in line]

    (note,) = told(frames([[1.3] * 3] * 3))
    assert note.startswith("The same code differs in its training speed: 'again' 1.30x* [")
    assert told(frames([[1.0] * 3] * 3)) == []


def test_training_speeds_that_were_not_paired_are_those_of_the_runs_median_by_median():
    table = tables.frames({"": {"base": [2.0] * 3, "slow": [2.1] * 3}}).table
    seconds = [1.0, 2.0, 9.0, 4.0, 4.0, 1.0]
    timed = replace(table, planned=table.planned.assign(train_s=seconds))
    base, slow = compare_variants(timed).itertuples()
    tokens = 2 * table.experiment.train.batch * table.experiment.model.context
    assert base.train_tokens_per_s == tokens / 2
    assert (slow.train_tokens_per_s, slow.train_speed_ratio) == (tokens / 4, 0.5)
    assert math.isnan(slow.train_speed_low)


def test_the_share_of_a_known_devices_peak_is_tokens_a_second_times_their_flops():
    table = Frames.of(Results.open(ROOT / "results/reference/gpu-10m")).table
    base = compare_variants(table).iloc[0]
    flops = 3 * table.plan.baseline.flops_per_token
    assert base["mfu"] == pytest.approx(base["train_tokens_per_s"] * flops / 989e12)  # H100, bf16
    on_cpu = Frames.of(Results.open(ROOT / "results/reference/first")).table
    assert compare_variants(on_cpu)["mfu"].isna().all()


def machines(gpu, precision="bfloat16", device="cuda"):
    named = f"EPYC with {gpu}"
    return pd.DataFrame([{"devices": device, "processors": named, "precisions": precision}] * 2)


PEAKS = {
    ("NVIDIA H100 80GB HBM3", "bfloat16"): 989e12,
    ("NVIDIA H100 PCIe", "bfloat16"): 756e12,
    ("NVIDIA H100 NVL", "bfloat16"): math.nan,
    ("NVIDIA H200", "float16"): math.nan,
}


@pytest.mark.parametrize(("of", "peak"), PEAKS.items())
def test_a_peak_is_that_of_the_device_of_just_this_name(of, peak):
    assert find_peak(machines(*of)) == pytest.approx(peak, nan_ok=True)
    assert math.isnan(find_peak(machines(*of, "cpu")))
    assert math.isnan(find_peak(pd.concat([machines(*of), machines("NVIDIA L4")])))


def test_runs_on_several_ranks_share_the_peak_of_all_their_devices():
    """A paired speed is of one device, and a speed of the runs of all."""
    seconds, losses = [2.0, 2.0, 1.0, 1.0], {"base": [2.0, 2.1], "a": [2.0, 2.2]}

    def shares(**experiment):
        table = tables.frames({"": losses}, **experiment).table
        planned = table.planned.assign(train_s=seconds)
        found = replace(table, planned=planned, machines=machines("NVIDIA H200"))
        rows = compare_variants(found)
        flops = np.array([variant.flops for variant in table.plan.variants])
        alone = rows["train_tokens_per_s"] * flops / 989e12
        return (rows["mfu"] / alone).tolist()

    assert shares() == [1, 1]
    assert shares(parallel={"data": 4}) == pytest.approx([0.25, 0.25])
