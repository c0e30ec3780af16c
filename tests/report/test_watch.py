"""A report is written again while runs train, and whole when the last has ended."""

import time
from dataclasses import replace

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.report import page
from llama_ablate.results import Store
from tests import plans
from tests.in_process import draw_nothing
from tests.metrics import measured

RUNS = 4


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A grid of which one run ends whenever the command sleeps; counts the pages."""
    arms = [plans.variant("aa"), plans.variant("bb")]
    runs = [plans.run(f"{n:04x}", arms[n % 2].id, n // 2) for n in range(RUNS)]
    store = Store(tmp_path / "grid")
    store.create(plans.document(plans.table(arms, runs), seeds=RUNS // 2), "name: x\n")
    waiting, slept, written = list(runs), [], []

    def end_run(seconds):
        slept.append(seconds)
        run = waiting.pop(0)
        metrics = {"perplexity": measured(test_loss_nats=2.0 + run.seed / 100)}
        own = {"id": run.id, "label": run.variant, "variant": run.variant, "seed": run.seed}
        store.commit(replace(plans.RECORD, **own, metrics=metrics), [], None)

    def write(*given, real=page.write):
        written.append(RUNS - len(waiting))
        return real(*given)

    monkeypatch.setattr(time, "sleep", end_run)
    monkeypatch.setattr(page, "write", write)
    monkeypatch.setattr(page, "_draw", draw_nothing)
    return store.root, slept, written


def test_a_watched_report_is_written_until_all_runs_have_ended(grid, capsys):
    root, slept, written = grid
    assert main(["report", str(root), "--watch"]) == 0
    assert written == [0, 1, 2, 3, 4]
    assert slept == [60.0] * RUNS
    assert capsys.readouterr().out.count("report: ") == 1


def test_the_interval_is_what_was_given_and_a_wrong_one_is_told(grid, capsys):
    root, slept, _ = grid
    assert main(["report", str(root), "--watch", "0.5"]) == 0
    assert slept == [0.5] * RUNS
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(root), "--watch", "-1"])
    assert "'-1' is not a number of seconds above 0" in capsys.readouterr().err


def test_files_that_move_while_they_are_read_are_read_again_and_then_an_error(
    grid, monkeypatch, capsys
):
    root, slept, written = grid
    failures = iter([OSError(5, "moved"), None, *[OSError(5, "gone", "record.json")] * 3])

    def write(*given, real=page.write):
        if error := next(failures, None):
            raise error
        return real(*given)

    monkeypatch.setattr(page, "write", write)
    assert main(["report", str(root), "--watch", "1"]) == 2
    assert "record.json" in capsys.readouterr().err
    assert len(slept) == 4
    assert written == [1]
