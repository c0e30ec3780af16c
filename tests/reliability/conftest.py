"""Three tiers of one battery: `make test`, `make test-all` and `make torture`.

With LLAMA_ABLATE_TORTURE set to a file, what every row of the battery found is added to that file.
"""

import json
import os
import time
from pathlib import Path

import pytest

TALLY = os.environ.get("LLAMA_ABLATE_TORTURE")


@pytest.fixture
def tally(request):
    """Report what a row of the battery found; a failure fails the test."""
    began = time.monotonic()

    def report(row, what, trials, failures=0):
        if TALLY:
            line = {
                "row": row,
                "what": what,
                "trials": trials,
                "failures": failures,
                "seconds": round(time.monotonic() - began),
                "test": request.node.nodeid,
            }
            with Path(TALLY).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        assert failures == 0, f"{row}: {failures} of {trials} failed: {what}"

    return report


@pytest.fixture(autouse=True)
def _short_lease(monkeypatch):
    monkeypatch.setenv("LLAMA_ABLATE_LEASE_S", "1")
