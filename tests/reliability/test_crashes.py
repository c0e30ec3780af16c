"""R2, R3 and R6: a crash, a fault, a loss of power at every call that changes the disk."""

import errno
import os
import random
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.data import readers
from tests.commands import PYTHON, command

from . import crashing as crash
from . import harness
from .harness import Disk, breaches, crash_at, fail_at, grid, in_child

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tiny(experiment_file, monkeypatch):
    """An experiment whose text is trusted to be what it was: no trial reads it a second time."""
    monkeypatch.setattr(readers, "_RECENT_S", 0)
    train = "{steps: 3, batch: 2, lr: 1e-3, precision: float32, kernel: math, evals: 1}"
    return experiment_file(train=train, measure="[perplexity]", variants="{}")


@pytest.fixture
def reference(tiny, tmp_path):
    found = grid(tiny, tmp_path / "reference")
    assert not breaches(found.root)
    return found.root


def test_after_a_crash_at_any_call_the_next_command_ends_with_the_same_results(
    tiny, reference, tmp_path, volume, tally
):
    calls = harness.count_calls(tiny, tmp_path / "counted")
    assert calls > 100
    # The fast tier takes every 19th call: opening, writing, flushing and renaming are among them.
    failed, numbers = [], range(volume(5, 1, 1), calls + 1, volume(19, 1, 1))
    for number in numbers:
        results = tmp_path / f"crash-{number}"

        def crash(number=number, results=results):
            crash_at(number).install()
            grid(tiny, results)

        assert in_child(crash) == -9, number
        assert in_child(grid, tiny, results) == 0, number
        if found := breaches(results / "tiny", reference):
            failed.append((number, found))
    print(failed)
    tally(
        "R2",
        "SIGKILL before every call that changes the disk, half way into a write",
        len(numbers),
        len(failed),
    )


def crashing(file, results, noted, who, number, code=0):
    """Run a command, on a real launcher, one of whose processes crashes or fails at a call."""
    said = "|".join(map(str, (noted, who, number, code)))
    words = [PYTHON, "-m", "tests.reliability.crashing", *command(file, results)[3:]]
    return subprocess.run(
        words,
        cwd=ROOT,
        env=os.environ | {crash.VARIABLE: said},
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_after_a_crash_or_a_fault_of_a_real_launcher_or_worker_the_next_command_ends_the_same(
    tiny, tmp_path, volume, tally, capsys
):
    """With all that a command does: also measures and the report."""
    calls = tmp_path / "calls"
    assert crashing(tiny, tmp_path / "reference", calls, "", 0).returncode == 0
    reference = tmp_path / "reference" / "tiny"
    assert not breaches(reference)
    made = Counter(calls.read_text().split("\n"))
    most = {
        who: max(n for line, n in made.items() if line.startswith(who))
        for who in ("launcher", "worker")
    }
    chance, wrong, hit = random.Random(2), [], Counter()
    trials = [("launcher", 0), ("worker", 0)]
    trials = volume(trials, trials, [*trials, ("launcher", errno.ENOSPC)] * 40)
    for trial, (who, code) in enumerate(trials):
        results, noted = tmp_path / str(trial), tmp_path / f"noted-{trial}"
        number = chance.randint(1, most[who])
        done = crashing(tiny, results, noted, who, number, code)
        hit[who] += noted.exists()
        # A worker that is lost is started again: then the command itself goes on.
        expected = (-signal.SIGKILL,) if who == "launcher" and not code else (0, 2)
        if (noted.exists() and done.returncode not in expected) or "Traceback" in done.stderr:
            wrong.append((who, number, code, done.returncode, done.stderr))
        again = main(command(tiny, results)[3:])
        if found := breaches(results / "tiny", reference) or again:
            wrong.append((who, number, code, found))
    capsys.readouterr()
    print(wrong, most, hit)
    tally(
        "R2",
        f"commands with a real launcher, of which {hit['launcher']} crashed or failed at a "
        f"call, and {hit['worker']} lost a worker at one",
        len(trials),
        len(wrong),
    )


def test_what_a_killed_report_left_half_written_is_gone_after_the_next(tiny, tmp_path, capsys):
    root = grid(tiny, tmp_path).root

    def killed(_number, name, arguments):
        if name == "replace" and "figures" in str(arguments[-1]):
            os.kill(os.getpid(), signal.SIGKILL)

    def report(at=lambda *_: None):
        Disk(at).install()
        main(["report", str(root)])

    assert in_child(report, killed) == -9
    assert any("is a temporary file" in what for _name, _path, what in breaches(root))
    assert in_child(report) == 0
    assert not breaches(root)
    capsys.readouterr()


def test_after_a_fault_at_any_call_the_next_command_ends_with_the_same_results(
    tiny, reference, tmp_path, volume, tally
):
    calls = harness.count_calls(tiny, tmp_path / "counted")
    failed, trials = [], 0
    for number in range(volume(4, 1, 1), calls + 1, volume(25, 3, 1)):
        faults = volume(1, 1, len(harness.FAULTS))
        for code in (harness.FAULTS * 2)[number % 4 : number % 4 + faults]:
            results = tmp_path / f"fault-{number}-{code}"

            def fault(number=number, results=results, code=code):
                fail_at(number, code).install()
                grid(tiny, results)

            trials += 1
            # It is an error of the system (2), or a run's own, which the queue tries again (0).
            assert in_child(fault) in (0, 2), number
            assert in_child(grid, tiny, results) == 0, number
            if found := breaches(results / "tiny", reference):
                failed.append((number, code, found))
    print(failed)
    tally(
        "R6", "ENOSPC, EIO, EMFILE, EDQUOT at every call that changes the disk", trials, len(failed)
    )
