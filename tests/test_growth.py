"""The program grows, and finished runs stay finished: new options and keys change no id."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llama_ablate.config.spec import SLOTS
from llama_ablate.model.components import REGISTRIES

ROOT = Path(__file__).parents[1]
FILE = """
name: grown
data: {corpus: python-stdlib, tokenizer: bytes}
model: {dim: 16, layers: 1, heads: 2, context: 16}
train: {tokens: 512, batch: 4, evals: 1}
variants: {axes: {norm: [layernorm], train.optimizer: [muon]}}
seeds: 2
measure: [perplexity, kv_cache]
"""
#: (file, what stands there, what a later version has there)
GROWTH = [
    ("model/norms.py", "eps: float = 1e-5", "eps: float = 1e-5, shift: float = 0.0"),
    ("training/optimizers.py", "nesterov: bool = True", "nesterov: bool = True, sign: int = 1"),
    ("config/schema.py", "    clip: float =", "    patience: int = 3\n    clip: float ="),
]


def llama_ablate(package, *words):
    """Run a command with the package that lies in a folder."""
    code = "from llama_ablate.commands.cli import script; script()"
    command = [sys.executable, "-c", code, *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(package)}
    done = subprocess.run(
        command, cwd=package, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def files(folder):
    """Return the content and the time of every file in a folder, by its path."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


@pytest.fixture
def grown(tmp_path):
    """A copy of the package in which a component has one more option, and `train` one more key."""
    shutil.copytree(ROOT / "llama_ablate", tmp_path / "later" / "llama_ablate")
    for name, old, new in GROWTH:
        file = tmp_path / "later" / "llama_ablate" / name
        text = file.read_text("utf-8")
        assert old in text, f"{name} has no '{old}' any more: choose another place to grow"
        file.write_text(text.replace(old, new), "utf-8")
    return tmp_path / "later"


@pytest.mark.full
def test_a_new_option_and_a_new_key_change_no_id_train_nothing_and_leave_the_report(
    tmp_path, grown
):
    file, results = tmp_path / "grown.yaml", tmp_path / "results"
    file.write_text(FILE, "utf-8")
    llama_ablate(ROOT, "run", file, "--results", results)
    runs, variants = (files(results / "grown" / name) for name in ("runs", "variants"))
    report = {path: content for path, (content, _) in files(results / "grown" / "report").items()}
    assert "shift" in llama_ablate(grown, "components", "norm").stdout
    done = llama_ablate(grown, "run", file, "--results", results)
    assert "finished runs" not in done.stderr  # that the new plan would leave out
    assert files(results / "grown" / "runs") == runs
    assert files(results / "grown" / "variants") == variants
    now = {path: content for path, (content, _) in files(results / "grown" / "report").items()}
    assert now == report


@pytest.mark.parametrize("slot", SLOTS)
def test_an_option_counts_only_where_it_differs_from_its_default(slot):
    for name in REGISTRIES[slot]:
        assert REGISTRIES[slot].resolve(name).identity() == {"name": name}
