"""Which folder may import which: one ordered list, held against the source with ast."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "llama_ablate"
FILES = sorted(PACKAGE.rglob("*.py"))

#: A folder may import those above it. Commands and the Python API see all; nothing else sees
#: interop.
ORDER = [
    "errors",
    "terminal",
    "files",
    "config",
    "evidence",
    "data",
    "model",
    "results",
    "training",
    "measure",
    "design",
    "findings",
    "report",
    "track",
    "launch",
    "interop",
    "commands",
    "api",
    "__main__",
]
#: Results open where no torch is installed, so these never import it; nor do their imports.
NO_TORCH = [
    "errors",
    "terminal",
    "files",
    "config",
    "evidence",
    "results",
    "findings",
    "report",
]


def folder(file):
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(file):
    """Return (module, name) of every import in a file, also of those inside functions."""
    found = []
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found += [(node.module, alias.name) for alias in node.names]
    return found


def imported_folders(file):
    modules = (module for module, _ in imports(file) if module.startswith("llama_ablate."))
    return {module.split(".")[1] for module in modules}


def test_the_root_holds_folders_and_little_else():
    there = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith((".", "__py"))}
    assert there - {"__init__", "py"} == {*ORDER}


@pytest.mark.parametrize("name", [name for name in ORDER if name != "__main__"])
def test_a_folder_imports_only_those_above_it(name):
    above = {name, *ORDER[: ORDER.index(name)]}
    wrong = {str(f): imported_folders(f) - above for f in FILES if folder(f) == name}
    assert not {file: found for file, found in wrong.items() if found}


@pytest.mark.parametrize("name", NO_TORCH)
def test_what_must_open_without_torch_imports_neither_it_nor_what_does(name):
    heavy = {"torch", "datasets"}
    for file in (f for f in FILES if folder(f) == name):
        assert not heavy & {module.split(".")[0] for module, _ in imports(file)}, file
        assert imported_folders(file) <= {*NO_TORCH}, file


def test_the_package_imports_nothing_of_the_repository_around_it():
    around = {path.name for path in ROOT.iterdir() if path.is_dir()} - {PACKAGE.name}
    assert {"analysis", "docs", "tests"} <= around
    wrong = {str(f): {m.split(".")[0] for m, _ in imports(f)} & around for f in FILES}
    assert not {file: found for file, found in wrong.items() if found}
