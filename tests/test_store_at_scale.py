"""Five thousand runs, and a disk that is too small: what is seen and said, and how fast."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from llama_ablate.cli import main
from llama_ablate.report import planned
from llama_ablate.results import CURVE, Record, Store
from tests.quiet import within

RECORD = Record(
    id="", label="rope", variant="v1", seed=0, outcome="ok", reason="", steps_done=2,
    tokens_done=64, train_s=0.5, peak_memory_bytes=1000, model={"dim": 8}, train={"lr": 0.1},
    data="f", engine={"device": "cpu"}, environment={"python": "3", "packages": ["x"] * 20},
    measures={"perplexity": {"test_loss_nats": 1.5}},
)  # fmt: skip


@pytest.fixture
def thousands(tmp_path, monkeypatch):
    """A results folder of 5,000 runs; what is written is not flushed, to make it in seconds."""
    monkeypatch.setattr("llama_ablate.disk.os.fsync", lambda _handle: None)
    store = Store(tmp_path / "x")
    runs = [{"id": f"{n:08x}", "variant": "v1", "seed": n} for n in range(5000)]
    variants = [{"id": "v1", "label": "rope"}]
    store.create({"runs": runs, "variants": variants}, "name: x\n")
    claim = SimpleNamespace(held=True, agreed=lambda _key, value: value, number=1,
                            folder=store.working("all"))  # fmt: skip
    for run in runs[:4990]:
        outcome = "diverged" if run["seed"] % 1000 == 7 else "ok"
        record = replace(RECORD, id=run["id"], seed=run["seed"], outcome=outcome)
        store.runs.commit(claim, record, [dict.fromkeys(CURVE, 1.0)], None)
    return store.root


def test_the_status_of_five_thousand_runs_takes_less_than_two_seconds(thousands):
    times = []
    for _ in range(3):
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-m", "llama_ablate", "status", str(thousands),
                               "--json"], capture_output=True, check=False)  # fmt: skip
        times.append(time.monotonic() - began)
    said = json.loads(done.stdout)
    assert said["outcomes"] == {"ok": 4985, "diverged": 5, "pending": 10}
    assert len(said["runs"]) == 5000
    assert within(sorted(times)[1], 2), times


def test_a_run_that_somebody_is_at_is_running(thousands, capsys):
    store = Store(thousands)
    with store.claim("00001383"):
        assert main(["status", str(thousands)]) == 1
    said = capsys.readouterr().out
    assert "5000 runs: 4985 ok, 5 diverged, 9 pending, 1 running" in said
    assert "rope s7: diverged" in said


def test_the_disk_that_runs_need_is_predicted_and_missing_room_is_told_before_the_start(
    experiment_file, tmp_path, capsys, monkeypatch
):
    file = experiment_file()
    assert main(["plan", str(file), "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)["disk_bytes"]
    assert main(["run", str(file), "--results", str(tmp_path / "r"), "--workers", "1"]) == 0
    capsys.readouterr()
    root = tmp_path / "r" / "tiny"
    weights = sum(p.stat().st_size for p in root.glob("runs/*/weights.safetensors"))
    # Parameters of four runs in float32; safetensors adds a header to each.
    assert predicted["all"] - predicted["none"] == pytest.approx(weights, rel=0.1)
    assert predicted["best"] - predicted["none"] == pytest.approx(weights / 2, rel=0.1)
    rest = sum(p.stat().st_size for p in root.glob("runs/*/*")) - weights
    assert rest < predicted["none"]

    usage = SimpleNamespace(free=1 << 10)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: usage)
    assert main(["run", str(file), "--results", str(tmp_path / "full")]) == 2
    said = capsys.readouterr().err
    assert "1 KiB are free; with --keep-weights best" in said
    assert said.count("\n") == 1
    assert not list((tmp_path / "full" / "tiny" / "runs").iterdir())


@pytest.mark.parametrize(("keep", "left"), [("none", 0), ("best", 2), ("all", 4)])
def test_only_the_weights_that_are_asked_for_are_kept(keep, left, experiment_file, tmp_path,
                                                      capsys):  # fmt: skip
    file = experiment_file(measure="[perplexity]")
    arguments = ["run", str(file), "--results", str(tmp_path), "--keep-weights", keep]
    assert main(arguments) == 0
    store = Store(tmp_path / "tiny")
    kept = {p.parent for p in store.root.glob("runs/*/weights.safetensors")}
    assert len(kept) == left
    if keep == "best":
        for variant in store.plan["variants"]:
            of = [r for r in store.records() if r.variant == variant["id"]]
            best = min(of, key=lambda r: r.numbers["validation_loss_nats"])
            assert store.runs.folder(best.id) in kept
    before = [p.stat().st_mtime_ns for p in sorted(store.root.glob("runs/*/record.json"))]
    assert main(arguments) == 0  # weights that were not kept are no damage
    after = [p.stat().st_mtime_ns for p in sorted(store.root.glob("runs/*/record.json"))]
    assert before == after
    capsys.readouterr()
    if keep != "all":
        assert main(["measure", str(store.root), "calibration"]) == 2
        assert "has no weights to measure: they were not kept" in capsys.readouterr().err


def test_sizes_are_written_for_people():
    assert [planned.size(n) for n in (0, 1000, 2048, 3 << 20, 5 << 40)] == [
        "0 bytes", "1e+03 bytes", "2 KiB", "3 MiB", "5.0 TiB",
    ]  # fmt: skip
