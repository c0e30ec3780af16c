"""The Dockerfile: what it copies is there and let through, and its pins are the tests' own."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "Dockerfile").read_text("utf-8").splitlines()


def test_torch_and_packages_are_those_that_the_tests_run_with():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (torch,) = re.findall(r"^TORCH\s+\?= (\S+)", makefile, re.MULTILINE)
    assert f"ARG TORCH={torch}" in LINES
    assert any("--constraint /opt/source/constraints.txt" in line for line in LINES)
    (base,) = (line.removeprefix("ARG BASE=") for line in LINES if line.startswith("ARG BASE="))
    assert re.fullmatch(r"python:3\.11-slim-\w+", base)


def test_what_is_copied_is_all_that_is_sent_to_the_builder():
    copied = {name for line in LINES if line.startswith("COPY ") for name in line.split()[1:-1]}
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("recipe", ["kubernetes", "skypilot"])
def test_recipes_take_the_image(recipe):
    file = ROOT / "docs" / "launchers" / f"{recipe}.yaml"
    assert re.search(r'image(_id)?: ("docker:)?llama-ablate\b', file.read_text("utf-8"))
