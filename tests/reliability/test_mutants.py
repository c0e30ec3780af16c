"""R23: faults seeded in our own store. A battery that misses them proves nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.commands import PYTHON

from .conftest import FULL

ROOT = Path(__file__).parents[2]
DISK, LEASES = "llama_ablate/files/disk.py", "llama_ablate/results/leases.py"
FOLDER, LOOP = "llama_ablate/results/run_folder.py", "llama_ablate/training/loop.py"
SAVED = "llama_ablate/training/checkpoint.py"

#: What is wrong, where, what stands there, and what stands there in its place.
MUTANTS = [
    (
        "files are not flushed",
        DISK,
        "            self.flush()\n            os.fsync(self._handle)",
        "            self.flush()",
    ),
    ("folders are not flushed", DISK, "        os.fsync(handle)\n", "        pass\n"),
    (
        "documents are written in place",
        DISK,
        'partial = (aside or path.parent) / f"{PARTIAL}{secrets.token_hex(8)}"',
        "partial = path\n    remove(path)",
    ),
    (
        "an error of the disk is swallowed",
        DISK,
        "        remove(path)\n        raise\n",
        "        remove(path)\n",
    ),
    (
        "a lease can be had twice",
        LEASES,
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL",
        "os.O_WRONLY | os.O_CREAT",
    ),
    (
        "a lease that was broken counts as held",
        LEASES,
        "return (there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev)",
        "return bool(there)",
    ),
    (
        "a lease is never renewed",
        LEASES,
        "            os.utime(self._handle, ns=(0, beat * 10**9))",
        "            pass",
    ),
    (
        "the process of a lease is known by its number alone",
        "llama_ablate/results/processes.py",
        "_began(int(pid)) == began",
        "_began(int(pid)) != ''",
    ),
    (
        "a process of another boot is taken for dead",
        "llama_ablate/results/processes.py",
        "(boot, namespace) != (_boot(), _namespace())",
        "namespace != _namespace()",
    ),
    (
        "a lease is counted by the clock",
        LEASES,
        "at.st_mtime_ns), time.monotonic()",
        "at.st_mtime_ns), time.time()",
    ),
    (
        "a beat is the time of the clock",
        LEASES,
        "ns=(0, beat * 10**9)",
        "ns=(0, int(time.time()) * 10**9)",
    ),
    ("hashes are not looked at", FOLDER, '.get("sha256") != digest', '.get("sha256") == "never"'),
    (
        "a damaged checkpoint is believed",
        SAVED,
        'if not path.name.endswith(f"-{digest[:32]}.pt"):',
        "if not digest:",
    ),
    (
        "the optimizer's state is not restored",
        LOOP,
        '    optimizer.load_state_dict(values.pop("optimizer"))',
        '    values.pop("optimizer")',
    ),
    (
        "a document in the place of another is believed",
        "llama_ablate/files/strict_json.py",
        'hashlib.sha256(place.encode() + b"\\n" + text)',
        "hashlib.sha256(text)",
    ),
]
#: What of the battery is run against each, the quick ones first: of R3, R4, R5, R8, R13, and the
#: tests of the store.
TESTS = [
    "tests/test_results.py",
    "tests/reliability/test_resume.py",
    "tests/reliability/test_power_loss.py",
    "tests/reliability/test_damage.py",
    "tests/reliability/test_races.py",
]
_SLOW = "not fills_up and not goes_away and not slept"


@pytest.fixture
def copy(tmp_path):
    """The sources, to be spoiled."""
    for name in ("llama_ablate", "tests", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    return tmp_path


def caught_by(copy, tests=TESTS):
    """Return the first test that fails against the spoiled sources, or None."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("LLAMA_ABLATE_TORTURE", None)
    done = subprocess.run(
        [
            PYTHON,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--timeout",
            "120",
            "-k",
            _SLOW,
            *tests,
        ],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout[-2000:]
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert bool(failed) == bool(done.returncode), done.stdout[-2000:]
    return failed[0] if failed else None


def spoil(copy, file, stands, instead):
    source = (copy / file).read_text("utf-8")
    assert source.count(stands) == 1, (file, stands)
    (copy / file).write_text(source.replace(stands, instead), "utf-8")


def test_every_seeded_fault_can_still_be_seeded(copy):
    for _what, file, stands, instead in MUTANTS:
        original = (copy / file).read_text("utf-8")
        spoil(copy, file, stands, instead)
        compile((copy / file).read_text("utf-8"), file, "exec")
        (copy / file).write_text(original, "utf-8")


@pytest.mark.skipif(not FULL, reason="part of `make torture`: a battery for every fault")
@pytest.mark.timeout(3600)
def test_nine_of_ten_faults_seeded_in_the_store_are_caught(copy, tally):
    assert caught_by(copy) is None  # what catches everything catches nothing
    missed = []
    for what, file, stands, instead in MUTANTS:
        original = (copy / file).read_text("utf-8")
        spoil(copy, file, stands, instead)
        found = caught_by(copy)
        print(f"{what}: {found}")
        missed += [what] * (found is None)
        (copy / file).write_text(original, "utf-8")
    said = f"; not caught: {', '.join(missed)}" if missed else ""
    assert len(missed) <= len(MUTANTS) / 10, missed
    tally(
        "R23",
        f"faults seeded in the store, {len(MUTANTS) - len(missed)} caught{said}",
        len(MUTANTS),
    )
