"""Looks: what each may spend, and what they do to errors, power and runs."""

import numpy as np
import pytest

from llama_ablate.evidence.intervals import estimate
from llama_ablate.evidence.sequential import spending
from tests.simulations import draw_unequal, find_false, follow_looks

LOOKS = (3, 6, 12)
#: Effects in standard deviations of the paired differences, like those between activations.
EFFECTS = (1.3, 1.6, 2.0, 2.5, 3.0, 4.0, 5.0)


def test_a_look_spends_the_share_of_the_seeds_that_it_adds():
    assert spending(LOOKS) == (0.25, 0.25, 0.5)
    assert spending((7,)) == (1.0,)
    for looks in ((2, 3, 4), (3, 4, 6, 8, 12), tuple(range(2, 40))):
        assert sum(spending(looks)) == pytest.approx(1)
        assert min(spending(looks)) > 0


@pytest.mark.parametrize(
    ("r", "heavy", "true_effects"), [(0.3, False, 0), (0.3, True, 3), (0.9, False, 0)]
)
def test_looks_keep_the_chance_of_any_false_verdict_in_a_table(r, heavy, true_effects):
    count = 10_000
    differences, sd = draw_unequal(count, 7, 12, r=r, heavy=heavy)
    differences[:, :true_effects] += 2 * sd[:, :true_effects]
    rows, _ = follow_looks(differences, LOOKS)
    false = find_false(rows)[:, true_effects:].any(1).mean()
    # 5% and two standard errors of the simulation.
    assert false <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / count)


def test_looks_find_what_ten_seeds_find_with_a_fifth_fewer_runs():
    differences, sd = draw_unequal(10_000, 7, 12, r=0.3)
    differences = differences / sd + np.asarray(EFFECTS)[:, None]
    rows, at = follow_looks(differences, LOOKS)
    fixed = estimate(differences[..., :10], 0.0, np.inf, 0.05 / 7)
    found, found_fixed = ((of["low"] > 0).mean() for of in (rows, fixed))
    assert found > max(0.94, found_fixed - 0.01)
    seeds = np.array(LOOKS)[at]
    runs = seeds.sum(1) + seeds.max(1)  # of the arms and of the baseline
    assert runs.mean() < 64  # of 80
