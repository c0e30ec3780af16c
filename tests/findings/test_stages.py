"""Which runs are needed after a look, and which of them a variant is reported by."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from llama_ablate.findings import stages
from llama_ablate.findings.frames import _hypothesis_labels
from llama_ablate.findings.stages import find_differences, mark_runs
from tests import tables
from tests.simulations import draw_unequal, follow_looks

LOOKS = {"looks": [3, 6, 12]}
#: Mean and standard deviation of each arm's difference: told apart at the first look, and never.
ARMS = {"clear": (9.0, 1.0), "null": (0.0, 1.0), "other": (0.0, 1.0)}
EVERY = ["base", *ARMS]


def draw_arms():
    """Draw losses of twelve seeds, whose differences have just the means and deviations of arms."""
    generator = np.random.default_rng(3)
    losses = {"base": generator.normal(2, 0.5, 12)}
    for arm, (mean, sd) in ARMS.items():
        noise = generator.standard_normal(12)
        losses[arm] = losses["base"] + mean + sd * (noise - noise.mean()) / noise.std()
    return losses


def planned(*, losses=None, ended=None, failed=(), **experiment):
    """Return a table with looks, whose arms have finished the first `ended` of their seeds."""
    own = {arm: [*values] for arm, values in (losses or draw_arms()).items()}
    for arm, first in (ended or {}).items():
        own[arm][first:] = ["pending"] * len(own[arm][first:])
    for arm, seed in failed:
        own[arm][seed] = "error"
    made = tables.frames({"": own}, **{"seeds": LOOKS, **experiment})
    return replace(made.table, asked=_hypothesis_labels(made.plan, made.table.plan))


def rows_of(table):
    """Return the differences of a table by the labels of its variants."""
    labels = {variant.id: variant.label for variant in table.plan.variants}
    return find_differences(table).rename(index=labels)


def count_seeds(table, *uses):
    """Return how many seeds each variant has of some uses."""
    runs = mark_runs(table)
    own = runs.loc[runs["use"].isin(uses), ["label", "seed"]].drop_duplicates()
    return Counter(own["label"])


def needed(table):
    return count_seeds(table, "reported", "next")


def stage_of(table):
    stage = stages.find_stage([table])
    return stage.name, len(stage.runs), stage.most


def test_the_first_look_takes_its_seeds_of_every_arm_and_nothing_more():
    table = planned(ended=dict.fromkeys(EVERY, 0))
    rows = rows_of(table)
    assert needed(table) == dict.fromkeys(EVERY, 3)
    assert rows["is_open"].all()
    assert rows["mean"].isna().all()
    assert stage_of(table) == ("look 1 of 3", 12, 48)


def test_decided_arms_stop_and_the_baseline_goes_on_with_the_others():
    table = planned(ended=dict.fromkeys(EVERY, 3))
    assert needed(table) == {"base": 6, "clear": 3, "null": 6, "other": 6}
    assert rows_of(table)["is_open"].to_dict() == {
        **dict.fromkeys(ARMS, True),
        "clear": False,
    }
    assert stage_of(table) == ("look 2 of 3", 21, 39)


def test_runs_that_a_stopped_arm_has_beyond_its_look_change_nothing_of_its_row():
    full, short = planned(), planned(ended={"base": 12, "clear": 3, "null": 12, "other": 12})
    rows = rows_of(full)
    pd.testing.assert_frame_equal(rows, rows_of(short))
    assert rows["n"].to_dict() == {"clear": 3, "null": 12, "other": 12}
    alphas = [0.05 * 0.25 / 3, 0.05 * 0.5 / 3, 0.05 * 0.5 / 3]
    assert rows["alpha"].tolist() == pytest.approx(alphas)
    assert count_seeds(full, "reported") == {"base": 12, "clear": 3, "null": 12, "other": 12}


def test_a_look_is_judged_when_its_last_run_has_ended_and_by_no_more_seeds_than_its_own():
    table = planned(ended={"base": 6, "clear": 3, "null": 6, "other": 5})
    row = rows_of(table).loc["null"]
    assert (row["look"], row["n"]) == (0, 3)
    assert needed(table) == {"base": 6, "clear": 3, "null": 6, "other": 6}
    assert count_seeds(table, "reported")["null"] == 3


def test_an_arm_whose_run_failed_holds_up_no_other():
    table = planned(ended=dict.fromkeys(EVERY, 3), failed=[("other", 1)])
    assert needed(table) == {"base": 6, "clear": 3, "null": 6, "other": 3}
    assert rows_of(table)["look"].to_dict() == {"clear": 0, "null": 0, "other": -1}


def test_stated_shares_are_what_a_look_spends():
    rows = rows_of(planned(seeds={**LOOKS, "spend": [0.2, 0.3, 0.5]}))
    assert rows.loc["clear", "alpha"] == pytest.approx(0.05 * 0.2 / 3)


@pytest.mark.parametrize("seed", range(6))
def test_looks_of_a_table_are_those_of_the_simulated_rule(seed):
    """Arms of unequal noise, some of which are stopped at each of the looks."""
    (differences,), (sd,) = draw_unequal(1, 6, 12, r=0.3, seed=seed)
    differences = differences + sd * np.array([0.0, 0.5, 1.0, 2.0, 4.0, -6.0])[:, None]
    base = np.random.default_rng(seed).normal(2.0, 1.0, 12)
    losses = {"base": base, **{f"arm{i}": base + own for i, own in enumerate(differences)}}
    rows, (at,) = follow_looks(differences[None], LOOKS["looks"])
    found = rows_of(planned(losses=losses))
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
    assert rows_of(table).loc["clear", "n"] == 3
