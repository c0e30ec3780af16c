"""R3: whatever of the last writes is lost with the power, what was committed is there and whole."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.results import Store, leases
from llama_ablate.results.store import Store as RealStore
from tests.commands import PYTHON, command

from . import recording
from .harness import breaches, grid
from .power import Recorder, disk_after, lose_power

ROOT = Path(__file__).parents[2]


@pytest.fixture(
    params=[
        "one process",
        pytest.param("a launcher and two workers", marks=pytest.mark.full),
    ]
)
def recorded(request, experiment_file, tmp_path, monkeypatch):
    """A grid of two runs, the calls it took, and at which call each commit had returned."""
    train = "{steps: 3, batch: 2, lr: 1e-3, precision: float32, kernel: math, evals: 1}"
    file = experiment_file(train=train, measure="[perplexity]", variants="{}")
    root = tmp_path / "original"
    root.mkdir()
    if request.param != "one process":
        calls = tmp_path / "calls"
        words = [*command(file, root), "--workers", "2"][3:]
        subprocess.run(
            [PYTHON, "-m", recording.__name__, *words],
            cwd=ROOT,
            check=True,
            env=os.environ | {recording.VARIABLE: f"{calls}|{root}"},
        )
        return file, recording.recorded(calls, root), request.param
    recorder = Recorder(root)
    commit = RealStore.commit

    def committed(store, record, *arguments):
        found = commit(store, record, *arguments)
        recorder.mark(record.id)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(disk, "os", recorder)
        patch.setattr(leases, "os", recorder)
        patch.setattr(RealStore, "commit", committed)
        patch.setattr(leases, "_boot", lambda: "before-the-power-was-lost")
        grid(file, recorder.root)
    return file, recorder, request.param


def test_what_was_committed_survives_a_loss_of_power_and_nothing_torn_is_believed(
    recorded, tmp_path, volume, tally, monkeypatch
):
    monkeypatch.setenv("LLAMA_ABLATE_LEASE_S", "0.1")  # of holders of before: they are waited for
    file, recorder, who = recorded
    reference = recorder.root / "tiny"
    assert len(recorder.marks) == 2
    # The calls of the run in full leave what the real folder holds.
    replayed = tmp_path / "replayed"
    whole = disk_after(recorder.calls)
    lose_power(whole, replayed, random.Random(0))
    assert not breaches(replayed / "tiny", reference)

    prefixes = len(recorder.calls)
    each = volume(2, 3, -(-10_000 // prefixes))
    chance, trials, failures, resumed = random.Random(1), 0, [], 0
    for length in range(0, prefixes + 1, volume(1 + prefixes // 40, 1 + prefixes // 200, 1)):
        left = disk_after(recorder.calls[:length])
        committed = {what for at, what in recorder.marks if at <= length}
        for _ in range(each):
            trials += 1
            place = tmp_path / "after"
            shutil.rmtree(place, ignore_errors=True)
            lose_power(left, place, chance)
            failures += [(length, w) for w in _wrong(place / "tiny", reference, committed)]
            if chance.random() < 0.2 / each:
                grid(file, place)
                resumed += 1
                failures += [(length, w) for w in breaches(place / "tiny", reference)]
    print(failures)
    assert resumed > volume(2, 5, 5)
    tally(
        "R3",
        f"power lost after every one of {prefixes} calls of {who}, what was not flushed "
        f"dropped, torn or reordered by chance; {resumed} of them gone on with to the end",
        trials,
        len(failures),
    )


def _wrong(root, reference, committed):
    """Return what a store believes that it should not, or has lost."""
    if not (root / "runs").is_dir():
        return ["lost"] if committed else []
    store, true = Store(root), Store(reference)
    found = []
    for run, folder in store.finished().items():
        try:
            record = folder.verify()
        except ConfigError:
            if run in committed:
                found.append((run, "committed, and damaged"))
            continue
        original = true.record(run)
        if (record.metrics, record.steps_done) != (original.metrics, original.steps_done):
            found.append((run, "believed, and wrong"))
    return [*found, *((run, "lost") for run in committed - set(store.finished()))]


def test_the_model_of_the_disk_loses_what_is_not_flushed(tmp_path):
    recorder = Recorder(tmp_path / "disk")
    recorder.root.mkdir()
    file = recorder.root / "file"
    handle = recorder.open(file, 0o101, 0o666)  # O_WRONLY | O_CREAT
    recorder.write(handle, b"x" * 2000)
    seen = set()
    for seed in range(60):
        place = tmp_path / str(seed)
        lose_power(disk_after(recorder.calls), place, random.Random(seed))
        kept = place / "file"
        seen.add(len(kept.read_bytes()) if kept.exists() else None)
    assert seen == {None, 0, 512, 1024, 1536, 2000}
    recorder.fsync(handle)
    recorder.fsync(recorder.open(recorder.root, 0))
    for seed in range(20):
        place = tmp_path / f"safe-{seed}"
        lose_power(disk_after(recorder.calls), place, random.Random(seed))
        assert (place / "file").read_bytes() == b"x" * 2000
