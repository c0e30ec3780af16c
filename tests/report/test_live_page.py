"""A page is written anew while runs train, and neither outlives nor delays them."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from llama_ablate.commands import report
from llama_ablate.commands.cli import main
from llama_ablate.launch import live_page, processes
from llama_ablate.report import page
from llama_ablate.results import Results, Store
from tests import plans
from tests.in_process import draw_nothing
from tests.metrics import measured

RUNS = 20


@pytest.fixture
def grid(tmp_path, monkeypatch):
    """A grid of which one run ends whenever the command sleeps; the page's lines are collected."""
    arms = [plans.variant("aa"), plans.variant("bb")]
    runs = [plans.run(f"{n:04x}", arms[n % 2].id, n // 2) for n in range(RUNS)]
    store = Store(tmp_path / "grid")
    store.create(plans.document(plans.table(arms, runs), seeds=RUNS // 2), "name: x\n")
    waiting, lines = list(runs), []

    def end_run(_seconds):
        run = waiting.pop(0)
        metrics = {"perplexity": measured(test_loss_nats=2.0 + run.seed / 100)}
        own = {"id": run.id, "label": run.variant, "variant": run.variant, "seed": run.seed}
        store.commit(replace(plans.RECORD, **own, metrics=metrics), [], None)

    def collect(*given, live=page.write_live):
        lines.append(given[-1])
        return live(*given)

    monkeypatch.setattr(time, "sleep", end_run)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: None, raising=False)
    monkeypatch.setattr(page, "write_live", collect)
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    monkeypatch.setattr(page.PagePictures, "draw", draw_nothing)
    return store.root, lines


def test_a_watched_page_is_written_after_each_tenth_and_whole_at_the_end(grid, capsys):
    root, lines = grid
    assert main(["report", str(root), "--watch"]) == 0
    counts = [int(line.split(" of 20 runs have ended")[0]) for line in lines]
    assert counts == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert 'id="live"' not in (root / "report" / "report.html").read_text()
    assert "bb" in capsys.readouterr().out


def test_a_page_that_costs_much_is_written_less_often(grid, monkeypatch):
    """Each costs 1 s of CPU, and each look at the runs takes 10 s: of two cores 1% is 20 ms."""
    root, lines = grid
    spent, clock = iter(range(10**6)), iter(range(0, 10**8, 10))
    monkeypatch.setattr(time, "process_time", lambda: next(spent))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr("llama_ablate.launch.environment.cores", lambda: 2)
    assert main(["report", str(root), "--watch"]) == 0
    assert 2 < len(lines) < 7


def test_a_live_page_says_how_far_the_runs_are_and_reloads_and_a_last_one_does_not(grid):
    root, _ = grid
    results = Results.open(root)
    report.write_files(results, "12 of 49 runs have ended, about 2:00 left. Written at 12:03.")
    text = (root / "report" / "report.html").read_text()
    assert '<meta http-equiv="refresh" content="20">' in text
    assert "12 of 49 runs have ended, about 2:00 left. Written at 12:03. This page reloads" in text
    report.write_files(results)
    text = (root / "report" / "report.html").read_text()
    assert 'http-equiv="refresh"' not in text
    assert 'id="live"' not in text


def test_a_page_that_cannot_be_written_is_tried_again_and_then_an_error(grid, monkeypatch, capsys):
    root, lines = grid
    failures = iter([OSError(5, "moved"), None, *[OSError(5, "gone", "record.json")] * 3])

    def look(results):
        if error := next(failures, None):
            raise error
        return describe(results)

    describe = report.describe_progress
    monkeypatch.setattr(report, "describe_progress", look)
    assert main(["report", str(root), "--watch"]) == 2
    assert "record.json" in capsys.readouterr().err
    assert len(lines) == 1


def test_a_page_is_asked_for_later_and_ends_with_what_trains(tmp_path, monkeypatch):
    started = []

    def start(words, stderr):
        assert words[:3] == ["report", str(tmp_path), "--watch"]
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"], stderr=stderr
        )
        started.append(child)
        return child

    monkeypatch.setattr(processes, "start_command", start)
    with live_page.renew_page(tmp_path):
        pass
    assert started == []
    monkeypatch.setattr(live_page, "FIRST_CPU_S", 0.0)

    def interrupt():
        while not started:
            time.sleep(0.01)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), live_page.renew_page(tmp_path):
        interrupt()
    (child,) = started
    assert child.returncode == -9
