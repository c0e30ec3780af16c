"""Grids of seconds, run as users run them: in processes, stopped, killed, and gone on with."""

import errno
import math
import os
import shutil
import signal
import threading
import time
from itertools import chain, count, repeat
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from llama_ablate.commands.cli import main
from llama_ablate.findings.frames import Frames
from llama_ablate.launch import local, worker
from llama_ablate.results import Results, Store
from tests.commands import at_work, command, ended, kill
from tests.in_process import Inline, run_in_process
from tests.quiet import until
from tests.reliability.harness import breaches
from tests.tables import sentences_of as warnings

LONG = "{steps: 400, batch: 4, lr: 1e-3, precision: float32, kernel: math, evals: 2}"


def test_each_seed_starts_from_other_weights(experiment_file, tmp_path):
    """One step at a rate near 0 leaves the initial weights almost as they were."""
    train = "{steps: 1, batch: 2, lr: 1e-7}"
    file = experiment_file("{}", train=train, seeds="2", measure="[perplexity]")
    assert run_in_process(file, tmp_path) == 0
    first, second = map(load_file, tmp_path.glob("tiny/runs/*/weights.safetensors"))
    embedding = "embedding.weight"
    assert (first[embedding] - second[embedding]).abs().mean() > 0.001


def test_a_run_is_committed_where_an_open_file_that_is_removed_gets_another_name(
    experiment_file, tmp_path, monkeypatch
):
    """NFS renames it to `.nfs...`, which cannot be removed before it is closed; here, never."""
    unlink, numbers = os.unlink, count()

    def renamed(path, **given):
        if Path(path).name.startswith(".nfs"):
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        if "working" not in Path(path).parts:
            return unlink(path, **given)
        return Path(path).rename(Path(path).parent / f".nfs{next(numbers)}")

    file = experiment_file(seeds="1", measure="[perplexity]")
    with monkeypatch.context() as patch:
        patch.setattr(worker, "train", interrupt)
        assert run_in_process(file, tmp_path) == 130
    store = Store(tmp_path / "tiny")
    monkeypatch.setattr(os, "unlink", renamed)
    for run in store.plan.runs:
        assert worker.main([str(store.root), run]) == 0
        assert store.is_final(run)
    assert run_in_process(file, tmp_path) == 0


def interrupt(*_arguments, **_more):
    raise KeyboardInterrupt


@pytest.mark.full
@pytest.mark.usefixtures("in_process")
def test_a_model_of_ten_million_parameters_is_trained_stopped_resumed_and_generates(
    experiment_file, tmp_path, answer, monkeypatch
):
    file = experiment_file(
        "{}",
        model="{dim: 320, layers: 8, heads: 8, context: 64, feedforward: swiglu}",
        train="{steps: 12, batch: 4, lr: 1e-3, precision: float32, evals: 2}",
        seeds="1",
    )
    (variant,) = answer("plan", file, "--json")["variants"]
    assert 9_500_000 < variant["parameters"] < 10_500_000
    assert run_in_process(file, tmp_path / "whole") == 0
    asked = count()
    stops = chain([lambda: next(asked) >= 6], repeat(lambda: False))
    monkeypatch.setattr(worker, "_stop_signal", lambda _lease: next(stops))
    assert run_in_process(file, tmp_path) == 0
    assert not breaches(tmp_path / "tiny", tmp_path / "whole" / "tiny")
    (record,) = Store(tmp_path / "tiny").records()
    weights = load_file(Store(tmp_path / "tiny").weights(record.id))
    assert sum(weight.numel() for weight in weights.values()) == variant["parameters"]
    assert 1 < record.numbers["test_loss_nats"] < math.log(256)
    words = ("generate", tmp_path / "tiny" / "baseline", "--prompt", "a", "--temperature", "0")
    assert answer(*words, "--no-cache") == answer(*words)


