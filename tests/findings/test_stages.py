"""Which runs are needed after a race or a look, and which of them a variant is reported by."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from llama_ablate.findings import stages, tuning
from llama_ablate.findings.frames import _hypothesis_labels
from llama_ablate.findings.stages import find_differences, mark_runs
from llama_ablate.findings.table import Table
from tests import plans, tables
from tests.metric_rows import make_values
from tests.simulations import draw_unequal, follow_looks

LOOKS = {"looks": [3, 6, 12]}
#: Mean and standard deviation of each arm's difference: told apart at the first look, and never.
ARMS = {"clear": (9.0, 1.0), "null": (0.0, 1.0), "other": (0.0, 1.0)}
EVERY = ["base", *ARMS]
RACED = 1_000_000


def draw_arms():
    """Draw losses of twelve seeds, whose differences have just the means and deviations of arms."""
    generator = np.random.default_rng(3)
    losses = {"base": generator.normal(2, 0.5, 12)}
    for arm, (mean, sd) in ARMS.items():
        noise = generator.standard_normal(12)
        losses[arm] = losses["base"] + mean + sd * (noise - noise.mean()) / noise.std()
    return losses


def planned(*, losses=None, ended=None, failed=(), points=("{}",), **experiment):
    """Return a table, with its looks, whose arms have finished the first `ended` of their seeds.

    Where there are points, the second is the best of every arm on the seeds of the race.
    """
    losses, raced = losses or draw_arms(), [RACED + i for i in range(experiment.get("race", 0))]
    runs = []
    for arm, values in losses.items():
        for seed in [*raced, *range(len(values))]:
            is_raced = seed >= RACED
            done = is_raced or seed < (ended or {}).get(arm, len(values))
            for i, tuned in enumerate(points):
                id_ = f"{arm}-{seed}-{i}"
                loss = 2.0 + abs(i - 1) if is_raced else values[seed]
                loss = loss if done and id_ not in failed else math.nan
                runs.append(
                    {
                        "id": id_,
                        "variant": arm,
                        "label": arm,
                        "seed": seed,
                        "tuned": tuned,
                        "baseline": arm == "base",
                        "use": "race" if is_raced else "reported",
                        "outcome": "error" if id_ in failed else "ok" if done else "pending",
                        "test_loss_nats": loss,
                        "validation_loss_nats": loss,
                    }
                )
    document = plans.document(
        plans.table([plans.variant(arm) for arm in losses], []), **{"seeds": LOOKS, **experiment}
    )
    (table,) = document.tables
    return Table(
        table,
        document.experiment,
        tuning.mark_trials(tables.run_rows(runs), {}),
        make_values(),
        tables.NO_ATTEMPTS,
        pd.DataFrame(),
        lambda _run: [],
        _hypothesis_labels(document, table),
    )


def count_seeds(table, *uses):
    """Return how many seeds each variant has of some uses."""
    runs = mark_runs(table)
    own = runs.loc[runs["use"].isin(uses), ["variant", "seed"]].drop_duplicates()
    return Counter(own["variant"])


def needed(table):
    return count_seeds(table, "reported", "next")


def stage_of(table):
    stage = stages.find_stage([table])
    return stage.name, len(stage.runs), stage.most


def test_the_first_look_takes_its_seeds_of_every_arm_and_nothing_more():
    table = planned(ended=dict.fromkeys(EVERY, 0))
    rows = find_differences(table)
    assert needed(table) == dict.fromkeys(EVERY, 3)
    assert rows["is_open"].all()
    assert rows["mean"].isna().all()
    assert stage_of(table) == ("look 1 of 3", 12, 48)


def test_decided_arms_stop_and_the_baseline_goes_on_with_the_others():
    table = planned(ended=dict.fromkeys(EVERY, 3))
    assert needed(table) == {"base": 6, "clear": 3, "null": 6, "other": 6}
    assert find_differences(table)["is_open"].to_dict() == {
        **dict.fromkeys(ARMS, True),
        "clear": False,
    }
    assert stage_of(table) == ("look 2 of 3", 21, 39)


def test_runs_that_a_stopped_arm_has_beyond_its_look_change_nothing_of_its_row():
    full, short = planned(), planned(ended={"base": 12, "clear": 3, "null": 12, "other": 12})
    rows = find_differences(full)
    pd.testing.assert_frame_equal(rows, find_differences(short))
    assert rows["n"].to_dict() == {"clear": 3, "null": 12, "other": 12}
    alphas = [0.05 * 0.25 / 3, 0.05 * 0.5 / 3, 0.05 * 0.5 / 3]
    assert rows["alpha"].tolist() == pytest.approx(alphas)
    assert count_seeds(full, "reported") == {"base": 12, "clear": 3, "null": 12, "other": 12}


def test_a_look_is_judged_when_its_last_run_has_ended_and_by_no_more_seeds_than_its_own():
    table = planned(ended={"base": 6, "clear": 3, "null": 6, "other": 5})
    row = find_differences(table).loc["null"]
    assert (row["look"], row["n"]) == (0, 3)
    assert needed(table) == {"base": 6, "clear": 3, "null": 6, "other": 6}
    assert count_seeds(table, "reported")["null"] == 3


def test_an_arm_whose_run_failed_holds_up_no_other():
    table = planned(ended=dict.fromkeys(EVERY, 3), failed=["other-1-0"])
    assert needed(table) == {"base": 6, "clear": 3, "null": 6, "other": 3}
    assert find_differences(table)["look"].to_dict() == {"clear": 0, "null": 0, "other": -1}


def test_stated_shares_are_what_a_look_spends():
    rows = find_differences(planned(seeds={**LOOKS, "spend": [0.2, 0.3, 0.5]}))
    assert rows.loc["clear", "alpha"] == pytest.approx(0.05 * 0.2 / 3)


@pytest.mark.parametrize("seed", range(6))
def test_looks_of_a_table_are_those_of_the_simulated_rule(seed):
    """Arms of unequal noise, some of which are stopped at each of the looks."""
    (differences,), (sd,) = draw_unequal(1, 6, 12, r=0.3, seed=seed)
    differences = differences + sd * np.array([0.0, 0.5, 1.0, 2.0, 4.0, -6.0])[:, None]
    base = np.random.default_rng(seed).normal(2.0, 1.0, 12)
    losses = {"base": base, **{f"arm{i}": base + own for i, own in enumerate(differences)}}
    rows, (at,) = follow_looks(differences[None], LOOKS["looks"])
    found = find_differences(planned(losses=losses))
    assert found["look"].tolist() == at.tolist()
    for name in ("mean", "low", "high", "alpha", "n"):
        assert found[name].to_numpy() == pytest.approx(rows[name][0])
    assert not found["is_open"].any()


GUARD = {"metric": "train_speed", "quantity": "train_speed", "worse": "lower", "worse_by": "1%"}


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        ({}, False),
        ({"guard": [GUARD]}, True),
        ({"hypotheses": [{"against": "base", "direction": "better"}]}, False),
        ({"hypotheses": [{"against": "null", "direction": "better"}]}, True),
        ({"hypotheses": [{"direction": "lower", "measure": "train_s"}]}, True),
    ],
)
def test_a_variant_that_more_than_its_row_needs_has_all_seeds_and_its_row_stays(stated, kept):
    asked = [{"variant": "clear", **one} for one in stated.get("hypotheses", [])]
    table = planned(**{**stated, "hypotheses": asked})
    assert needed(table)["clear"] == (12 if kept else 3)
    assert count_seeds(table, "reported")["clear"] == 3
    assert find_differences(table).loc["clear", "n"] == 3


RACE = {"tune": {"lr": [0.1, 0.2, 0.3]}, "race": 2}
POINTS = ['{"lr": 0.1}', '{"lr": 0.2}', '{"lr": 0.3}']


def test_a_race_comes_first_and_then_each_variant_runs_at_its_best_point_alone():
    table = planned(points=POINTS, ended=dict.fromkeys(EVERY, 0), **RACE)
    waiting = tables.changed(table.planned, lambda run: run.use == "race", outcome="pending")
    raced = replace(table, planned=waiting)
    assert {*stages.find_runs(raced)["use"]} == {"race"}
    assert stage_of(raced) == ("race", 24, 24 + 48)

    runs = stages.find_runs(table)
    assert {*runs.loc[runs["use"].ne("race"), "point"]} == {"lr 0.2"}
    assert stage_of(table)[0] == "look 1 of 3"
    table = planned(points=POINTS, ended=dict.fromkeys(EVERY, 0), **RACE, seeds=12)
    assert needed(table) == dict.fromkeys(EVERY, 12)
    assert stage_of(table)[0] == "after the race"


def test_the_seeds_of_the_race_choose_and_are_not_reported():
    table = planned(points=POINTS, **RACE)
    # On the reported seeds the first point would be best: they have no say.
    first = tables.changed(
        table.planned,
        lambda run: run.use != "race" and run.tuned == POINTS[0],
        {"validation_loss_nats": 0.0},
    )
    reported = stages.find_reported(replace(table, planned=first))
    assert {*reported["point"]} == {"lr 0.2"}
    assert reported["seed"].max() < RACED
