"""What a worker notes of its progress is for those who watch, and nothing depends on it."""

import pytest

from llama_ablate.launch import worker
from llama_ablate.results import Results, live
from llama_ablate.results.live import LiveNote
from tests.in_process import run_in_process


@pytest.fixture
def at_once(monkeypatch):
    """Every step is noted."""
    monkeypatch.setattr(live, "EVERY_S", 0.0)


@pytest.mark.usefixtures("at_once")
def test_a_note_that_cannot_be_written_is_told_once_and_fails_nothing(tmp_path, capsys):
    with LiveNote(tmp_path / "gone", "r1", steps=8, tokens_per_step=32) as note:
        note(1, 4.0, [])
        note(2, 3.5, [])
    assert capsys.readouterr().err.count("how far the run is cannot be shown") == 1


@pytest.mark.usefixtures("at_once")
def test_a_worker_notes_the_curve_of_the_run_that_it_trains(experiment_file, tmp_path, monkeypatch):
    seen, finish = [], worker.METRICS.measure_all

    def look(choices, subject, readings):
        runs = Results.open(tmp_path / "tiny").statuses
        seen.extend(run.live for run in runs if run.live)
        return finish(choices, subject, readings)

    monkeypatch.setattr(worker.METRICS, "measure_all", look)
    file = experiment_file(train="{steps: 3, batch: 2}", measure="[perplexity]", variants="{}")
    assert run_in_process(file, tmp_path) == 0
    assert [(note.step, note.steps) for note in seen] == [(3, 3)] * len(seen)
    results = Results.open(tmp_path / "tiny")
    assert [note.run for note in seen] == list(results.finished)
    for note in seen:
        assert [p["train_loss_nats"] for p in note.curve] == pytest.approx(
            [p["train_loss_nats"] for p in results.curve(note.run)]
        )
    assert not list((tmp_path / "tiny" / "working").iterdir())
