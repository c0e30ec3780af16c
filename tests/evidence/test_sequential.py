"""Looks: what each may spend, where arms stand, and what it does to errors, power and runs."""

import numpy as np
import pytest

from llama_ablate.evidence import simultaneous, verdict
from llama_ablate.evidence.sequential import spending, standings

LOOKS = (3, 6, 12)
#: Effects in standard deviations of the paired differences, like those between activations.
EFFECTS = (1.3, 1.6, 2.0, 2.5, 3.0, 4.0, 5.0)


def test_a_look_spends_the_share_of_the_seeds_that_it_adds():
    assert spending(LOOKS) == (0.25, 0.25, 0.5)
    assert spending((7,)) == (1.0,)
    for looks in ((2, 3, 4), (3, 4, 6, 8, 12), tuple(range(2, 40))):
        assert sum(spending(looks)) == pytest.approx(1)
        assert min(spending(looks)) > 0


def told(decided_at, ended=None):
    """Return where arms stand that are decided at a look, and the looks that each was judged at."""
    judged = []
    ended = ended or {}

    def judge(at):
        judged.append(dict(at))
        return {arm: f"{arm} at {at.get(arm)}" for arm in decided_at}

    stands = standings(
        3,
        [*decided_at],
        lambda arm, look: ended.get((arm, look), "complete"),
        judge,
        lambda arm, look, _row: look >= decided_at[arm],
    )
    return stands, judged[1:]


def test_an_arm_stops_where_it_is_decided_and_keeps_that_row():
    stands, judged = told({"a": 0, "b": 1, "c": 9})
    assert judged == [{"a": 0, "b": 0, "c": 0}, {"a": 0, "b": 1, "c": 1}, {"a": 0, "b": 1, "c": 2}]
    assert {arm: (at.look, at.needs, at.row) for arm, at in stands.items()} == {
        "a": (0, 0, "a at 0"),
        "b": (1, 1, "b at 1"),
        "c": (2, 2, "c at 2"),
    }
    assert not any(at.is_open for at in stands.values())


def test_a_look_waits_for_every_arm_that_goes_on():
    stands, judged = told({"a": 0, "b": 9, "c": 9}, {("c", 1): "pending"})
    assert judged == [{"a": 0, "b": 0, "c": 0}]
    assert {arm: (at.look, at.needs, at.is_open) for arm, at in stands.items()} == {
        "a": (0, 0, False),
        "b": (0, 1, True),
        "c": (0, 1, True),
    }


def test_an_arm_with_a_failed_run_stays_behind_and_keeps_no_other():
    stands, judged = told({"a": 9, "b": 9}, {("b", 0): "failed"})
    assert judged == [{"a": 0}, {"a": 1}, {"a": 2}]
    assert (stands["b"].look, stands["b"].needs, stands["b"].is_open) == (-1, 0, True)
    assert not stands["a"].is_open


def looked(differences, looks=LOOKS):
    """Return where the arms of a table stand, from the differences of each over all its seeds."""
    values = {str(i): list(row) for i, row in enumerate(differences)}
    shares = spending(looks)

    def judge(at):
        taken = {arm: row[: looks[at[arm]]] if arm in at else [] for arm, row in values.items()}
        return simultaneous(taken, shares={arm: shares[look] for arm, look in at.items()})

    return standings(
        len(looks),
        [*values],
        lambda _arm, _look: "complete",
        judge,
        lambda _arm, _look, row: decided(row),
    )


def decided(row):
    return verdict(row) != "inconclusive"


def tables(count, arms, seeds, *, r, heavy=False, seed=0):
    """Draw paired differences of tables without effects, and their standard deviations.

    All arms share a baseline; variances differ as much as in the records (log-variance 1).
    """
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((count, 1, seeds))
    own = rng.standard_normal((count, arms, seeds))
    if heavy:  # Student's t with 5 degrees of freedom
        own = rng.standard_t(5, own.shape) * np.sqrt(3 / 5)
    sd, sd_base = (np.exp(rng.normal(0, 0.5, (count, n, 1))) for n in (arms, 1))
    differences = sd * (np.sqrt(r) * shared + np.sqrt(1 - r) * own) - sd_base * shared
    return differences, np.sqrt(sd**2 * (1 - r) + (sd * np.sqrt(r) - sd_base) ** 2)


@pytest.mark.parametrize(
    ("r", "heavy", "true_effects"), [(0.3, False, 0), (0.3, True, 3), (0.9, False, 0)]
)
def test_looks_keep_the_chance_of_any_false_verdict_in_a_table(r, heavy, true_effects, volume):
    count = volume(300, 10_000, 10_000)
    differences, sd = tables(count, 7, 12, r=r, heavy=heavy)
    differences[:, :true_effects] += 2 * sd[:, :true_effects]
    false = sum(
        any(verdict(at.row) != "inconclusive" for at in list(looked(d).values())[true_effects:])
        for d in differences
    )
    # 5% and two standard errors of the simulation.
    assert false / count <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / count)


def test_looks_find_what_ten_seeds_find_with_a_fifth_fewer_runs(volume):
    count = volume(200, 10_000, 10_000)
    differences, sd = tables(count, 7, 12, r=0.3)
    differences = differences / sd + np.asarray(EFFECTS)[:, None]
    found = runs = found_fixed = 0
    for table in differences:
        stands = looked(table).values()
        found += sum(verdict(at.row) == "worse" for at in stands)
        seeds = [LOOKS[at.needs] for at in stands]
        runs += sum(seeds) + max(seeds)  # of the arms and of the baseline
        rows = {str(i): list(row[:10]) for i, row in enumerate(table)}
        found_fixed += sum(verdict(row) == "worse" for row in simultaneous(rows).values())
    assert found / (7 * count) >= found_fixed / (7 * count) - 0.01
    assert found / (7 * count) > 0.94
    assert runs / count < 64  # of 80
