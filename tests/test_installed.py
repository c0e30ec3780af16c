"""The package as others install it: its types, its entry point, and what pages tell to install."""

import os
import re
import subprocess
import sys
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

import llama_ablate
from llama_ablate.config import marked_yaml

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
    (schema,) = (tmp_path / "venv").rglob("llama_ablate/config/experiment.schema.json")
    assert schema.read_bytes() == (ROOT / "llama_ablate" / "config" / schema.name).read_bytes()
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


def test_the_package_says_who_made_it_what_it_is_and_where_it_runs_as_its_citation_does():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    citation = marked_yaml.parse((ROOT / "CITATION.cff").read_text("utf-8"), "CITATION.cff").values
    assert citation["version"] == project["version"] == llama_ablate.__version__
    assert citation["license"] == project["license"]
    assert citation["authors"] == project["authors"]
    systems = {one for one in project["classifiers"] if one.startswith("Operating System")}
    assert systems == {"Operating System :: POSIX :: Linux", "Operating System :: MacOS"}
    assert len(project["dependencies"]) <= 18
    names = [re.split(r"[><=\[]", need)[0].lower() for need in project["dependencies"]]
    assert len({*names}) == len(names)


def completed(line, folder):
    """Return what a shell is told may come next, and the exit code."""
    file = folder / "words"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    asked |= {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(file)}
    words = [sys.executable, "-m", "llama_ablate"]
    done = subprocess.run(words, env=os.environ | asked, capture_output=True, check=False)
    assert b"Traceback" not in done.stderr
    return {word.strip() for word in file.read_text("utf-8").split("\n")}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("llama-ablate p", {"plan", "pack"}),
        ("llama-ablate plan x.yaml --device ", {"auto", "cpu", "cuda"}),
        ("llama-ablate show results --a", {"--all"}),
        ("llama-ablate show 'results/a $(touch pwned)", set()),
    ],
)
def test_a_shell_completes_commands_options_and_their_words(line, words, tmp_path, monkeypatch):
    pytest.importorskip("argcomplete", reason="needs the extra completion")
    monkeypatch.chdir(tmp_path)
    assert completed(line, tmp_path) - {""} == words
    assert [file.name for file in tmp_path.iterdir()] == ["words"]
