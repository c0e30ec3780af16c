"""R14 and R22: what must change nothing, and a grid edited that runs what is new."""

import os
import random
import subprocess

import pytest

from tests.commands import command

from .conftest import TRAIN
from .harness import Settings, breaches, grid


@pytest.mark.full
def test_order_workers_and_hash_seed_change_no_weight_and_no_number(
    experiment_file, tmp_path, volume, tally
):
    axes = ["norm: [layernorm]", "feedforward: [gelu]", "position: [alibi]"]

    def file_of(order):
        variants = f"{{axes: {{{', '.join(order)}}}}}"
        return experiment_file(variants, train=TRAIN, measure="[perplexity]")

    reference = grid(file_of(axes), tmp_path / "reference", Settings()).root
    chance, wrong, trials = random.Random(0), [], volume(2, 2, 10)
    for number in range(trials):
        order = chance.sample(axes, 3)
        results = tmp_path / str(number)
        done = subprocess.run(
            command(file_of(order), results, "--workers", str(1 + number % 3)),
            env={**os.environ, "PYTHONHASHSEED": str(number)},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        wrong += breaches(results / "tiny", reference)
    print(wrong)
    what = "other orders of the axes, 1 to 3 workers, hash seeds; processes or none"
    tally("R14", what, trials, len(wrong))


def test_an_edited_grid_runs_what_is_new_and_nothing_twice(
    experiment_file, tmp_path, volume, tally
):
    """Variants and seeds come and go, names and order and comments change."""
    pairs = [(norm, lr) for norm in ("layernorm", "rmsnorm") for lr in ("1e-3", "3e-3")]
    chance, wrong, edits = random.Random(0), [], volume(6, 20, 200)
    known = set()
    for _ in range(edits):
        chosen = chance.sample(pairs, chance.randint(2, 4))
        entries = [
            f"{{label: {chance.choice('abc')}{i}, norm: {norm}, train.lr: {lr}}}"
            for i, (norm, lr) in enumerate(chosen)
        ]
        file = experiment_file(
            f"{{design: list, entries: [{', '.join(entries)}]}}",
            train=TRAIN,
            measure="[perplexity]",
            seeds=str(chance.randint(1, 3)),
        )
        file.write_text(f"# {chance.random()}\n" + file.read_text())
        before = {f.name: f.stat().st_mtime_ns for f in tmp_path.glob("tiny/runs/*")}
        store = grid(file, tmp_path, Settings())
        planned = {*store.plan.runs}
        after = {f.name: f.stat().st_mtime_ns for f in tmp_path.glob("tiny/runs/*")}
        changed = [name for name, at in before.items() if after.get(name) != at]
        new = {name.rpartition("--")[2] for name in set(after) - set(before)}
        if changed or new != planned - known:
            wrong.append((changed, new ^ (planned - known)))
        known |= planned
    print(wrong)
    assert len(known) > 6
    tally("R22", "edits of a grid: variants, seeds, names, order, comments", edits, len(wrong))