@pytest.mark.usefixtures("in_process")
def test_a_plan_that_leaves_finished_runs_out_is_kept_and_shows_them(
    experiment_file, tmp_path, answer, capsys
):
    file, root = experiment_file(), tmp_path / "tiny"
    assert run_in_process(file, tmp_path) == 0
    assert run_in_process(file, tmp_path, "--set", "seeds=1") == 0
    (earlier,) = root.glob("plan-*.json")
    error = capsys.readouterr().err
    assert f"note: 2 finished runs in '{root}' are not in this plan; they stay there" in error
    assert f"llama-ablate show '{earlier}'" in error
    assert not breaches(root)
    assert [row["outcome"] for row in answer("show", earlier, "--json")] == ["2 too short"] * 2
    answer("report", earlier)
    assert (root / "report" / earlier.stem / "report.html").is_file()
    assert run_in_process(file, tmp_path) == 0  # the plan that stood before is the plan again
    assert "not in this plan" not in capsys.readouterr().err
    assert not breaches(root)


def test_a_diverging_variant_is_shown_and_the_exit_code_is_1(experiment_file, tmp_path, capsys):
    # Weights of 1e15 overflow float32 in the feed-forward, and LayerNorm makes NaN of that.
    wild = "{label: exploding, norm: layernorm, init_std: 1.0e+15}"
    file = experiment_file(f"{{design: list, entries: [{{label: plain}}, {wild}]}}")
    assert run_in_process(file, tmp_path) == 1
    shown = capsys.readouterr()
    assert "2 diverged" in shown.out
    assert "not finite by step 1" in shown.err
    assert "exploding" in (tmp_path / "tiny" / "report" / "report.html").read_text()


@pytest.mark.full
def test_a_run_that_is_lost_again_and_again_ends_as_an_error_and_the_others_go_on(
    experiment_file, tmp_path, launch, monkeypatch
):
    monkeypatch.setenv("LLAMA_ABLATE_LEASE_S", "1")  # it is not given up any sooner
    file = experiment_file(train=LONG, seeds="1")
    launcher = launch(command(file, tmp_path))
    store = tmp_path / "tiny"
    until((store / "plan.json").exists)
    doomed = next(iter(Store(store).plan.runs))
    killed = set()
    while launcher.poll() is None:
        for process in at_work(launcher, store, run=doomed):
            killed.add(process.pid)
            kill(process)
        time.sleep(0.02)
    assert launcher.returncode == 1, launcher.stderr.read()
    assert len(killed) == 3
    records = {r.id: r for r in Store(store).records()}
    assert records[doomed].outcome == "error"
    assert "SIGKILL" in records[doomed].reason
    assert [r.outcome for id_, r in records.items() if id_ != doomed] == ["ok"]
    assert run_in_process(file, tmp_path) == 0
    assert not list((store / "failed").iterdir())


def test_a_grid_whose_worker_is_killed_and_that_is_stopped_goes_on_to_the_same_numbers(
    experiment_file, tmp_path, capsys
):
    """The launcher starts the worker again. Ctrl-C leaves checkpoints and exit code 130."""
    train = LONG.replace("400", "600").replace("evals: 2", "evals: 20")
    file, root = experiment_file("{}", train=train, seeds="1"), tmp_path / "tiny"
    assert run_in_process(file, tmp_path / "whole") == 0
    here, workers = psutil.Process(), []

    def kill_and_interrupt():
        workers.extend(until(lambda: at_work(here, root)))
        kill(workers[0])
        workers.extend(until(lambda: {*at_work(here, root)} - {*workers}))
        until(lambda: [*root.glob("working/*/live.json")])  # from its first evaluation on
        os.kill(here.pid, signal.SIGINT)

    threading.Thread(target=kill_and_interrupt, daemon=True).start()
    code = main(command(file, tmp_path)[3:])
    said = capsys.readouterr().err
    assert code == 130
    assert "the same command goes on" in said
    assert "Traceback" not in said
    ended(workers)
    assert [*root.glob("working/*/checkpoint-*")]
    assert run_in_process(file, tmp_path) == 0
    assert not breaches(root, tmp_path / "whole" / "tiny")


