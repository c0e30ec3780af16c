"""The package as others install it: its types, its entry point, and what pages tell to install."""

import subprocess
import sys
import tomllib
import venv
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def needed(names):
    """Return the installed distributions that these need, directly or through others."""
    found: dict = {}
    waiting = [Requirement(name) for name in names]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate()):
            found[name] = metadata.distribution(name)
            waiting += [
                other
                for other in map(Requirement, found[name].requires or ())
                if other.marker is None or other.marker.evaluate({"extra": ""})
            ]
    return found.values()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Return the wheel that is built from here."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("llama_ablate-*.whl")
    return built


def installed(wheel, folder):
    """Return the Python of a new environment with the wheel and nothing else."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index"]
    subprocess.run([*install, "--no-deps", str(wheel)], check=True, capture_output=True)
    return python


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("hatchling") is None, reason="the package hatchling is not there")
def test_the_wheel_runs_the_first_experiment_offline_with_its_dependencies_alone(wheel, tmp_path):
    python = installed(wheel, tmp_path / "venv")
    (packages,) = (tmp_path / "venv").rglob("site-packages")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for distribution in needed(project["dependencies"]):
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))
    (packages / "sitecustomize.py").write_text(NO_NETWORK, "utf-8")

    def run(*words):
        command = [str(python), "-m", "llama_ablate", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

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
