"""Which runs are needed after a race or a look, and which of them a variant is reported by."""

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from llama_ablate.findings import comparison, stages, tuning
from llama_ablate.findings.values import MeasuredValues, RunRow
from tests import plans, tables

LOOKS = {"looks": [3, 6, 12]}
#: Mean and standard deviation of each arm's difference: told apart at the first look, and never.
ARMS = {"clear": (1.0, 0.01), "null": (0.0, 1.0), "other": (0.0, 1.0)}


def planned(arms=ARMS, *, seeds=12, ended=None, failed=(), points=(), race=0):
    """Return a table and its planned runs; of each arm the first `ended` seeds have finished.

    Where there are points, the second is the best of every arm on the seeds of the race.
    """
    rng = np.random.default_rng(3)
    base = rng.normal(2, 0.5, seeds)
    losses = {"base": base}
    for arm, (mean, sd) in arms.items():
        noise = rng.standard_normal(seeds)
        losses[arm] = base + mean + sd * (noise - noise.mean()) / noise.std()
    runs = []
    raced = [1_000_000 + i for i in range(race)]
    for arm, values in losses.items():
        for seed in [*raced, *range(seeds)]:
            for i, tuned in enumerate(points or [""]):
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
                        point=tuned,
                        race=seed >= 1_000_000,
                        outcome="error" if id_ in failed else "ok" if done else "pending",
                        steps_done=2,
                        numbers={"test_loss_nats": loss, "validation_loss_nats": loss},
                    )
                )
    table = plans.table([plans.variant(arm) for arm in losses], [])
    return table, tuning.at_best(runs, {})


def marked(table, runs, quantities=None, **experiment):
    experiment = plans.document(table, **{"seeds": LOOKS, **experiment}).experiment
    quantities = quantities or {}
    stands = stages.stand(table, experiment, runs, None, quantities, {})
    return stands, stages.mark(table, experiment, runs, stands, quantities), experiment


def seeds_of(marks, mark):
    """Return how many seeds of each variant bear a mark, those of a race apart."""
    own = {(run.variant, run.seed) for run in marks if getattr(run, mark) and not run.race}
    return Counter(variant for variant, _ in own)


def test_the_first_look_takes_its_seeds_of_every_arm_and_nothing_more():
    table, runs = planned(ended=dict.fromkeys(["base", *ARMS], 0))
    stands, marks, experiment = marked(table, runs)
    assert seeds_of(marks, "needed") == dict.fromkeys(["base", *ARMS], 3)
    assert all(at.is_open and math.isnan(at.row.mean) for at in stands.values())
    stage = stages.stage(experiment, marks)
    assert (stage.name, len(stage.runs), stage.most) == ("look 1 of 3", 12, 48)


def test_decided_arms_stop_and_the_baseline_goes_on_with_the_others():
    table, runs = planned(ended=dict.fromkeys(["base", *ARMS], 3))
    stands, marks, experiment = marked(table, runs)
    assert seeds_of(marks, "needed") == {"base": 6, "clear": 3, "null": 6, "other": 6}
    assert {arm for arm, at in stands.items() if at.is_open} == {"null", "other"}
    stage = stages.stage(experiment, marks)
    assert (stage.name, len(stage.runs), stage.most) == ("look 2 of 3", 21, 39)


def test_runs_that_a_stopped_arm_has_beyond_its_look_change_nothing_of_its_row():
    table, full = planned()
    _, short = planned(ended={"base": 12, "clear": 3, "null": 12, "other": 12})
    (of_full, marks, _), (of_short, _, _) = marked(table, full), marked(table, short)
    assert of_full == of_short
    assert of_full["clear"].row.n == 3
    assert of_full["clear"].row.alpha == pytest.approx(0.05 * 0.25 / 3)
    # What six seeds show leaves the others hardly any chance of being decided by twelve.
    assert of_full["null"].row.n == 6
    assert of_full["null"].row.alpha == pytest.approx(0.05 * 0.25 / 3)
    assert seeds_of(marks, "chosen") == {"base": 6, "clear": 3, "null": 6, "other": 6}
    going_on = {"q": stages.Quantity(frozenset({"null"}), lambda look: look > 1, (0.25,) * 3)}
    _, marks, _ = marked(table, full, going_on)
    assert seeds_of(marks, "needed") == {"base": 12, "clear": 3, "null": 12, "other": 6}
    assert seeds_of(marks, "chosen")["null"] == 6


