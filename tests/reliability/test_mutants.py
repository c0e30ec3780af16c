"""R23: faults seeded in the package are caught. Tests that miss them prove nothing."""

import os
import shutil
import subprocess

import pytest

from tests.commands import PYTHON
from tests.mutants import FAULTS, ROOT


@pytest.fixture
def copy(tmp_path):
    """The sources, to be spoiled."""
    for name in ("llama_ablate", "tests", "tools", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("results", "docs"):  # tests read packs and pages, and write none
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def caught_by(copy, tests):
    """Return the first test of the fast tier that fails against the copy, or None."""
    words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "120", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("LLAMA_ABLATE_TORTURE", None)
    done = subprocess.run(
        [PYTHON, *words], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout[-2000:]
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert bool(failed) == bool(done.returncode), done.stdout[-2000:]
    return failed[0] if failed else None


def test_every_fault_can_be_seeded():
    for mutant in FAULTS:
        compile(mutant.spoiled(), mutant.file, "exec")


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_sound_sources_pass_all_that_is_to_catch_a_fault(copy):
    """What catches everything catches nothing."""
    assert caught_by(copy, sorted({file for mutant in FAULTS for file in mutant.caught_by})) is None


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mutant", FAULTS, ids=lambda mutant: mutant.what)
def test_a_seeded_fault_is_caught_by_the_fast_tier(mutant, copy, tally):
    (copy / "llama_ablate" / mutant.file).write_text(mutant.spoiled(), "utf-8")
    found = caught_by(copy, mutant.caught_by)
    print(f"{mutant.what}: {found}")
    tally("R23", "faults seeded in the package, each caught by the fast tier", 1, found is None)
