"""The table of the battery is about the package as it is, and about tests that are there."""

import os
import subprocess

import pytest

from tests import tally
from tests.commands import PYTHON

#: The share of the package's lines that may have changed since a row was run.
ALLOWED = 0.2


def lines(code):
    """Return how many lines the package had, by git's hash of its folder."""
    counts = tally.git("grep", "-c", "", code).splitlines()
    return sum(int(count.rpartition(":")[2]) for count in counts)


def changed(code):
    """Return the share of lines that only the package then or now has; a move is no change."""
    now = tally.git("rev-parse", f"HEAD:{tally.PACKAGE}")
    numbers = [
        line.split("\t")[:2]
        for line in tally.git("diff", "-M", "--numstat", code, now).splitlines()
        if not line.startswith("-")  # of no text
    ]
    return sum(int(n) for pair in numbers for n in pair) / (lines(code) + lines(now))


@pytest.mark.full
def test_no_more_than_a_fifth_of_the_package_has_changed_since_a_row_was_run():
    try:
        shares = {code: changed(code) for code in {row["code"] for row in tally.rows()}}
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the history is not here: {error}")
    old = [
        f"{row['row']}, {row['what']}: {shares[row['code']]:.0%} since {row['commit'][:7]}"
        for row in tally.rows()
        if shares[row["code"]] > ALLOWED
    ]
    assert not old, "run `make torture`:\n" + "\n".join(old)


@pytest.mark.full
def test_every_test_of_the_table_is_one_of_the_battery():
    words = [PYTHON, "-m", "pytest", "--collect-only", "-q", "--tier", "torture"]
    environment = os.environ | {"LLAMA_ABLATE_TORTURE": "none.jsonl"}
    done = subprocess.run(
        words, cwd=tally.ROOT, env=environment, capture_output=True, text=True, check=False
    )
    there = set(done.stdout.splitlines())
    assert {row["test"] for row in tally.rows()} <= there
