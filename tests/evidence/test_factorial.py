import itertools

import numpy as np
import pytest

from llama_ablate.design.designs import half_fraction
from llama_ablate.evidence import contrasts


def named(runs):
    return {f"v{i}": run for i, run in enumerate(runs)}


def test_a_worked_two_by_two():
    """Losses 1, 2, 3, 6 at (0,0), (0,1), (1,0), (1,1): A = 4.5 - 1.5, B = 4 - 2, AB = 3.5 - 2.5."""
    levels = named([(0, 0), (0, 1), (1, 0), (1, 1)])
    losses = {"v0": [1.0, 1.1], "v1": [2.0, 2.1], "v2": [3.0, 3.1], "v3": [6.0, 6.1]}
    found = {c.factors: c.effect.mean for c in contrasts(levels, ["A", "B"], losses)}
    assert found == pytest.approx({("A",): 3.0, ("B",): 2.0, ("A", "B"): 1.0})


@pytest.mark.parametrize("factors", [5, 6])
def test_a_half_fraction_has_resolution_five_or_more(factors):
    """Half of all runs; every contrast balances and no two of them are aliases."""
    runs = np.array(half_fraction(factors))
    assert len(runs) == 2 ** (factors - 1) == len({tuple(run) for run in runs})
    assert not runs[0].any()
    signs = 2 * runs - 1
    columns = [signs[:, i] for i in range(factors)]
    columns += [signs[:, i] * signs[:, j] for i, j in itertools.combinations(range(factors), 2)]
    gram = np.array(columns) @ np.array(columns).T
    assert np.array_equal(gram, len(runs) * np.eye(len(columns)))


def test_with_fewer_than_five_factors_all_runs_are_made():
    assert half_fraction(3) == list(itertools.product((0, 1), repeat=3))


def simulated(generator, noise=0.01, seeds=3):
    """Five factors with known effects and one interaction; seeds shift all runs alike."""
    main = {"norm": 0.0, "pos": -0.05, "kv": 0.01, "act": -0.04, "block": 0.02}
    runs = half_fraction(5)
    levels = named(runs)
    shared = generator.normal(0, 0.5, seeds)
    losses = {}
    for name, run in levels.items():
        signs = [2 * level - 1 for level in run]
        mean = sum(e / 2 * s for e, s in zip(main.values(), signs, strict=True))
        mean += 0.03 / 2 * signs[1] * signs[4]
        losses[name] = list(mean + shared + generator.normal(0, noise, seeds))
    truth = {(name,): e for name, e in main.items()}
    truth |= dict.fromkeys(itertools.combinations(main, 2), 0.0)
    truth["pos", "block"] = 0.03
    return levels, list(main), losses, truth


def test_known_effects_are_found_and_their_intervals_cover_95_in_100():
    generator = np.random.default_rng(0)
    covered = total = 0
    for _ in range(140):
        levels, factors, losses, truth = simulated(generator)
        for contrast in contrasts(levels, factors, losses):
            covered += contrast.effect.low <= truth[contrast.factors] <= contrast.effect.high
            total += 1
    assert total == 2100
    assert 0.93 <= covered / total <= 0.97


def test_effects_that_are_there_are_significant_and_others_are_not():
    levels, factors, losses, truth = simulated(np.random.default_rng(1), noise=0.002, seeds=5)
    for contrast in contrasts(levels, factors, losses):
        assert (contrast.p_holm < 0.05) == (truth[contrast.factors] != 0)


def test_designs_that_cannot_tell_are_refused():
    with pytest.raises(ValueError, match="A and B cannot be told apart"):
        contrasts(named([(0, 0), (1, 1)]), ["A", "B"], {"v0": [1.0], "v1": [2.0]})
    runs = [(0, 0), (0, 1), (1, 0)]
    with pytest.raises(ValueError, match="the levels of A do not balance"):
        contrasts(named(runs), ["A", "B"], {f"v{i}": [1.0, 2.0] for i in range(3)})
