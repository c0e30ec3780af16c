"""How many workers run at once on a machine: by the memory that the first one has reached."""

from dataclasses import replace

from llama_ablate.launch import worker
from llama_ablate.launch.queue import Gone, News
from llama_ablate.results import Store
from tests import plans
from tests.in_process import run_in_process


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
