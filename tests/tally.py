"""Rows of the reliability battery: what each test tried, how often, when, and of which code.

    LLAMA_ABLATE_TORTURE=FILE pytest ...    runs the tests that have a row, and adds what they found
    python -m tests.tally FILE              puts it in the place of what these tests found before

A test has a row where it is marked with one (a case is a trial), or counts its trials with `tally`.
"""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "results" / "reference" / "torture.jsonl"
FILE = os.environ.get("LLAMA_ABLATE_TORTURE")
#: What the battery is about: its content is known by git's hash of the folder.
PACKAGE = "llama_ablate"


def git(*words: str) -> str:
    """Return what git prints. Raises CalledProcessError where it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@cache
def _code() -> dict[str, str]:
    """Return the commit and the hash of the package's content. Raises AssertionError if changed."""
    changed = git("status", "--porcelain", "--", PACKAGE)
    assert not changed, f"a row is about a commit: commit these first\n{changed}"
    return {"commit": git("rev-parse", "HEAD"), "code": git("rev-parse", f"HEAD:{PACKAGE}")}


def write(row: str, what: str, trials: int, failures: int, seconds: float, test: str) -> None:
    """Add what a row of the battery found to the file that collects it, if there is one."""
    if FILE is None:
        return
    line = {
        "row": row,
        "what": what,
        "trials": trials,
        "failures": int(failures),
        "seconds": round(seconds, 1),
        "test": test,
        "date": datetime.now(UTC).date().isoformat(),
        **_code(),
    }
    with Path(FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def rows(file: Path = KEPT) -> list[dict]:
    """Return the lines of a file."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def _exists(test: str) -> bool:
    """Return whether a test is still there, by its file and its name."""
    file, _, name = test.partition("::")
    path = ROOT / file
    return path.is_file() and f"def {name.partition('[')[0]}(" in path.read_text("utf-8")


def merge(new: Path) -> None:
    """Replace the rows of the tests that ran, and drop the rows of tests that are gone."""
    found = rows(new)
    ran = {line["test"] for line in found}
    lines = [r for r in rows() if r["test"] not in ran and _exists(r["test"])] + found
    lines.sort(key=lambda line: (int(line["row"][1:]), line["test"], line["what"]))
    KEPT.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


if __name__ == "__main__":
    merge(Path(sys.argv[1]))
