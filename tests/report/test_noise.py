"""The memory of noise, from the committed packs, and what plans take of it."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llama_ablate.config import experiment
from llama_ablate.errors import ConfigError
from llama_ablate.evidence import StandardError, simultaneous
from llama_ablate.evidence.noise import NoiseMemory
from llama_ablate.findings import contrasts, noise, power
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.rows import frame as framed
from llama_ablate.results import Results, Store
from tests.in_process import run_in_process

REFERENCE = Path(__file__).parents[2] / "results/reference"
PACKS = sorted(file.parent for file in REFERENCE.glob("**/results.tar.xz"))


@pytest.fixture(scope="module")
def packs():
    return [Frames.of(Results.open(pack)) for pack in PACKS]


def test_the_shipped_table_is_what_the_packs_show(packs):
    assert noise.seen(packs).written() == NoiseMemory.shipped().written()


def others(frames, packs):
    """Return what the packs have seen that share no run of a baseline with one."""

    def bases(one):
        return {r.id for t in one.plan.tables for r in t.runs if r.variant == t.baseline.id}

    first = next(one for one in packs if bases(one) & bases(frames))
    return NoiseMemory.shipped().without(first.plan.experiment.name)


def test_of_each_experiment_left_out_93_of_100_intervals_of_few_seeds_hold_the_others_mean(packs):
    """Of every row with seeds enough: the mean of the seeds that an interval has not seen.

    Two seeds are then 2.0 times as wide as five, where without the memory they are 5.9 times.
    """
    hits, widths = {}, {}
    for frames in packs:
        kept = others(frames, packs)
        for table in frames.tables:
            rows = _differences(table)
            most = min(map(len, rows.values()), default=0)
            expected = {
                label: found
                for label in rows
                if (found := kept.expected(*_of(table, label))) is not None
            }
            for seeds in (2, 3, 5):
                for few in itertools.islice(itertools.combinations(range(most), seeds), 40):
                    rest = [i for i in range(most) if i not in few]
                    if not rest:
                        continue
                    found = simultaneous(
                        {label: list(own[[*few]]) for label, own in rows.items()},
                        expected=expected,
                        family=1,
                    )
                    for label, own in rows.items():
                        half = (found[label].high - found[label].low) / 2
                        apart = abs(own[[*few]].mean() - own[rest].mean())
                        key = (seeds, frames.root, table.plan.name, label)
                        reach = half * math.sqrt(1 + seeds / len(rest))
                        hits.setdefault(key, []).append(apart <= reach)
                        widths.setdefault(key, []).append(half / own.std(ddof=1))
    middle = {}
    for seeds in (2, 3, 5):
        keys = [key for key in hits if key[0] == seeds]
        assert len(keys) > 20
        assert np.mean([np.mean(hits[key]) for key in keys]) >= 0.93, seeds
        middle[seeds] = np.median([np.median(widths[key]) for key in keys])
    assert middle[2] <= 3 * middle[5]


def _differences(table):
    """Return the paired differences of each row with four seeds or more, in nats, of real text."""
    if table.unit.name != "nats" or noise.corpus(table.plan) in noise.MADE:
        return {}
    base = table.losses[table.plan.baseline.id]
    rows = {}
    for variant in table.plan.variants:
        own = table.losses[variant.id]
        shared = sorted(own.keys() & base.keys())
        if not (variant.baseline or variant.role) and len(shared) >= 4:
            rows[variant.label] = np.array([own[seed] - base[seed] for seed in shared])
    return rows


def _of(table, label):
    plan = table.plan
    variant = next(v for v in plan.variants if v.label == label)
    return plan.kind(variant), plan.baseline.non_embedding, plan.tokens_per_run


def _halves(table):
    effects = contrasts.effects(table)
    if effects:
        return {" x ".join(e.factors): (e.interval.high - e.interval.low) / 2 for e in effects}
    return {
        v.label: (row.high - row.low) / 2
        for v in table.plan.variants
        if not (v.baseline or v.role) and (row := table.intervals[v.id]).n > 1
    }


def _within(known, plan, table):
    promised = power.promise(plan.model_copy(update={"tables": [table.plan]}), known, 0.02)
    halves = _halves(table)
    return [
        row["half_low"] <= halves[row["row"]] <= row["half_high"]
        for row in promised.rows
        if row["row"] in halves
    ]


@pytest.mark.full
def test_8_of_10_half_widths_lie_in_the_range_that_earlier_experiments_promise(packs):
    within = []
    for frames in packs:
        if len(frames.plan.experiment.looks) > 1:
            continue
        kept = others(frames, packs)
        plan = noise.expecting(frames.plan, kept)
        for table, planned in zip(frames.tables, plan.tables, strict=True):
            if known := power.Known.of_memory(planned, kept):
                within += _within(known, plan, replace(table, plan=planned))
    assert len(within) > 100
    assert np.mean(within) >= 0.8


@pytest.mark.parametrize(
    ("pilot", "later"),
    [
        ("moe-small", "moe-seconds"),
        ("prose-small", "prose"),
        pytest.param(
            "claims/e18-isotime-pareto", "claims/e16-leave-one-out-stack", marks=pytest.mark.full
        ),
        ("claims/e16-leave-one-out-stack", "claims/e18-isotime-pareto"),
    ],
)
def test_8_of_10_half_widths_lie_in_the_range_that_a_pilot_promises(pilot, later):
    first, second = (Frames.of(Results.open(REFERENCE / name)) for name in (pilot, later))
    kept = NoiseMemory.shipped().without(second.plan.experiment.name)
    within = _within(power.Known.of_pilot(first.table, kept, pilot), second.plan, second.table)
    assert np.mean(within) >= 0.8


def test_what_a_variant_changes_is_named_without_what_matching_changed(packs):
    of = {Path(frames.root).name: frames.table.plan for frames in packs}
    kinds = {
        v.label: of["e15-kv-heads-quality"].kind(v) for v in of["e15-kv-heads-quality"].variants
    }
    assert kinds == {
        "mha (baseline)": "other",
        "gqa-kv_heads=4": "attention",
        "gqa": "attention",
        "mqa": "attention",
        "A/A": "other",
        "positive control": "train",
    }


def planned(experiment_file, results, **keys):
    file = experiment_file("{axes: {norm: [layernorm]}}", **{"controls": "{aa: none}", **keys})
    assert run_in_process(file, results) == 0
    return Store.open(results / "tiny")


def test_what_is_expected_is_written_before_the_first_run_and_never_changes(
    experiment_file, tmp_path, monkeypatch
):
    monkeypatch.setattr(noise.NoiseMemory, "expected", lambda *_: StandardError(0.01, 2.5))
    first = planned(experiment_file, tmp_path)
    told = {v.label: v.noise for v in first.plan.tables[0].variants}
    assert told["baseline"] is None
    assert told["A/A"] is None
    assert (told["layernorm"].sd, told["layernorm"].df) == (0.01, 2.5)
    row = framed(Frames.of(Results(first)).table.comparison).set_index("label").loc["layernorm"]
    assert row["pooled"]
    monkeypatch.setattr(noise.NoiseMemory, "expected", lambda *_: StandardError(9.0, 50.0))
    later = planned(experiment_file, tmp_path, seeds="3", margin="0.1 nats")
    assert {v.label: v.noise for v in later.plan.tables[0].variants} == told
    off = planned(experiment_file, tmp_path / "off", noise="none")
    assert not any(v.noise for v in off.plan.tables[0].variants)


def test_a_folder_of_results_is_a_memory_and_too_few_are_refused(experiment_file, tmp_path):
    source = experiment.load(experiment_file(noise=str(REFERENCE)))
    kept = noise.stated(source)
    assert 5 <= kept.experiments < NoiseMemory.shipped().experiments
    for name, count in ((REFERENCE / "claims" / "e07-init", 0), (tmp_path / "nowhere", 0)):
        source = experiment.load(experiment_file(noise=str(name)))
        with pytest.raises(ConfigError, match=f"has {count} finished experiments") as told:
            noise.stated(source)
        assert "noise" in str(told.value)
    assert noise.stated(experiment.load(experiment_file(noise="none"))) is None
    shipped = noise.stated(experiment.load(experiment_file()))
    assert shipped.written() == NoiseMemory.shipped().written()


def test_controls_and_the_same_runs_again_are_seen_once(packs):
    of = {Path(frames.root).name: frames for frames in packs}
    e18 = noise.seen([of["e18-isotime-pareto"]]).rows
    assert [row.kind for row in e18] == ["other"]
    twice = noise.seen([of["moe-small"], of["moe-seconds"]])
    assert {row.experiment for row in twice.rows} == {"moe_small"}
