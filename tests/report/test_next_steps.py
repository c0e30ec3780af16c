"""What `run` suggests at its end: seeds that decide, and points beyond the end of a grid."""

import json
from dataclasses import replace

import pandas as pd

from llama_ablate.findings.comparison import compare_variants
from llama_ablate.report.next_steps import next_steps
from tests.tables import frames

BASE = [2.0, 2.2, 2.1, 2.3, 2.15]
NOISE = [0.05, -0.05, 0.02, -0.02, 0.0]


def test_the_seeds_that_would_decide_a_row_stand_with_their_minutes_and_the_command():
    losses = [loss + 0.02 + own for loss, own in zip(BASE, NOISE, strict=True)]
    made = frames({"": {"base": BASE, "open": losses}})
    planned = made.table.planned.assign(train_s=30.0)
    made = replace(made, tables=(replace(made.table, planned=planned),))
    (line,) = next_steps(made, "llama-ablate run x.yaml")
    seeds = int(compare_variants(made.table)["seeds_low"][1])
    assert seeds > 5
    assert line.startswith(f"about {seeds} seeds would decide 'open': {seeds - 5} min of training")
    assert line.endswith(f"(`llama-ablate run x.yaml --set seeds={seeds}`)")


def test_where_every_row_is_decided_or_nothing_tells_how_many_seeds_nothing_is_suggested():
    better = [loss - 0.5 + own for loss, own in zip(BASE, NOISE, strict=True)]
    assert next_steps(frames({"": {"base": BASE, "better": better}}), "run") == []
    few = {"base": BASE[:2], "open": [2.01, 2.3]}
    assert next_steps(frames({"": few}), "run") == []


def test_a_best_point_at_the_end_of_its_grid_has_a_command_that_adds_the_next():
    grid = [0.001, 0.002, 0.004]
    made = frames({"": {"base": BASE}}, tune={"lr": grid})
    runs = made.table.planned
    tried = [
        runs.assign(
            id=runs["id"] + str(lr), tuned=json.dumps({"lr": lr}), validation_loss_nats=2 - lr
        )
        for lr in grid
    ]
    planned = pd.concat(tried, ignore_index=True)
    made = replace(made, tables=(replace(made.table, planned=planned),))
    (line,) = next_steps(made, "llama-ablate run x.yaml")
    assert "the best lr lies at the end of its grid" in line
    assert "--set tune.lr='[0.001, 0.002, 0.004, 0.008]'" in line
