"""The protocol: what a file stated before the first run, and what a report says of changes."""

import numpy as np
import pytest

from llama_ablate.commands.cli import main
from llama_ablate.evidence.intervals import ALPHA, estimate
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.warnings import UNPLANNED
from llama_ablate.launch import worker
from llama_ablate.results import Results, Store
from tests.in_process import in_process, run_in_process
from tests.simulations import draw_unequal, find_false
from tests.tables import sentences_of as warnings

FILE = {
    "controls": "{aa: [], positive: {train.warmup: 0.9}}",
    "margin": "0.01 nats",
    "hypotheses": "[{variant: layernorm, direction: worse, said: so}]",
    "measure": "[perplexity]",
}


@pytest.fixture
def changed(experiment_file, tmp_path):
    """Run an experiment, then the same name with other keys; return the folder and its warnings."""

    def run(**later):
        assert run_in_process(experiment_file(**FILE), tmp_path) == 0
        assert run_in_process(experiment_file(**{**FILE, **later}), tmp_path) == 0
        root = tmp_path / "tiny"
        return root, warnings(Frames.of(Results.open(root)))

    return run


def test_every_change_is_printed_on_a_line_of_its_own_and_travels_in_a_pack(changed, tmp_path):
    root, told = changed(
        margin="0.05 nats",
        hypotheses="[{variant: layernorm, direction: better, said: nope}]",
        controls="{aa: [], positive: {train.warmup: 0.5}}",
        question="Which?",
    )
    after = "after 6 runs had finished"
    changes = {
        "margin": ("0.01 nats", "0.05 nats"),
        "hypothesis": (
            "{variant: layernorm, direction: worse}",
            "{variant: layernorm, direction: better}",
        ),
        "controls.positive.train.warmup": ("0.9", "0.5"),
    }
    for key, (before, now) in changes.items():
        (line,) = (line for line in told if after in line)
        assert f"dropped `{key}: {before}`" in line
        assert f"added `{key}: {now}`" in line
    (control,) = [line for line in told if "control was replaced" in line]
    assert "'positive control', whose runs had ended: 2 ok" in control
    with in_process():
        assert main(["pack", str(root), "--out", str(tmp_path / "pack")]) == 0
    packed = Frames.of(Results.open(tmp_path / "pack"))
    assert [line for line in warnings(packed) if after in line or "replaced" in line] == [
        line for line in told if after in line or "replaced" in line
    ]


def test_seeds_that_are_added_after_a_look_are_told_with_what_they_cost(changed):
    _, told = changed(seeds="4")
    (line,) = [line for line in told if line.startswith("The file was changed after 6 runs")]
    assert {*line.rstrip(".").split(": ", 1)[1].split("; ")} == {
        "dropped `seeds: 2`",
        "added `seeds: 4`",
    }
    (cost,) = [line for line in told if "Seeds were added 1 time after a look" in line]
    assert f"gives {UNPLANNED[1]:.1%} of tables a false verdict and not {UNPLANNED[0]:.1%}" in cost
    assert "`seeds: {looks: [3, 6, 12]}` plans for it" in cost


@pytest.mark.full
def test_what_unplanned_looks_cost_is_what_a_simulation_finds():
    count = 10_000
    differences, _ = draw_unequal(count, 7, 96, r=0.3, seed=6)
    false = np.zeros(count, bool)
    for expected, seeds in zip(UNPLANNED, (3, 6, 12, 24, 48, 96), strict=True):
        found = estimate(differences[..., :seeds], 0.0, np.inf, ALPHA / 7)
        false |= find_false(found).any(1)
        # Three standard errors of both simulations: the table is of 4,000.
        assert abs(false.mean() - expected) < 3 * np.sqrt(expected * (1 / count + 1 / 4_000))


@pytest.mark.usefixtures("in_process")
def test_a_file_counts_as_stated_if_it_was_there_before_the_first_run_began(
    experiment_file, tmp_path, monkeypatch
):
    """A run that was begun has seen the text, whether it finished or not."""

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(worker, "train", interrupted)
        main(["run", str(experiment_file(**FILE)), "--results", str(tmp_path)])
    assert not Store(tmp_path / "tiny").final_ids()
    assert run_in_process(experiment_file(**FILE | {"margin": "0.05 nats"}), tmp_path) == 0
    told = warnings(Frames.of(Results.open(tmp_path / "tiny")))
    assert any("`margin: 0.05 nats`" in line for line in told)


def test_a_variant_alone_is_trained_and_trained_again_and_both_are_told(
    experiment_file, tmp_path, capsys
):
    file, root = experiment_file(), tmp_path / "tiny"
    assert run_in_process(file, tmp_path, "--only", "layernorm") == 0
    assert "run without --only" in capsys.readouterr().err
    store = Store(root)
    first = {run: folder.record() for run, folder in store.folders().items()}
    assert [record.label for record in first.values()] == ["layernorm"] * 2
    assert run_in_process(file, tmp_path) == 0
    assert len(store.folders()) == 4
    assert run_in_process(file, tmp_path, "--redo", next(iter(first.values())).variant) == 0
    again = {run: folder.record() for run, folder in store.folders().items()}
    assert {run: again[run].numbers for run in first} == {r: f.numbers for r, f in first.items()}
    assert len([*(root / "redone").glob("layernorm--*/record.json")]) == 2
    told = warnings(Frames.of(Results.open(root)))
    assert (
        "'layernorm' was trained again on request, after 4 runs had finished; the earlier records "
        "lie in redone/: ok, ok."
    ) in told
