"""Machines without a shared disk: each trains a share of the seeds, and the runs join at home."""

import shutil

import pytest

from llama_ablate.findings.frames import Frames
from llama_ablate.results import Results, Store
from tests.in_process import Inline, run_in_process
from tests.tables import sentences_of as warnings


class Interrupted(Inline):
    """A launcher at whose first run somebody presses Ctrl-C."""

    def submit(self, _runs):
        raise KeyboardInterrupt


def test_runs_of_two_machines_join_at_home_and_none_is_trained_again(
    experiment_file, tmp_path, monkeypatch
):
    file = experiment_file(seeds="4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.in_process.Inline", Interrupted)
        assert run_in_process(file, tmp_path / "home") == 130
    for machine, seeds in (("one", "[0, 1]"), ("two", "[2, 3]")):
        assert run_in_process(file, tmp_path / machine, "--set", f"seeds={seeds}") == 0
        runs = tmp_path / machine / "tiny" / "runs"
        shutil.copytree(runs, tmp_path / "home" / "tiny" / "runs", dirs_exist_ok=True)
    monkeypatch.setattr("tests.in_process.Inline", Interrupted)  # it would train nothing
    assert run_in_process(file, tmp_path / "home") == 0
    home = Results.open(tmp_path / "home" / "tiny")
    assert [status.outcome for status in home.statuses] == ["ok"] * 8
    assert not any("file" in line and "before" in line for line in warnings(Frames.of(home)))
    records = {r.id: r for m in ("one", "two") for r in Store(tmp_path / m / "tiny").records()}
    assert {run: repr(home.record(run).metrics) for run in home.finished} == {
        run: repr(record.metrics) for run, record in records.items()
    }
