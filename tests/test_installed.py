"""The package as others install it: its types, its entry point, and what pages tell to install."""

import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = """\
import llama_ablate as la

reveal_type(la.open("results/first"))
"""
#: What is done before the first import of the package.
NO_LOCKS = "sys.modules['fcntl'] = None"
INTERRUPT = """
class Interrupt:
    def find_spec(self, name, *_rest):
        if name == "llama_ablate.commands.run":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
"""


@pytest.mark.full
@pytest.mark.skipif(find_spec("hatchling") is None, reason="the package hatchling is not there")
def test_mypy_knows_the_types_of_the_wheel_that_is_built_from_here(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("llama_ablate-*.whl")
    venv.create(tmp_path / "venv", symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index"]
    subprocess.run([*install, "--no-deps", str(wheel)], check=True, capture_output=True)
    (tmp_path / "script.py").write_text(SCRIPT, "utf-8")
    check = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python)]
    done = subprocess.run(
        [*check, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        'script.py:3: note: Revealed type is "llama_ablate.api.OpenedResults"',
        "Success: no issues found in 1 source file",
    ]


@pytest.mark.parametrize(
    ("before", "code", "told"),
    [
        (NO_LOCKS, 2, "llama_ablate needs Linux or macOS; on Windows, use WSL"),
        (INTERRUPT, 130, "interrupted"),
    ],
)
def test_what_goes_wrong_while_the_command_line_is_imported_is_one_line(before, code, told):
    run = "import runpy; runpy.run_module('llama_ablate', run_name='__main__')"
    words = [sys.executable, "-c", f"import sys\n{before}\n{run}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"llama-ablate: {told}\n")


def test_no_page_installs_by_a_name_that_no_index_has():
    files = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("llama_ablate/**/*.py")]
    assert len(files) > 200
    assert not [str(file) for file in files if "install 'llama-ablate" in file.read_text("utf-8")]
