"""Races replayed on tuned records: how often two seeds choose as all seeds do, and what it costs.

`tuned_losses.json` holds the validation losses of 50 variants of nine tuned experiments, a list of
points for each and in it a loss for each seed; null where the run diverged.
"""

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np

from llama_ablate.findings import tuning
from llama_ablate.findings.values import RunRow

LOSSES = json.loads(Path(__file__).with_name("tuned_losses.json").read_text("utf-8"))


def chosen(race=()):
    """Return the point of each variant, chosen on some of its seeds, or on all."""
    runs = [
        RunRow(
            id=f"{name} {i} {seed}",
            variant=name,
            label=name,
            seed=seed,
            tuned=json.dumps({"point": i}),
            use="race" if seed in race else "reported",
            outcome="diverged" if loss is None else "ok",
            steps_done=2,
            numbers={"validation_loss_nats": math.nan if loss is None else loss},
        )
        for name, points in LOSSES.items()
        for i, losses in enumerate(points)
        for seed, loss in enumerate(losses)
    ]
    best = tuning.best_points(runs, {})
    return {variant: json.loads(tuned)["point"] for variant, tuned in best.items()}


def test_two_seeds_choose_the_point_that_all_seeds_choose_nine_times_in_ten():
    by_all, same, regret = chosen(), [], []
    for race in combinations(range(3), 2):
        for name, point in chosen(race).items():
            same.append(point == by_all[name])
            raced, best = (LOSSES[name][i] for i in (point, by_all[name]))
            regret.append(np.mean([math.inf if v is None else v for v in raced]) - np.mean(best))
    assert len(same) == 150
    assert np.mean(same) >= 0.85
    assert np.mean(regret) < 0.005
    assert np.median(regret) == 0


def test_a_race_of_two_seeds_takes_a_quarter_fewer_runs():
    full = sum(len(points) * len(points[0]) for points in LOSSES.values())
    raced = sum(2 * len(points) + len(points[0]) for points in LOSSES.values())
    assert (full, raced) == (782, 591)
