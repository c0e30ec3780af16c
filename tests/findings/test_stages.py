"""Which runs are needed after a race or a look, and which of them a variant is reported by."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from llama_ablate.findings.values import MeasuredValues, RunRow

from llama_ablate.findings import stages, tuning
from llama_ablate.findings.frames import TableFrames, _hypothesis_labels
from tests import plans, tables

LOOKS = {"looks": [3, 6, 12]}
#: Mean and standard deviation of each arm's difference: told apart at the first look, and never.
ARMS = {"clear": (9.0, 1.0), "null": (0.0, 1.0), "other": (0.0, 1.0)}
EVERY = ["base", *ARMS]


def planned(*, ended=None, failed=(), points=("{}",), **experiment):
    """Return a table, with its looks, whose arms have finished the first `ended` of their seeds.

    Where there are points, the second is the best of every arm on the seeds of the race.
    """
    rng, seeds = np.random.default_rng(3), 12
    base = rng.normal(2, 0.5, seeds)
    losses = {"base": base}
    for arm, (mean, sd) in ARMS.items():
        noise = rng.standard_normal(seeds)
        losses[arm] = base + mean + sd * (noise - noise.mean()) / noise.std()
    runs = []
    raced = [1_000_000 + i for i in range(experiment.get("race", 0))]
    for arm, values in losses.items():
        for seed in [*raced, *range(seeds)]:
            for i, tuned in enumerate(points):
                id_ = f"{arm}-{seed}-{i}"
                done = seed >= 1_000_000 or seed < (ended or {}).get(arm, seeds)
                loss = values[seed] if seed < seeds else 2.0 + abs(i - 1)
                loss = loss if done and id_ not in failed else math.nan
                runs.append(
                    RunRow(
                        id=id_,
                        variant=arm,
                        label=arm,
                        seed=seed,
                        tuned=tuned,
                        use="race" if seed >= 1_000_000 else "reported",
                        outcome="error" if id_ in failed else "ok" if done else "pending",
                        steps_done=2,
                        numbers={"test_loss_nats": loss, "validation_loss_nats": loss},
                    )
                )
    document = plans.document(
        plans.table([plans.variant(arm) for arm in losses], []), **{"seeds": LOOKS, **experiment}
    )
    return show_runs(document, runs)


def show_runs(document, runs):
    """Return the frames of a document's table with some runs."""
    (table,) = document.tables
    return TableFrames(
        table,
        document.experiment,
        tuning.mark_trials(runs, {}),
        MeasuredValues(),
        [],
        pd.DataFrame(),
        lambda _run: [],
        _hypothesis_labels(document, table),
    )


def count_seeds(table, *uses):
    """Return how many seeds each variant has of some uses, those of a race apart."""
    own = {(run.variant, run.seed) for run in table.marked_runs if run.use in uses}
    return Counter(variant for variant, _ in own)


def needed(table):
    return count_seeds(table, "reported", "next")


def stage_of(table):
    return stages.find_stage(table.experiment, table.marked_runs)


def test_the_first_look_takes_its_seeds_of_every_arm_and_nothing_more():
    table = planned(ended=dict.fromkeys(EVERY, 0))
    assert needed(table) == dict.fromkeys(EVERY, 3)
    assert all(at.is_open and math.isnan(at.row.interval.mean) for at in table.standings.values())
    stage = stage_of(table)
    assert (stage.name, len(stage.runs), stage.most) == ("look 1 of 3", 12, 48)


def test_decided_arms_stop_and_the_baseline_goes_on_with_the_others():
    table = planned(ended=dict.fromkeys(EVERY, 3))
    assert needed(table) == {"base": 6, "clear": 3, "null": 6, "other": 6}
    assert {arm for arm, at in table.standings.items() if at.is_open} == {"null", "other"}
    stage = stage_of(table)
    assert (stage.name, len(stage.runs), stage.most) == ("look 2 of 3", 21, 39)


