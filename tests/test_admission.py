"""How many workers run at once on a machine: by the memory that the first one has reached."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from llama_ablate.launch import local, processes, worker
from llama_ablate.launch.local import Local
from llama_ablate.launch.queue import Gone, News
from llama_ablate.results import Store
from tests import plans
from tests.in_process import run_in_process

GB = 10**9


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A launcher of four workers whose processes, peaks and free memory are made up."""
    peaks, state = {}, SimpleNamespace(free=0, started=[])

    def start(_task, _root, run, **_options):
        state.started.append(run)
        return SimpleNamespace(sentinel=0, exitcode=0, is_alive=lambda: True)

    monkeypatch.setattr(processes, "start", start)
    monkeypatch.setattr(local, "wait", lambda *_, **__: None)
    monkeypatch.setattr(local, "free_bytes", lambda _device: state.free)
    monkeypatch.setattr(Local, "_peak_of", lambda _self, run: peaks.get(run, 0))
    store = Store(tmp_path)
    store.prepare()
    state.peaks, state.launcher = peaks, Local(store, "cpu", workers=4)
    return state


@pytest.mark.parametrize(("free", "at_once"), [(0.5, 1), (2.5, 3), (100, 4)])
def test_one_worker_starts_and_its_peak_decides_how_many_more(machine, capsys, free, at_once):
    machine.launcher.submit(["a", "b", "c", "d"])
    machine.launcher.poll()
    assert machine.started == ["a"]
    machine.peaks["a"], machine.free = GB, int(free * GB)
    machine.launcher.poll()
    assert machine.started == ["a", "b", "c", "d"][:at_once]
    said = f"note: {at_once} of 4 workers at a time: the first took 1.0 GB of memory"
    assert (said in capsys.readouterr().err) == (at_once < 4)
    machine.free = 0  # what these take is no reason to start fewer later
    machine.launcher._active.pop()
    machine.launcher._gpus.append("")
    machine.launcher.submit(["e"])
    assert len(machine.launcher._active) == at_once


class Crowded:
    """A launcher of two workers of which each run needs the memory alone, but for some."""

    slots = 2

    def __init__(self, store, *_device_and_workers):
        self._store, self._active, self.beside = store, [], []
        Crowded.last = self

    def submit(self, runs):
        self._active += runs

    def poll(self):
        gone, alone = [], len(self._active) == 1
        for run in self._active:
            planned = self._store.plan.runs[run]
            if alone and planned.seed < 2:
                worker.run(self._store.root, run)
            else:
                ended = {"id": run, "variant": planned.variant, "seed": planned.seed}
                oom = replace(plans.RECORD, **ended, outcome="oom", reason="no memory")
                self._store.commit(oom, [], None)
            self.beside.append((run, len(self._active) - 1))
            gone.append(Gone(run))
        self._active = []
        return News(gone=gone)

    def stop(self):
        pass


def test_a_run_that_ran_out_of_memory_beside_others_is_retried_once_and_alone(
    experiment_file, tmp_path, monkeypatch
):
    monkeypatch.setattr("tests.in_process.Inline", Crowded)
    file = experiment_file(variants="{}", seeds="3", measure="[perplexity]")
    assert run_in_process(file, tmp_path, "--workers", "2") == 1
    outcomes = {r.seed: r.outcome for r in Store(tmp_path / "tiny").records()}
    assert outcomes == {0: "ok", 1: "ok", 2: "oom"}
    tries = [beside for _, beside in Crowded.last.beside]
    assert tries == [1, 1, 0, 0, 0]