def test_a_look_is_judged_when_its_last_run_has_ended_and_by_no_more_seeds_than_its_own():
    table, runs = planned(ended={"base": 6, "clear": 3, "null": 6, "other": 5})
    stands, marks, _ = marked(table, runs)
    assert (stands["null"].look, stands["null"].row.n) == (0, 3)
    assert seeds_of(marks, "needed") == {"base": 6, "clear": 3, "null": 6, "other": 6}
    assert seeds_of(marks, "chosen")["null"] == 3


def test_an_arm_whose_run_failed_holds_up_no_other():
    table, runs = planned(ended=dict.fromkeys(["base", *ARMS], 3), failed=["other-1-0"])
    stands, marks, _ = marked(table, runs)
    assert seeds_of(marks, "needed") == {"base": 6, "clear": 3, "null": 6, "other": 3}
    assert stands["other"].look == -1


def test_stated_shares_are_what_a_look_spends():
    table, runs = planned()
    stands, _, _ = marked(table, runs, seeds={**LOOKS, "spend": [0.2, 0.3, 0.5]})
    assert stands["clear"].row.alpha == pytest.approx(0.05 * 0.2 / 3)


def test_a_quantity_keeps_its_variants_going_until_it_is_decided_and_no_row_waits_for_it():
    def of(decided_at):
        shares = (0.25, 0.25, 0.5)
        arms = frozenset({"clear", "null"})
        return {"q": stages.Quantity(arms, lambda look: look >= decided_at, shares)}

    table, runs = planned(ended=dict.fromkeys(["base", *ARMS], 3))
    stands, marks, _ = marked(table, runs, of(1))
    assert seeds_of(marks, "needed")["clear"] == 6
    assert seeds_of(marks, "chosen")["clear"] == 3
    assert stands["q"].is_open
    assert not stands["clear"].is_open
    stands, marks, _ = marked(table, runs, of(0))
    assert seeds_of(marks, "needed")["clear"] == 3
    assert (stands["q"].look, stands["q"].is_open) == (0, False)
    table, runs = planned()
    for quantity, look in ((of(1), 1), (of(9), 2)):
        stands, marks, _ = marked(table, runs, quantity)
        assert (stands["q"].look, stands["q"].is_open) == (look, False)
        assert seeds_of(marks, "needed")["clear"] == (3, 6, 12)[look]
        assert (stands["clear"].row.n, stands["clear"].row.alpha) == (
            3,
            pytest.approx(0.05 * 0.25 / 3),
        )


def test_which_hypotheses_are_quantities_of_their_own():
    table, runs = planned(ended={})
    runs = tables.changed(runs, lambda _: True, {"train_loss_nats": 1.0})

    def arms(**entry):
        plan = plans.document(
            table,
            seeds=LOOKS,
            hypotheses=[{"variant": "clear", "direction": "better", **entry}],
        )
        frames = SimpleNamespace(
            plan=table,
            experiment=plan.experiment,
            planned=runs,
            loss="test_loss_nats",
            metrics=MeasuredValues(),
        )
        found = estimands.quantities(frames, estimands.asked(plan, table), lambda _: frames)
        return set().union(*(quantity.arms for quantity in found.values()))

    assert arms(measure="test_loss_nats", direction="lower") == set()
    assert arms(against="clear", variant="base") == set()
    assert arms() == arms(against="base") == arms(direction="better", margin="0.1 nats") == set()
    assert arms(against="null") == {"clear", "null"}
    assert arms(measure="train_loss_nats", direction="lower") == {"clear", "base"}
    assert arms(measure="train_tokens_per_s", direction="lower") == set()  # measured, and of no run


RACE = {"tune": {"lr": [0.1, 0.2, 0.3]}, "race": 2}
POINTS = ["lr 0.1", "lr 0.2", "lr 0.3"]


def test_a_race_comes_first_and_then_each_variant_runs_at_its_best_point_alone():
    table, runs = planned(points=POINTS, race=2, ended=dict.fromkeys(["base", *ARMS], 0))
    runs = tables.changed(runs, lambda run: run.race, outcome="pending")
    _, marks, experiment = marked(table, runs, **RACE)
    assert {run.race for run in marks if run.needed} == {True}
    stage = stages.stage(experiment, marks)
    assert (stage.name, len(stage.runs), stage.most) == ("race", 24, 24 + 48)

    table, runs = planned(points=POINTS, race=2, ended=dict.fromkeys(["base", *ARMS], 0))
    _, marks, experiment = marked(table, runs, **RACE)
    after = [run for run in marks if run.needed and not run.race]
    assert {run.point for run in after} == {"lr 0.2"}
    assert len(after) == 12
    assert stages.stage(experiment, marks).name == "look 1 of 3"
    _, marks, experiment = marked(table, runs, **RACE, seeds=12)
    assert sum(run.needed and not run.race for run in marks) == 48
    assert stages.stage(experiment, marks).name == "after the race"


