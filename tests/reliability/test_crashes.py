"""R2 and R6: a crash or a fault at every call that changes the disk."""

import os
import signal

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.data.corpora import documents

from . import harness
from .harness import Disk, breaches, crash_at, fail_at, grid, in_child


@pytest.fixture
def tiny(experiment_file, monkeypatch):
    """An experiment whose text is trusted to be what it was: no trial reads it a second time."""
    monkeypatch.setattr(documents, "_RECENT_S", 0)
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
    what = "SIGKILL before every call that changes the disk, half way into a write"
    tally("R2", what, len(numbers), len(failed))


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
    what = "ENOSPC, EIO, EMFILE, EDQUOT at every call that changes the disk"
    tally("R6", what, trials, len(failed))
