"""Two versions of the program and one folder, both ways: nothing is lost, and no word is false.

The other versions are built from this repository's history, where it has one.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llama_ablate import __version__
from llama_ablate.files.strict_json import sealed

ROOT = Path(__file__).parents[1]
#: The last version of format 3, and one of a day before.
OLD = {"94f6784c": "0.1.0", "b9eac1a1": "0.1.0"}
EXPERIMENT = """
name: x
model: {{dim: 16, layers: 1, heads: 2, context: 16}}
data: {{corpus: {{name: files, path: {text}}}, tokenizer: chars}}
train: {{steps: 3, batch: 2, lr: 1.0e-3, precision: float32, kernel: math, evals: 1}}
variants: {{axes: {{norm: [rmsnorm, layernorm]}}}}
measure: [perplexity]
seeds: {seeds}
"""


def built(commit, place):
    """Return a folder with the package as it was at a commit."""
    words = ["git", "-C", str(ROOT), "archive", commit, "llama_ablate", "experiments"]
    made = subprocess.run(words, capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"this checkout has no history with the commit {commit}")
    place.mkdir()
    subprocess.run(["tar", "-x", "-C", str(place)], input=made.stdout, check=True)
    return place


@pytest.fixture
def two(tmp_path, request):
    """Run a command by a version: today's (None), or the other one's code."""
    other = built(request.param, tmp_path / "other")
    (tmp_path / "text.txt").write_text("a story of two versions and a folder. " * 200)

    def run(whose, *words):
        code = ROOT if whose is None else other
        of_cache = {"LLAMA_ABLATE_CACHE": str(tmp_path / f"cache{whose}")}
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "llama_ablate", *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(code), **of_cache},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def file(seeds):
        (tmp_path / "x.yaml").write_text(
            EXPERIMENT.format(text=tmp_path / "text.txt", seeds=seeds), "utf-8"
        )
        return tmp_path / "x.yaml"

    run.file, run.commit, run.results = file, request.param, tmp_path / "results"
    return run


def sums(root):
    """Return the SHA-256 of every file of the results but logs and what a report writes."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not {"report", "working"} & {*path.relative_to(root).parts}
    }


@pytest.mark.row("R26", "skew: results of 94f6784c and b9eac1a1 read, gone on with and kept")
@pytest.mark.full
@pytest.mark.parametrize("two", OLD, indirect=True)
def test_results_of_an_older_version_are_read_gone_on_with_and_kept(two):
    done = two(two.commit, "run", two.file(1), "--results", two.results, "--workers", 1)
    assert done.returncode == 0, done.stderr
    root = two.results / "x"
    before = sums(root)
    for words in (["status"], ["show"], ["report"], ["pack", "--out", two.results / "packed"]):
        read = two(None, words[0], root, *words[1:])
        assert (read.returncode, "damaged" in read.stderr) == (0, False), read.stderr
    assert sums(root) == before
    more = two(None, "run", two.file(2), "--results", two.results, "--workers", 1)
    assert more.returncode == 0, more.stderr
    assert "5 runs: 5 too short" in two(None, "status", root).stdout  # the baseline again is one
    after = sums(root)
    assert {k: v for k, v in before.items() if k.startswith("runs/")}.items() <= after.items()
    assert json.loads((root / "plan.json").read_text("utf-8"))["format"] == 4


@pytest.mark.row("R26", "skew: 94f6784c and b9eac1a1 refuse the results and packs of today")
@pytest.mark.full
@pytest.mark.parametrize("two", OLD, indirect=True)
def test_an_older_version_refuses_todays_results_in_a_line_and_changes_nothing(two):
    done = two(None, "run", two.file(1), "--results", two.results, "--workers", 1)
    assert done.returncode == 0, done.stderr
    root = two.results / "x"
    packed = two.results / "packed"
    assert two(None, "pack", root, "--out", packed).returncode == 0
    before, in_pack = sums(root), sums(packed)
    commands = [[word, place] for word in ("status", "show", "report") for place in (root, packed)]
    commands += [["measure", root, "kv_cache"]]
    commands += [["run", two.file(2), "--results", two.results, "--workers", 1]]
    for words in commands:
        refused = two(two.commit, *words)
        said = [line for line in refused.stderr.splitlines() if line.startswith("llama-ablate")]
        assert refused.returncode == 2, words
        assert len(said) == 1, refused.stderr
        assert "is of format 4: a later version wrote it" in said[0], words
        assert not {"damaged", "rm "} & {word for word in ("damaged", "rm ") if word in said[0]}
    assert (sums(root), sums(packed)) == (before, in_pack)


@pytest.mark.row("R26", "skew: plans and protocols of a later version")
@pytest.mark.full
@pytest.mark.parametrize("change", ["format", "a key of the plan", "a key of the protocol"])
def test_what_a_later_version_wrote_is_said_to_be_its_and_left_as_it_is(tmp_path, change):
    from tests import filled

    store = filled.store(tmp_path / "x", variants=2, seeds=1)
    name = "protocol.json" if change.endswith("protocol") else "plan.json"
    values = json.loads((store.root / name).read_text("utf-8"))
    del values["sha256"]
    if change == "format":
        values |= {"format": 5, "version": "0.9.0"}
    elif name == "plan.json":
        values |= {"version": "0.9.0", "new_key": 1}
    else:
        values["versions"][0]["new_key"] = 1
    (store.root / name).write_bytes(sealed(values, name))
    before = sums(store.root)
    (tmp_path / "x.yaml").write_text("name: x\ntrain: {steps: 2, batch: 4}\nvariants: {}\n")
    commands = (["report", store.root], ["show", store.root], ["run", tmp_path / "x.yaml"])
    for words in commands:
        done = subprocess.run(
            [sys.executable, "-m", "llama_ablate", *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=shutil.copytree(
                tmp_path / "x", tmp_path / "results" / "x", dirs_exist_ok=True
            ).parent.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        said = done.stderr.strip().splitlines()[-1]
        assert (done.returncode, "damaged" in said, "rm " in said) == (2, False, False), said
        assert "version" in said
        assert change != "format" or ("(0.9.0)" in said and f"version {__version__}" in said)
        assert sums(store.root) == before == sums(tmp_path / "results" / "x")
