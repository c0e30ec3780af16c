"""R3: whatever of the last writes is lost with the power, what was committed is there and whole."""

import random
import shutil

import pytest

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.results import Store, leases

from .harness import breaches, grid
from .power import disk_after, lose_power, recorder


@pytest.fixture
def recorded(two, tmp_path, monkeypatch):
    """A grid of two runs, the calls it took, and at which call each commit had returned."""
    root = tmp_path / "original"
    root.mkdir()
    (recording, calls), commit, commits = recorder(root), Store.commit, []

    def committed(store, record, *arguments):
        found = commit(store, record, *arguments)
        commits.append((len(calls), record.id))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(disk, "os", recording)
        patch.setattr(leases, "os", recording)
        patch.setattr(Store, "commit", committed)
        patch.setattr(leases, "_boot", lambda: "before-the-power-was-lost")
        grid(two, root)
    return root / "tiny", calls, commits


def test_what_was_committed_survives_a_loss_of_power_and_nothing_torn_is_believed(
    recorded, two, tmp_path, volume, tally, monkeypatch
):
    monkeypatch.setenv("LLAMA_ABLATE_LEASE_S", "0.1")  # of holders of before: they are waited for
    reference, calls, commits = recorded
    assert len(commits) == 2
    # The calls of the run in full leave what the real folder holds.
    replayed = tmp_path / "replayed"
    whole = disk_after(calls)
    lose_power(whole, replayed, random.Random(0))
    assert not breaches(replayed / "tiny", reference)

    prefixes = len(calls)
    each = volume(2, 3, -(-10_000 // prefixes))
    chance, trials, failures, resumed = random.Random(1), 0, [], 0
    for length in range(0, prefixes + 1, volume(1 + prefixes // 40, 1 + prefixes // 200, 1)):
        left = disk_after(calls[:length])
        committed = {what for at, what in commits if at <= length}
        for _ in range(each):
            trials += 1
            place = tmp_path / "after"
            shutil.rmtree(place, ignore_errors=True)
            lose_power(left, place, chance)
            failures += [(length, w) for w in _wrong(place / "tiny", reference, committed)]
            if chance.random() < 0.2 / each:
                grid(two, place)
                resumed += 1
                failures += [(length, w) for w in breaches(place / "tiny", reference)]
    print(failures)
    assert resumed > volume(2, 5, 5)
    tally(
        "R3",
        f"power lost after every one of {prefixes} calls of one process, what was not flushed "
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
    for run, folder in store.folders().items():
        try:
            record = folder.verify()
        except ConfigError:
            if run in committed:
                found.append((run, "committed, and damaged"))
            continue
        original = true.record(run)
        if (record.metrics, record.steps_done) != (original.metrics, original.steps_done):
            found.append((run, "believed, and wrong"))
    return [*found, *((run, "lost") for run in committed - set(store.folders()))]
