"""Runs of another trainer are compared as an experiment's are."""

import math

import pandas as pd
import pytest

import llama_ablate as la

#: Losses of three seeds in issue 36 of deepearth: a control and a candidate.
PUBLISHED = {"control": (1.9202, 1.9059, 2.0013), "candidate": (1.8811, 1.8867, 1.8833)}


def table_of(losses, **columns):
    rows = [
        {"variant": name, "seed": seed, "loss": loss}
        for name, of_variant in losses.items()
        for seed, loss in enumerate(of_variant)
    ]
    return pd.DataFrame(rows).assign(**columns)


def test_published_numbers_have_the_interval_of_students_t_over_their_three_pairs():
    rows = la.compare(table_of(PUBLISHED), baseline="control").set_index("variant")
    row = rows.loc["candidate"]
    assert row["difference"] == pytest.approx(-0.0588, abs=5e-5)
    assert (row["low"], row["high"]) == pytest.approx((-0.189, 0.071), abs=5e-4)
    assert row["verdict"] == "inconclusive"


def test_the_last_step_of_a_run_counts_in_any_order():
    early = table_of({name: [9.0] * 3 for name in PUBLISHED}, step=1)
    steps = pd.concat([table_of(PUBLISHED, step=2), early])
    of_steps, of_runs = (la.compare(t, baseline="control") for t in (steps, table_of(PUBLISHED)))
    pd.testing.assert_frame_equal(of_steps, of_runs)


def test_higher_may_be_better_and_a_lost_run_decides_nothing_for_its_side():
    losses = {"base": [1.0, 1.1, 1.2, 1.3], "more": [2.0, 2.1, 2.2, 2.31]}
    words = [
        la.compare(table_of(losses), baseline="base", higher_is_better=high)["verdict"].iloc[1]
        for high in (False, True)
    ]
    assert words == ["worse", "better"]
    lost = table_of({**losses, "more": [0.0, 0.1, 0.21, math.nan]})
    assert la.compare(lost, baseline="base")["verdict"].iloc[1] == "inconclusive"


@pytest.mark.parametrize(
    ("table", "where"),
    [
        (table_of(PUBLISHED).assign(variant="candidate"), "control"),
        (pd.concat([table_of(PUBLISHED)] * 2), "seed 0: is given twice"),
        (table_of(PUBLISHED).drop(columns="seed"), "--seed COLUMN"),
        (table_of(PUBLISHED).assign(seed=range(6)), "--unpaired"),
        (table_of(PUBLISHED).assign(loss="x"), "no column has numbers"),
    ],
)
def test_a_table_that_cannot_be_compared_is_refused_with_what_to_do(table, where):
    if where == "control":
        table = table.drop_duplicates(["variant", "seed"])
    with pytest.raises(la.ConfigError) as caught:
        la.compare(table, baseline="control")
    assert where in caught.value.message
