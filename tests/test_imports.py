"""Who imports whom: the arrows of docs/architecture.md, read from the source with ast."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "llama_ablate"
FILES = sorted(PACKAGE.rglob("*.py")) + sorted((ROOT / "analysis").glob("*.py"))

#: Each place, and what of the package it may import (itself is always allowed).
MAY = {
    "errors": [],
    "validation": ["errors"],
    "margins": [],
    "terminal": [],
    "registry": ["errors", "validation"],
    "spec": ["registry"],
    "marked_yaml": ["errors"],
    "recipes": ["registry", "validation"],
    "slugs": [],
    "schema": ["margins", "recipes", "registry", "slugs", "validation"],
    "experiment": ["errors", "marked_yaml", "recipes", "schema", "slugs"],
    "designs": ["errors"],
    "matching": ["errors", "spec"],
    "grid": ["designs", "errors", "experiment", "matching", "registry", "spec"],
    "trials": ["errors", "experiment", "grid", "spec"],
    "condition": ["data", "errors", "experiment", "grid", "model", "plugins", "spec", "trials"],
    "disk": [],
    "strict_json": ["disk", "errors"],
    "results": ["disk", "errors", "experiment", "strict_json"],
    "evidence": [],
    "report": ["disk", "errors", "evidence", "experiment", "margins", "results", "strict_json",
               "terminal"],
    "data": ["disk", "errors", "registry", "spec"],
    "model": ["disk", "errors", "registry", "spec"],
    "training": ["data", "disk", "errors", "experiment", "model", "plugins", "results", "spec"],
    "measure": ["data", "errors", "experiment", "model", "registry", "results", "spec",
                "training"],
    "plan": ["condition", "data", "errors", "experiment", "grid", "matching", "measure", "model",
             "plugins", "registry", "spec", "trials"],
    "summary": ["errors", "experiment", "grid", "model", "registry", "report", "spec"],
    "generation": ["data", "errors", "model"],
    "bench": ["errors", "evidence", "experiment", "grid", "model", "training"],
    "inquiry": ["bench", "errors", "experiment", "grid", "marked_yaml", "model", "registry", "spec",
                "validation"],
    "chat": ["data", "errors"],
    "interop": ["condition", "data", "errors", "experiment", "grid", "model", "plan", "plugins",
                "registry", "report", "results", "spec", "strict_json"],
    "catalogue": ["data", "errors", "measure", "model", "registry"],
    "plugins": ["errors"],
    "launch": ["__init__", "disk", "plugins", "condition", "data", "errors", "experiment", "grid",
               "measure", "model", "plan", "registry", "results", "spec", "training", "trials"],
    "commands": ["plugins", "bench", "catalogue", "chat", "disk", "errors", "experiment",
                 "generation", "inquiry", "interop", "launch", "plan", "report", "results",
                 "strict_json", "summary", "terminal", "training"],
    "arguments": ["__init__", "margins", "model_arguments"],
    "model_arguments": [],
    "cli": ["plugins", "arguments", "commands", "errors", "terminal"],
    "analysis": ["__init__", "errors", "evidence", "report", "results"],
}  # fmt: skip
NO_TORCH = ["disk", "errors", "margins", "terminal", "recipes", "schema", "strict_json",
            "validation", "marked_yaml", "registry", "slugs", "spec",
            "experiment", "designs", "matching", "grid", "trials", "results", "evidence",
            "report", "analysis"]  # fmt: skip
SLOT_FILES = ["norms", "positions", "attention", "feedforward", "blocks"]


def place(file):
    relative = file.relative_to(ROOT)
    return (
        relative.parts[0]
        if relative.parts[0] == "analysis"
        else relative.parts[1].removesuffix(".py")
    )


def imports(file):
    """Return (module, name) for every import in a file, also those inside functions."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield from ((node.module, alias.name) for alias in node.names)


def of_package(file):
    for module, name in imports(file):
        if module == "llama_ablate":
            yield (
                name
                if (PACKAGE / f"{name}.py").exists() or (PACKAGE / name).is_dir()
                else "__init__"
            )
        elif module.startswith("llama_ablate."):
            yield module.split(".")[1]


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_arrows_go_one_way(file):
    here = place(file)
    if here in ("__init__", "__main__"):
        return
    wrong = set(of_package(file)) - {here, *MAY[here]}
    assert not wrong, f"{here} may not import {sorted(wrong)}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_what_must_open_without_torch_does_not_import_it(file):
    if place(file) in NO_TORCH:
        heavy = {module.split(".")[0] for module, _ in imports(file)} & {"torch", "datasets"}
        assert not heavy


@pytest.mark.parametrize("slot", SLOT_FILES)
def test_slots_never_import_each_other(slot):
    others = {f"llama_ablate.model.{name}" for name in SLOT_FILES if name != slot}
    assert not others & {module for module, _ in imports(PACKAGE / "model" / f"{slot}.py")}


def test_only_the_decoder_knows_all_five_registries():
    known = {
        file.name
        for file in FILES
        if len({n for m, n in imports(file) if m.startswith("llama_ablate.model")} &
               {"NORMS", "POSITIONS", "ATTENTIONS", "FEEDFORWARDS", "BLOCKS"}) == 5
    }  # fmt: skip
    assert known == {"decoder.py"}


def test_the_package_has_no_circles():
    graph = {here: set(allowed) - {"__init__"} for here, allowed in MAY.items()}
    seen = []

    def visit(node, path):
        assert node not in path, f"circle: {[*path, node]}"
        if node not in seen:
            for other in graph[node]:
                visit(other, [*path, node])
            seen.append(node)

    for node in graph:
        visit(node, [])


def test_files_stay_within_300_lines():
    long = {f.name: n for f in FILES if (n := len(f.read_text("utf-8").splitlines())) > 300}
    assert not long