@pytest.mark.usefixtures("in_process")
def test_metrics_can_be_added_without_training_again(
    experiment_file, tmp_path, book, answer, monkeypatch
):
    assert run_in_process(experiment_file(measure="[perplexity]"), tmp_path / "taken") == 0
    taken = [r.metrics["perplexity"].rows for r in Store(tmp_path / "taken" / "tiny").records()]
    assert run_in_process(experiment_file(measure="[gradients]"), tmp_path) == 0
    store = Store.open(tmp_path / "tiny")
    answer("measure", store.root, "perplexity", "kv_cache")
    assert [record.metrics["perplexity"].rows for record in store.records()] == taken
    assert all(store.metrics_of([v.id])[v.id]["kv_cache"] for v in store.plan.tables[0].variants)
    book.write_text(book.read_text("utf-8") + " at night", "utf-8")
    monkeypatch.setenv("LLAMA_ABLATE_CACHE", str(tmp_path / "empty"))
    said = answer("measure", store.root, "calibration", code=2)
    assert "the corpus has changed since these runs were planned" in said


@pytest.mark.parametrize(
    ("given", "ranks", "shares"),
    [
        ("5,7", 1, ["5", "7", "5"]),
        ("GPU-8a,GPU-3f,GPU-c1,GPU-09", 2, ["GPU-8a,GPU-3f", "GPU-c1,GPU-09", "GPU-8a,GPU-3f"]),
    ],
)
def test_workers_share_the_gpus_that_this_process_was_given(
    tmp_path, monkeypatch, given, ranks, shares
):
    """Under CUDA_VISIBLE_DEVICES=5,7 the first of two GPUs is number 5 of the machine, not 0."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: given.count(",") + 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert local.Local(Store(tmp_path), "cuda", 3, ranks)._gpus == shares
    assert local.Local(Store(tmp_path), "cpu", 3, ranks)._gpus == ["", "", ""]


class Two(Inline):
    """A launcher of two workers that keeps how many runs it is given at once."""

    slots, given = 2, []

    def submit(self, runs):
        self.given.append(len(runs))
        super().submit(runs)


#: What training raises, by the seed of the run, and how the run ends.
RAISED = {
    0: (torch.OutOfMemoryError("CUDA out of memory"), "ok"),
    1: (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "ok"),
    2: (torch.OutOfMemoryError("CUDA out of memory"), "oom"),
    3: (ValueError("a bug"), "error"),
}


def test_a_run_that_ran_out_of_memory_beside_others_is_retried_once_and_alone(
    experiment_file, tmp_path, monkeypatch
):
    trained, tried = worker.train, []

    def train(*arguments, seed, **more):
        tried.append(seed)
        if tried.count(seed) == 1 or seed == 2:
            raise RAISED[seed][0]
        return trained(*arguments, seed=seed, **more)

    monkeypatch.setattr(worker, "train", train)
    monkeypatch.setattr("tests.in_process.Inline", Two)
    file = experiment_file(variants="{}", seeds="4", measure="[perplexity]")
    assert run_in_process(file, tmp_path, "--workers", "2") == 1
    records = Store(tmp_path / "tiny").records()
    assert {r.seed: r.outcome for r in records} == {seed: end for seed, (_, end) in RAISED.items()}
    assert all(record.reason for record in records if not record.ok)
    assert tried == [0, 1, 2, 3, 0, 1, 2]
    assert Two.given == [2, 2, 1, 1, 1]


class Interrupted(Inline):
    """A launcher at whose first run somebody presses Ctrl-C."""

    def submit(self, _runs):
        raise KeyboardInterrupt


def test_runs_of_two_machines_join_at_home_and_none_is_trained_again(
    experiment_file, tmp_path, monkeypatch
):
    file = experiment_file(seeds="4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.in_process.Inline", Interrupted)
        assert run_in_process(file, tmp_path / "home") == 130
    for machine, seeds in (("one", "[0, 1]"), ("two", "[2, 3]")):
        assert run_in_process(file, tmp_path / machine, "--set", f"seeds={seeds}") == 0
        runs = tmp_path / machine / "tiny" / "runs"
        shutil.copytree(runs, tmp_path / "home" / "tiny" / "runs", dirs_exist_ok=True)
    monkeypatch.setattr("tests.in_process.Inline", Interrupted)  # it would train nothing
    assert run_in_process(file, tmp_path / "home") == 0
    home = Results.open(tmp_path / "home" / "tiny")
    assert [status.outcome for status in home.statuses] == ["ok"] * 8
    assert not any("file" in line and "before" in line for line in warnings(Frames.of(home)))