def test_runs_that_a_stopped_arm_has_beyond_its_look_change_nothing_of_its_row():
    full, short = planned(), planned(ended={"base": 12, "clear": 3, "null": 12, "other": 12})
    assert full.standings == short.standings
    row = full.standings["clear"].row.interval
    assert (row.n, row.alpha) == (3, pytest.approx(0.05 * 0.25 / 3))
    last = full.standings["null"].row.interval
    assert (last.n, last.alpha) == (12, pytest.approx(0.05 * 0.5 / 3))
    assert count_seeds(full, "reported") == {"base": 12, "clear": 3, "null": 12, "other": 12}


def test_a_look_is_judged_when_its_last_run_has_ended_and_by_no_more_seeds_than_its_own():
    table = planned(ended={"base": 6, "clear": 3, "null": 6, "other": 5})
    at = table.standings["null"]
    assert (at.look, at.row.interval.n) == (0, 3)
    assert needed(table) == {"base": 6, "clear": 3, "null": 6, "other": 6}
    assert count_seeds(table, "reported")["null"] == 3


def test_an_arm_whose_run_failed_holds_up_no_other():
    table = planned(ended=dict.fromkeys(EVERY, 3), failed=["other-1-0"])
    assert needed(table) == {"base": 6, "clear": 3, "null": 6, "other": 3}
    assert table.standings["other"].look == -1


def test_stated_shares_are_what_a_look_spends():
    table = planned(seeds={**LOOKS, "spend": [0.2, 0.3, 0.5]})
    assert table.standings["clear"].row.interval.alpha == pytest.approx(0.05 * 0.2 / 3)


def test_a_guard_keeps_every_variant_going():
    assert planned(guard=[GUARD]).kept_variants == {*EVERY}


GUARD = {"metric": "train_speed", "quantity": "train_speed", "worse": "lower", "worse_by": "1%"}


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        ([], set()),
        ([{"against": "base", "direction": "better"}], set()),
        ([{"against": "null", "direction": "better"}], {"clear", "null"}),
        ([{"direction": "lower", "measure": "train_s"}], {"clear", "base"}),
    ],
)
def test_a_variant_that_more_than_its_row_needs_has_all_seeds_and_its_row_stays(stated, kept):
    table = planned(hypotheses=[{"variant": "clear", **one} for one in stated])
    assert table.kept_variants == kept
    assert needed(table)["clear"] == (12 if "clear" in kept else 3)
    assert count_seeds(table, "reported")["clear"] == 3
    assert table.standings["clear"].row.interval.n == 3


RACE = {"tune": {"lr": [0.1, 0.2, 0.3]}, "race": 2}
POINTS = ['{"lr": 0.1}', '{"lr": 0.2}', '{"lr": 0.3}']


def test_a_race_comes_first_and_then_each_variant_runs_at_its_best_point_alone():
    nothing = dict.fromkeys(EVERY, 0)
    table = planned(points=POINTS, ended=nothing, **RACE)
    waiting = tables.changed(table.planned, lambda run: run.use == "race", outcome="pending")
    table = replace(table, planned=waiting)
    assert {run.use for run in table.marked_runs if run.is_needed} == {"race"}
    stage = stage_of(table)
    assert (stage.name, len(stage.runs), stage.most) == ("race", 24, 24 + 48)

    table = planned(points=POINTS, ended=nothing, **RACE)
    after = [run for run in table.marked_runs if run.is_needed and run.use != "race"]
    assert {run.point for run in after} == {"lr 0.2"}
    assert stage_of(table).name == "look 1 of 3"
    table = planned(points=POINTS, ended=nothing, **RACE, seeds=12)
    assert needed(table) == dict.fromkeys(EVERY, 12)
    assert stage_of(table).name == "after the race"


def test_the_seeds_of_the_race_choose_and_are_not_reported():
    table = planned(points=POINTS, **RACE)
    # On the reported seeds the first point would be best: they have no say.
    first = tables.changed(
        table.planned,
        lambda run: run.use != "race" and run.tuned == POINTS[0],
        {"validation_loss_nats": 0.0},
    )
    table = replace(table, planned=first)
    assert {run.point for run in table.marked_runs if run.use == "reported"} == {"lr 0.2"}