def test_the_seeds_of_the_race_choose_and_are_not_reported():
    table, runs = planned(points=POINTS, race=2)
    # On the reported seeds the first point would be best: they have no say.
    runs = tables.changed(
        runs, lambda run: not run.race and run.tuned == POINTS[0], {"validation_loss_nats": 0.0}
    )
    runs = tuning.at_best(runs, {})
    _, marks, _ = marked(table, runs, **RACE)
    assert {(run.point, run.race) for run in marks if run.chosen} == {("lr 0.2", False)}


def test_a_point_that_diverged_in_the_race_does_not_win():
    _, runs = planned(points=POINTS, race=2)
    lost = {"validation_loss_nats": math.nan}
    runs = tables.changed(runs, lambda r: r.id == "null-1000001-1", lost, outcome="diverged")
    best = {(run.variant, run.tuned) for run in tuning.at_best(runs, {}) if run.best}
    assert best > {("null", "lr 0.1"), ("clear", "lr 0.2")}
    assert not best & {("null", "lr 0.2"), ("clear", "lr 0.1")}


def test_the_fewest_and_the_most_runs_of_a_plan():
    runs = [
        plans.run(f"{v}{s}x{10 * p:.0f}", v, s, tuned={"lr": p})
        for v in ("a", "b")
        for s in [1_000_000, 1_000_001, *range(12)]
        for p in (0.1, 0.2, 0.3)
    ]
    plan = plans.document(
        plans.table([plans.variant("a"), plans.variant("b")], runs), seeds=LOOKS, **RACE
    )
    fewest, most = plan.run_bounds
    assert (len(fewest), len(most)) == (12 + 6, 12 + 24)
    assert fewest < most
    plain = plans.of_runs("0", "1", "2")
    assert plain.run_bounds == ({"0", "1", "2"}, {"0", "1", "2"})


def test_a_variant_that_was_decided_early_can_win_and_one_that_is_pending_cannot():
    (made,) = tables.frames({"": {"base": [2.0]}}).table.comparison
    base = replace(made, n=12, looks=3)
    # On its three seeds the early one has a higher loss than the late one on all twelve.
    words = {"early": (3, 1.9, -0.3, "better"), "late": (12, 1.8, -0.2, "inconclusive")}
    words["open"] = (6, 1.0, -1.0, "pending")
    early, *others = (
        replace(base, label=label, baseline=False, n=n, loss=loss, difference=by, verdict=word)
        for label, (n, loss, by, word) in words.items()
    )

    def winners(*rows):
        return [row.winner for row in comparison.winners({"one": rows, "two": rows})]

    assert winners(base, early, *others) == ["early"] * 2
    # Without looks three seeds are fewer than the others'.
    assert winners(*(replace(row, looks=1) for row in (base, early, *others))) == ["late"] * 2
    # The mean of those that trained wins nothing.
    assert winners(base, replace(early, lost=1), *others) == ["late"] * 2
    assert winners(base, replace(early, verdict="too short"), *others) == ["late"] * 2


def test_an_arm_whose_guard_later_seeds_may_decide_goes_on_whatever_its_loss_says():
    table, runs = planned()
    experiment = plans.document(table, seeds=LOOKS).experiment
    alone = stages.stand(table, experiment, runs, None, {}, {})
    assert (alone["clear"].look, alone["clear"].is_open) == (0, False)
    at = stages.stand(
        table, experiment, runs, None, {}, {}, lambda look: {"clear"} if look == 0 else ()
    )
    assert (at["clear"].look, at["clear"].is_open) == (1, False)
    ended = {"base": 3, "clear": 3, "null": 3, "other": 3}
    table, runs = planned(ended=ended)
    at = stages.stand(table, experiment, runs, None, {}, {}, lambda _: {"clear"})
    assert (at["clear"].needs, at["clear"].is_open) == (1, True)
    table, runs = planned()
    last = stages.stand(table, experiment, runs, None, {}, {}, lambda _: {"clear"})
    assert (last["clear"].look, last["clear"].is_open) == (2, False)
