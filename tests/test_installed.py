"""The package as others install it: its types, its entry point, and what pages tell to install."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: What is done before the first import of the package.
NO_LOCKS = "sys.modules['fcntl'] = None"
NO_NETWORK = """
import socket
class Local(socket.socket):
    def connect(self, address):
        if self.family != socket.AF_UNIX:
            raise OSError("no network")
        super().connect(address)
socket.socket = Local
"""
SIGNAL = """
import os, signal
class Interrupt:
    def find_spec(self, name, *_rest):
        if name == "llama_ablate.commands.run":
            os.kill(os.getpid(), signal.NAME)
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("hatchling") is None, reason="the package hatchling is not there")
def test_the_wheel_runs_the_first_experiment_without_a_network(tmp_path):
    """The workflow `wheel` installs it with its dependencies alone."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("llama_ablate-*.whl")
    packages = tmp_path / "packages"
    shutil.unpack_archive(wheel, packages, "zip")
    (packages / "sitecustomize.py").write_text(NO_NETWORK, "utf-8")
    environment = {**os.environ, "PYTHONPATH": str(packages)}

    def run(*words):
        words = [sys.executable, "-m", "llama_ablate", *words]
        given = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}
        return subprocess.run(words, check=False, **given)

    assert run("init", "first").returncode == 0
    few = ["--set", "train.tokens=3k", "--set", "train.batch=4", "--set", "seeds=2"]
    done = run("run", "first.yaml", *few)
    assert done.returncode in (0, 1), done.stderr
    assert (tmp_path / "results" / "first" / "report" / "report.html").stat().st_size > 50_000


@pytest.mark.parametrize(
    ("before", "code", "told"),
    [
        (NO_LOCKS, 2, "llama_ablate needs Linux or macOS; on Windows, use WSL"),
        (SIGNAL.replace("NAME", "SIGINT"), 130, "interrupted"),
        (SIGNAL.replace("NAME", "SIGTERM"), 143, "interrupted"),
    ],
)
def test_what_goes_wrong_while_the_command_line_is_imported_is_one_line(before, code, told):
    run = "import runpy; runpy.run_module('llama_ablate', run_name='__main__')"
    words = [sys.executable, "-c", f"import sys\n{before}\n{run}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"llama-ablate: {told}\n")
