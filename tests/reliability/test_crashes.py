"""R2 and R6: a crash or a fault at every call that changes the disk."""

import pytest

from llama_ablate.data import readers

from . import harness
from .harness import EVERY_STEP, crash_at, fail_at, gone_on, grid, in_child

#: What is tried at every call, by its row.
TRIED = {
    "R2": "SIGKILL before every call that changes the disk, half way into a write",
    "R6": "ENOSPC, EIO, EMFILE, EDQUOT at every call that changes the disk",
}


@pytest.mark.parametrize("row", TRIED)
def test_after_a_crash_or_a_fault_at_any_call_the_next_command_ends_with_the_same_results(
    row, two, tmp_path, volume, tally, monkeypatch
):
    monkeypatch.setattr(readers, "RECENT_S", 0)  # no trial reads the text a second time
    reference = grid(two, tmp_path / "reference").root
    calls = harness.count_calls(two, tmp_path / "counted")
    assert calls > 100
    # The fast tier takes every 37th call: opening, writing, flushing and renaming are among them.
    numbers = range(volume(5, 1, 1), calls + 1, volume(37, 1 if row == "R2" else 3, 1))
    faults = volume(1, 1, len(harness.FAULTS))
    failed, trials = [], 0
    for number in numbers:
        codes = (harness.FAULTS * 2)[number % 4 : number % 4 + faults] if row == "R6" else (None,)
        for code in codes:
            results = tmp_path / f"{number}-{code}"

            def spoiled(number=number, results=results, code=code):
                (fail_at(number, code) if code else crash_at(number)).install()
                grid(two, results)

            trials += 1
            # A fault is an error of the system (2), or a run's own, which is tried again (0).
            assert in_child(spoiled) in ((0, 2) if code else (-9,)), number
            found = gone_on(two, results, reference, EVERY_STEP)
            failed += [(number, code, *each) for each in found]
    print(failed)
    tally(row, TRIED[row], trials, len(failed))
