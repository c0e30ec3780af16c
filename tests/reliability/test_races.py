"""R4 and R5: launchers that race for one grid, and a worker that sleeps beyond the timeout."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from itertools import count

import pytest

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.launch import worker
from llama_ablate.results import Store, leases
from tests import plans
from tests.commands import PYTHON
from tests.metrics import measured
from tests.quiet import until

from .conftest import TRAIN
from .harness import Settings, breaches, content, grid, in_child, there

OFTEN = Settings(checkpoint_s=0.05)


def fork(work, *arguments):
    pid = os.fork()
    if pid == 0:
        os._exit(in_child(work, *arguments, shown=(1, 2)))
    return pid


def racing(file, results, executed, delay):
    """Do a grid, and note every run that is trained in a file that all racers share."""
    trained = worker._run

    def noted(store, run, *more):
        with executed.open("a") as told:
            told.write(f"{run}\n")
        return trained(store, run, *more)

    worker._run = noted
    time.sleep(delay)
    grid(file, results, OFTEN)


def test_launchers_that_race_for_one_grid_share_it_and_commit_every_run_once(
    four, tmp_path, volume, tally
):
    reference = grid(four, tmp_path / "reference").root
    grids, launchers = volume(1, 6, 100), volume(2, 4, 8)
    chance, wrong, times = random.Random(0), [], Counter()
    for number in range(grids):
        results, executed = tmp_path / f"race-{number}", tmp_path / f"executed-{number}"
        racers = [
            fork(racing, four, results, executed, chance.random() * 0.3) for _ in range(launchers)
        ]
        wrong += [code for code in map(ended, racers) if code]
        wrong += breaches(results / "tiny", reference)
        times.update((number, run) for run in executed.read_text().split())
    print(wrong)
    twice = times.total() - len(times)
    assert len(times) == 4 * grids
    assert twice <= 0.01 * len(times)
    what = f"{launchers} launchers racing for each of {grids} grids of 4 runs; "
    what += f"{twice} of {len(times)} runs executed twice"
    tally("R4", what, grids, len(wrong))


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.full
def test_a_worker_that_slept_beyond_its_lease_finds_the_run_taken_over_and_leaves_it_alone(
    experiment_file, tmp_path, monkeypatch, volume, tally
):
    monkeypatch.setenv("LLAMA_ABLATE_LEASE_S", "0.5")
    # As if on clones of one machine: then only the lease tells whether somebody is still there.
    monkeypatch.setattr(leases, "_boot", lambda: f"boot-of-{os.getpid()}")
    train = TRAIN.replace("steps: 6", "steps: 400")
    file = experiment_file(train=train, measure="[perplexity]", variants="{}", seeds="1")
    reference = grid(file, tmp_path / "reference").root
    chance, wrong, stopped, trials = random.Random(0), [], 0, volume(3, 3, 100)
    for number in range(trials):
        results = tmp_path / str(number)
        sleeper = os.fork()
        if sleeper == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            grid(file, results, OFTEN)
            os._exit(0)
        working = results / "tiny" / "working"
        while not [p for p in there(working, "*/lease-1") if len(p.parent.name) == len("e698564d")]:
            time.sleep(0.005)  # until a run has been leased, not the plan or the compute
        time.sleep(chance.random() * 0.4)
        os.kill(sleeper, signal.SIGSTOP)
        stopped += bool(there(working, "*/lease-1"))
        grid(file, results, OFTEN)
        before = content(results)
        os.kill(sleeper, signal.SIGCONT)
        code = ended(sleeper)
        found = breaches(results / "tiny", reference)
        if code or found or content(results) != before:
            wrong.append((number, code, found))
    print(wrong)
    assert stopped > trials / 2
    what = "a worker stopped beyond the lease timeout, another finishes, it wakes"
    tally("R5", what, trials, len(wrong))


def test_a_lease_is_had_by_one_and_the_next_has_the_next_number(tmp_path):
    first = leases.take(tmp_path)
    assert first.number == 1
    assert leases.take(tmp_path) is None
    assert leases.taken(tmp_path)
    first.release()
    assert not leases.taken(tmp_path)
    with leases.take(tmp_path) as second:
        assert second.number == 2
        assert second.held
        assert not first.held
    with leases.Lease(tmp_path, 3) as third:
        with pytest.raises(FileExistsError):
            leases.Lease(tmp_path, 3)
        assert third.held
        (tmp_path / "lease-3").rename(tmp_path / "released-3")  # broken, the work done, begun anew
        with leases.Lease(tmp_path, 3):
            assert not third.held  # a file of the same name is not the lease
    last = leases.take(tmp_path)
    last.finish()
    assert not tmp_path.exists()


def two_beats_fail(monkeypatch):
    """Let the next two heartbeats of any lease fail, as while a file server is away."""
    beat, failures = os.utime, iter([True] * 2)

    def failing(*given, **more):
        if next(failures, False):
            raise OSError(5, "the server is away")
        beat(*given, **more)

    monkeypatch.setattr(os, "utime", failing)


@pytest.mark.parametrize(
    ("clock", "step"), [("stands still", 0), ("leaps ahead", 86400), ("leaps back", -86400)]
)
def test_a_lease_is_kept_for_a_lease_whatever_the_clock_does(
    clock, step, tmp_path, monkeypatch, tally
):
    """It moves on by a day with every look at it, or not at all; two beats fail."""
    monkeypatch.setattr(leases, "myself", lambda: "another-boot pid:[1] 1 1 0")
    days = count(2**31, step)
    monkeypatch.setattr(time, "time", lambda: next(days))
    two_beats_fail(monkeypatch)
    watch = leases.Watch()
    with leases.take(tmp_path) as lease:
        began, wrong = time.monotonic(), 0
        while time.monotonic() - began < 1.5:  # leases of a second
            wrong += not watch.waits(tmp_path)
            time.sleep(0.02)
        wrong += not lease.held
        lease._stopped.set()  # it stops renewing
        began = time.monotonic()
        until(lambda: not watch.waits(tmp_path))
        wrong += time.monotonic() - began < 0.6
        wrong += lease.held
    wrong += leases.take(tmp_path).number != 2
    tally("R16", f"a lease that is watched while the clock {clock}", 1, wrong)


def test_who_was_taken_for_gone_while_it_wrote_finds_what_stands(tmp_path, monkeypatch):
    """A command that is stopped beyond the lease timeout in the very moment, and wakes."""
    store, slow = Store(tmp_path / "x"), disk.replace
    store.prepare()

    def takes_too_long(*arguments, aside):
        monkeypatch.setattr(disk, "replace", slow)
        (aside / "lease-1").rename(aside / "released-1")
        leases.take(aside).finish()
        slow(*arguments, aside=aside)

    monkeypatch.setattr(disk, "replace", takes_too_long)
    assert store.measure_once("compute", "cpu", lambda: 7) == 7
    assert store.measure_once("compute", "cpu", lambda: 8) == 7
    assert not list(store.in_progress.iterdir())


def test_another_plan_is_refused_while_others_are_at_work_and_not_for_what_they_left(
    four, experiment_file, tmp_path
):
    """A report in the making is no run; a holder that died elsewhere had a lease to move."""
    store = grid(four, tmp_path)
    run = next(iter(store.plan.runs))
    other = experiment_file(train=TRAIN, measure="[perplexity]", seeds="3")
    with leases.take(store.working(run)), pytest.raises(ConfigError, match="another plan"):
        grid(other, tmp_path)
    disk.make(store.working(run))
    (store.working(run) / "lease-1").write_text("elsewhere pid:[1] 1 1 0")
    with leases.take(store.working("report")):
        grid(other, tmp_path)
    assert len(store.plan.runs) == 6


def test_work_that_a_lost_machine_had_begun_is_swept_whatever_it_was(tmp_path, monkeypatch):
    """Nobody may ever ask for that work again; what somebody is at elsewhere is left alone."""
    monkeypatch.setenv("LLAMA_ABLATE_LEASE_S", "0.3")
    store = Store(tmp_path / "x")
    store.create(plans.of_runs("0a"), "name: x\n")
    for key in ("0a", "0b", "report", "pace"):
        disk.make(store.working(key))
        (store.working(key) / "lease-1").write_text("elsewhere pid:[1] 1 1 0")
    monkeypatch.setattr(leases, "myself", lambda: "elsewhere pid:[1] 2 2 0")
    with store.alone("measure"):
        store.sweep()
        left = {path.name for path in store.in_progress.iterdir()}
        assert left == {"0a", "measure"}  # a run of the plan is the queue's


def test_a_clone_of_a_machine_waits_for_a_lease_before_it_takes_a_lease_over(tmp_path, monkeypatch):
    """It shares all but the boot's id. On the holder's machine the dead one is not waited for."""
    gone = tmp_path / "gone"
    assert in_child(lambda: leases.take(gone) and os.kill(os.getpid(), signal.SIGKILL)) == -9
    assert leases.take(gone).number == 2
    assert in_child(lambda: leases.take(tmp_path) and os.kill(os.getpid(), signal.SIGKILL)) == -9
    (tmp_path / "boot_id").write_text("5f0c5f6e-1111-4222-8333-944455556666\n")
    monkeypatch.setattr(leases, "_BOOT_ID", tmp_path / "boot_id")
    watch, began = leases.Watch(), time.monotonic()
    assert leases.take(tmp_path) is None
    while watch.waits(tmp_path):
        time.sleep(0.02)
    assert time.monotonic() - began > leases.lease_timeout()
    assert leases.take(tmp_path).number == 2


def test_who_lost_a_lease_changes_nothing_of_the_results(tmp_path):
    store = Store(tmp_path / "x")
    store.prepare()
    lease = leases.take(tmp_path / "work")
    leases._release(tmp_path / "work", lease.number)  # as a waiter does after the lease timeout
    for write in (
        lambda: lease.replace(tmp_path / "file", b""),
        lambda: store._write_sealed(lease, store.document("compute"), {}),
        lambda: store.add_metric(lease, store.variant_folder("a", "b"), "c", measured()),
    ):
        with pytest.raises(leases.LostError, match="was taken over by another process"):
            write()
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and "released" not in p.name]


@pytest.mark.parametrize("given", ["20s", "0", "-1", "nan", "inf"])
def test_a_lease_that_is_none_is_refused(given, tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_ABLATE_LEASE_S", given)
    with pytest.raises(ConfigError, match=f"LLAMA_ABLATE_LEASE_S: '{given}' is no number of sec"):
        leases.take(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_a_worker_alone_waits_for_a_live_holder_and_takes_over_from_a_dead_one(four, tmp_path):
    """Who waits says try again; the dead holder was on another machine."""
    root = grid(four, tmp_path).root
    store, run = Store(root), next(iter(Store(root).plan.runs))
    words = [PYTHON, "-m", "llama_ablate.launch.worker", str(root), run]
    disk.remove_tree(store.folder(run))
    with store.lease(run):
        assert subprocess.run(words, check=False).returncode == 75
    assert not store.is_final(run)
    disk.make(store.working(run))
    (store.working(run) / "lease-1").write_text("elsewhere boot 1 1")
    assert subprocess.run(words, check=False).returncode == 0
    assert store.is_final(run)
