"""The benchmarks are run by hand; that they still fit the package is seen here."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.commands import PYTHON

FOLDER = Path(__file__).parents[1] / "benchmarks"


def gpu(*words):
    """Run the script that is left ready for a GPU; return its exit code, and what it says."""
    known = {**os.environ, "PYTHON": PYTHON, "CUDA_VISIBLE_DEVICES": ""}
    script = ["bash", str(FOLDER / "gpu.sh"), *words]
    done = subprocess.run(script, capture_output=True, text=True, check=False, env=known)
    return done.returncode, done.stdout + done.stderr


#: The parts of the script, and the seconds that each may take.
PARTS = {
    part: int(seconds)
    for limits in re.findall(r"LIMIT=\((.*?)\)", (FOLDER / "gpu.sh").read_text("utf-8"), re.DOTALL)
    for part, seconds in re.findall(r"\[(\w+)\]=(\d+)", limits)
}


@pytest.mark.full
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("part", PARTS)
def test_a_dry_run_of_the_script_for_a_gpu_does_a_part_once(part, tmp_path):
    dry = "--device", "cpu", "--tiny", "--out", str(tmp_path), "--part", part
    code, output = gpu(*dry)
    said = (tmp_path / f"{part}.log").read_text("utf-8")
    assert code == 0, (output, said[-1000:])
    assert [file.name for file in tmp_path.glob("*.done")] == [f"{part}.done"]
    if part == "resume":
        assert "stopped in the middle" in said
    assert gpu(*dry) == (0, f"{part}: done before\n")
