"""Thousands of runs, and a full disk: what commands print, and how long they take."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.files import disk
from llama_ablate.results import Store
from tests import filled
from tests.in_process import run_in_process


@pytest.fixture
def made(tmp_path):
    """Make a results folder of any size; see `filled.store`."""

    def make(variants, seeds, pending=0):
        return filled.store(tmp_path / f"{variants}x{seeds}" / "x", variants, seeds, pending).root

    return make


IMPORTS = "import resource, sys; from pathlib import Path"
REPORT = """
from llama_ablate.commands.cli import main
assert main(["report", sys.argv[1]]) == 0
"""
#: The most that a program has held; of `getrusage` it could be that of the one that started it.
TAKEN = """
used = resource.getrusage(resource.RUSAGE_SELF)
(held,) = (line for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))
print(used.ru_utime + used.ru_stime, int(held.split()[1]) / 1024)
"""


def taken(program, root):
    """Run a program; return the lines that it prints, its CPU seconds and its mebibytes."""
    words = [sys.executable, "-c", f"{IMPORTS}{program}{TAKEN}", root]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    *lines, last = done.stdout.splitlines()
    return lines, *map(float, last.split())


@pytest.mark.row("R17", "report of 10,000 runs in less than 400 MiB and a minute")
@pytest.mark.full
def test_the_report_of_ten_thousand_runs_takes_less_than_400_mebibytes_and_a_minute(made):
    lines, seconds, mib = taken(REPORT, made(2000, 5))
    assert any("variant 1999" in line for line in lines)
    assert mib < 400, mib  # 230 of them are what is imported
    assert seconds < 60, seconds


def reads(words, root, monkeypatch, capsys):
    """Run a command; return how often each file of the results was opened, and names listed."""
    opened, listed = Counter(), Counter()
    real = {"open": disk._regular, "listdir": os.listdir}

    def count_open(path):
        opened[Path(path)] += Path(path).is_relative_to(root)
        return real["open"](path)

    def count_names(path, found):
        listed[str(path)] += len(found) if Path(path).is_relative_to(root) else 0
        return found

    with monkeypatch.context() as patched:
        patched.setattr(disk, "_regular", count_open)
        patched.setattr(os, "listdir", lambda path: count_names(path, real["listdir"](path)))
        assert main([*words[:1], str(root), *words[1:]]) == 0
    capsys.readouterr()
    return opened, listed


@pytest.mark.row("R17", "show of one variant reads its own runs")
def test_to_show_a_variant_its_own_runs_are_read_and_no_more_than_that(made, monkeypatch, capsys):
    for variants in (15, 60):
        root = made(variants, 3)
        opened, listed = reads(["show", "variant 7"], root, monkeypatch, capsys)
        runs = {file.relative_to(root).parts[1] for file in opened if "runs" in file.parts}
        assert {run.partition("--")[0] for run in runs} == {"variant-7"}
        assert len(runs) == 3
        variant_rows = {file.parent.parent.name for file in opened if "variants" in file.parts}
        assert variant_rows == {"rope--v0", "variant-7--v7"}
        assert opened.total() < 30
        assert listed.total() < 4 * variants * 3 + 30  # the names of all, once or twice


def test_the_disk_that_runs_need_is_predicted_and_missing_room_is_told_before_the_start(
    experiment_file, tmp_path, capsys, monkeypatch
):
    file = experiment_file()
    assert main(["plan", str(file), "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)["disk_bytes"]
    assert run_in_process(file, tmp_path / "r", "--workers", "1") == 0
    capsys.readouterr()
    root = tmp_path / "r" / "tiny"
    weights = sum(p.stat().st_size for p in root.glob("runs/*/weights.safetensors"))
    # Parameters of four runs in float32; safetensors adds a header to each.
    assert predicted["all"] - predicted["none"] == pytest.approx(weights, rel=0.1)
    assert predicted["best"] - predicted["none"] == pytest.approx(weights / 2, rel=0.1)
    rest = sum(p.stat().st_size for p in root.glob("runs/*/*")) - weights
    assert rest < predicted["none"]

    needed = {"none": 10 << 10, "best": 20 << 10, "all": 40 << 10}
    monkeypatch.setattr("llama_ablate.design.forecast.disk_bytes", lambda *_of: needed)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(free=15 << 10))
    assert main(["run", str(file), "--results", str(tmp_path / "full")]) == 2
    said = capsys.readouterr().err
    assert f"need up to 40 KiB in '{tmp_path}/full/tiny', and 15 KiB are free" in said
    assert re.findall(r"--keep-weights (\w+) takes", said) == ["none"]
    # How this machine computes had been chosen, and stays for the next try.
    assert [p.name for p in (tmp_path / "full" / "tiny").iterdir()] == ["compute.json"]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("keep", "left"), [("none", 0), ("best", 2)])
def test_only_the_weights_that_are_asked_for_are_kept(
    keep, left, experiment_file, tmp_path, capsys
):
    file = experiment_file(measure="[perplexity]")
    arguments = ["run", str(file), "--results", str(tmp_path), "--keep-weights", keep]
    assert main(arguments) == 0
    store = Store(tmp_path / "tiny")
    kept = {p.parent for p in store.root.glob("runs/*/weights.safetensors")}
    assert len(kept) == left
    for variant in store.plan.tables[0].variants:
        of = [r for r in store.records() if r.variant == variant.id]
        best = min(of, key=lambda r: r.numbers["validation_loss_nats"])
        assert (store.folder(best.id) in kept) == (keep == "best")
    before = [p.stat().st_mtime_ns for p in sorted(store.root.glob("runs/*/record.json"))]
    assert main(arguments) == 0  # weights that were not kept are no damage
    after = [p.stat().st_mtime_ns for p in sorted(store.root.glob("runs/*/record.json"))]
    assert before == after
    capsys.readouterr()
    assert main(["measure", str(store.root), "calibration"]) == 2
    assert "has no weights to measure: they were not kept" in capsys.readouterr().err
