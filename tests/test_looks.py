"""A race and three looks through the command line: stopped, gone on with, and done."""

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.stages import find_reported, find_runs
from llama_ablate.launch import local
from llama_ablate.results import Results, Store
from tests.in_process import Inline, in_process, run_in_process

FILE = """name: looked
model: {dim: 16, layers: 1, heads: 2, context: 16}
variants: {axes: {feedforward: [relu], norm: [layernorm]}}
data: {corpus: {name: lag-copy, vocab: 8, lag: 1, tokens: 6_000}, tokenizer: chars}
train: {steps: 20, batch: 8, lr: 1e-3, precision: float32, kernel: math, evals: 2}
tune: {lr: [3e-3, 1e-2]}
race: 2
controls: {aa: none, positive: {train.warmup: 0.9}}
seeds: {looks: [2, 3, 4]}
margin: 0.02 nats
measure: [perplexity]
"""
#: The repeated baseline is in no race: it is at the baseline's point.
VARIANTS, RACED = 5, 4 * 2 * 2


class Stopping(Inline):
    """A launcher that a user stops after so many runs."""

    left = 0

    def submit(self, runs):
        for _ in runs:
            type(self).left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
        super().submit(runs)


def stopped_after(runs, file, results, code=130):
    """Run the experiment with a launcher that is stopped after so many runs."""
    Stopping.left = runs
    with in_process(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "Local", Stopping)
        assert main(["run", str(file), "--results", str(results), "--device", "cpu"]) == code


@pytest.fixture(scope="module")
def looked(tmp_path_factory):
    """The results of the experiment, stopped in its race, and in its first and later looks."""
    folder = tmp_path_factory.mktemp("looked")
    file = folder / "looked.yaml"
    file.write_text(FILE, "utf-8")
    for runs in (7, RACED, 3):
        stopped_after(runs, file, folder)
    assert run_in_process(file, folder) == 0
    return file, Store(folder / "looked")


@pytest.mark.row("R30", "kill: stopped in the race, in the first look and in a later one")
@pytest.mark.full
def test_a_stopped_experiment_goes_on_to_what_an_unbroken_one_reports(looked, tmp_path):
    file, store = looked
    assert run_in_process(file, tmp_path) == 0
    one, other = (Frames.of(Results(s.root)).table for s in (store, Store(tmp_path / "looked")))
    columns = ["label", "verdict", "look", "n", "difference", "low", "high"]
    assert compare_variants(one)[columns].equals(compare_variants(other)[columns])
    assert store.final_ids() == Store(tmp_path / "looked").final_ids()


def test_each_variant_has_the_seeds_of_its_looks_at_its_best_point_and_no_more(looked):
    _, store = looked
    table = Frames.of(Results(store.root)).table
    rows = compare_variants(table).set_index("label")
    assert rows.loc["A/A", ["verdict", "look", "n"]].tolist() == ["equal", 1, 1]
    runs = find_runs(table)
    trained = runs[runs["use"] != "race"].groupby("label")
    assert set(trained["point"].nunique()) == {1}
    seeds, base = trained["seed"].nunique(), table.plan.baseline.label
    for label, row in rows.iterrows():
        if label not in (base, "A/A"):
            assert seeds[label] == row["n"] == [2, 3, 4][int(row["look"]) - 1]
            assert row["verdict"] != "pending"
    assert seeds[base] == max(seeds)
    assert len(runs) == RACED + sum(seeds) < len(store.plan.runs)
    assert "pending" not in {*runs["outcome"]}
    assert {*find_reported(table)["use"]} == {"reported"}
