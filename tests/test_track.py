"""What is sent to trackers: all of a run, and never at its cost."""

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

import llama_ablate as la
from llama_ablate.files.slugs import slug
from llama_ablate.launch import worker
from llama_ablate.results import Results, Store
from llama_ablate.track import SINKS, TrackedRun
from llama_ablate.track.sinks import Sinks
from tests.in_process import run_in_process
from tests.metrics import measured
from tests.plans import RECORD, document, run, table, variant

CURVE = [
    {"step": step, "tokens": 32 * step, "train_loss_nats": 4.0 / step, "lr": 0.1}
    for step in (1, 2, 3)
]


def plan():
    variants = [variant("v1", "rope"), variant("v2", "alibi")]
    return document(table(variants, [run("r1", "v1"), run("r2", "v2")]), name="my test")


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "my-test")
    made.prepare()
    made.create(plan(), "")
    return made


def record(**changes):
    return replace(RECORD, **{"id": "r1", **changes})


def committed(store, **numbers):
    metrics = {"perplexity": measured(**numbers)} if numbers else {}
    store.commit(record(metrics=metrics, steps_done=3), CURVE, None)


@pytest.fixture
def kept(monkeypatch):
    """A sink that keeps what it is sent, and can fail or hang."""
    for name in ("_components", "_schemas"):
        monkeypatch.setattr(SINKS, name, dict(getattr(SINKS, name)))
    seen = SimpleNamespace(runs={}, points={}, ended={}, fails="", tried=0)
    seen.hangs, seen.goes_on = False, threading.Event()

    def fail(place):
        seen.tried += 1
        if seen.hangs:
            seen.goes_on.wait(30)
        if seen.fails == place:
            raise ConnectionError("the network\nis gone")

    @SINKS.register("kept")
    class Kept:
        package = ""

        def __init__(self, folder, run):
            del folder
            fail("open")
            self._run = run.id
            seen.runs[run.id] = run
            seen.points[run.id] = []

        def log(self, step, values):
            fail("log")
            seen.points[self._run].append((step, dict(values)))

        def finish(self, outcome):
            fail("finish")
            seen.ended[self._run] = outcome

    return seen


def test_each_point_is_sent_once_and_only_finite_numbers(kept, tmp_path):
    sinks = Sinks(["kept"], tmp_path, TrackedRun.of(plan(), "r1"))
    sinks.send([])
    sinks.send(CURVE[:1])
    sinks.send([*CURVE[:1], {**CURVE[1], "lr": float("nan")}])
    sinks.finish(record(metrics={"perplexity": measured(test_loss_nats=1.5)}))
    *points, (step, metrics) = kept.points["r1"]
    assert [at for at, _ in points] == [1, 2]
    assert points[1][1] == {"tokens": 64, "train_loss_nats": 2.0}
    assert step == RECORD.steps_done
    assert metrics["final/test_loss_nats"] == 1.5
    assert metrics["final/train_s"] == RECORD.train_s
    assert kept.ended == {"r1": "ok"}
    assert not sinks.failures


@pytest.mark.parametrize("place", ["open", "log", "finish"])
def test_a_sink_that_fails_is_left_with_its_reason(kept, tmp_path, place):
    kept.fails = place
    sinks = Sinks(["kept"], tmp_path, TrackedRun.of(plan(), "r1"))
    sinks.send(CURVE[:1])
    sinks.send(CURVE)
    sinks.finish(record())
    assert "ConnectionError: the network" in sinks.failures["kept"]
    assert kept.tried == {"open": 1, "log": 2, "finish": 6}[place]


def test_a_sink_that_hangs_takes_no_time_from_training(kept, tmp_path, monkeypatch):
    monkeypatch.setattr("llama_ablate.track.sinks._PATIENCE_S", 0.2)
    kept.hangs = True
    sinks = Sinks(["kept"], tmp_path, TrackedRun.of(plan(), "r1"))
    before = time.monotonic()
    for count in range(1, 4):
        sinks.send(CURVE[:count])
    assert time.monotonic() - before < 0.1
    sinks.finish(record())
    assert 0.2 <= time.monotonic() - before < 2
    assert sinks.failures == {"kept": "no answer within 0 s"}
    kept.goes_on.set()


@pytest.fixture
def grid(experiment_file):
    """Write an experiment of two runs."""
    return experiment_file(seeds="1", measure="[perplexity]")


def test_runs_send_their_curves_and_metrics_while_they_train_and_the_comparison(
    kept, grid, tmp_path, monkeypatch
):
    """A run that was stopped sends its whole curve when it goes on."""
    asked = itertools.count()
    stops = itertools.chain([lambda: next(asked) >= 4], itertools.repeat(lambda: False))
    monkeypatch.setattr(worker, "_stop_signal", lambda _lease: next(stops))
    assert run_in_process(grid, tmp_path / "results", "--track", "kept") in (0, 1)
    assert next(asked) > 4
    opened = la.open(tmp_path / "results" / "tiny")
    results = Results.open(tmp_path / "results" / "tiny")
    assert {*kept.ended} == {*results.plan.runs, "comparison"}
    for run_id, finished in results.finished.items():
        *points, (last, metrics) = kept.points[run_id]
        assert [step for step, _ in points] == [int(p["step"]) for p in finished.curve()]
        assert last == 6
        assert metrics["final/validation_loss_nats"] > 0
    sent = {key: value for _, row in kept.points["comparison"] for key, value in row.items()}
    for row in opened.comparison().to_dict("records"):
        assert sent[f"{slug(row['variant'])}/loss"] == row["loss"]


@pytest.mark.row("R29", "damage: a tracker that fails")
def test_a_failing_sink_changes_no_run_is_not_tried_again_and_is_one_note(
    kept, grid, tmp_path, capsys
):
    kept.fails = "log"
    assert run_in_process(grid, tmp_path / "results", "--track", "kept") in (0, 1)
    root = tmp_path / "results" / "tiny"
    assert len(Results.open(root).finished) == 2
    assert kept.tried == 2
    notes = [line for line in capsys.readouterr().err.splitlines() if "--track" in line]
    again = f"llama-ablate track '{root}' --to kept sends the finished runs again"
    assert notes == [f"note: --track kept: ConnectionError: the network is gone; {again}"]


def test_a_sink_that_is_not_installed_stops_no_run(kept, grid, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(SINKS.get("kept"), "package", "no_such_package")
    assert run_in_process(grid, tmp_path / "results", "--track", "kept") in (0, 1)
    assert not kept.tried
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "--track" in line]
    assert "pip install no_such_package; the runs train without it" in note


def test_the_command_sends_what_has_finished_and_a_failing_sink_is_one_line(store, kept, answer):
    committed(store)
    words = ("track", store.root, "--to", "kept")
    assert answer(*words, "--to", "kept", "--json") == {"sent": {"kept": 1}}
    assert [step for step, _ in kept.points["r1"]] == [1, 2, 3, 3]
    assert kept.ended == {"r1": "ok", "comparison": "ok"}
    kept.fails = "log"
    error = answer(*words, code=2)
    assert (
        error == "llama-ablate: --to kept: ConnectionError: the network is gone; 0 runs were sent"
    )


def test_a_link_in_what_a_tracker_keeps_of_a_run_is_its_own_and_any_other_is_refused(
    store, kept, tmp_path, answer
):
    """Weights & Biases links to a log of its own in the folder of each run."""
    committed(store)
    (store.track / "wandb" / "run-1" / "logs").mkdir(parents=True)
    (store.track / "wandb" / "run-1" / "logs" / "core.log").symlink_to(tmp_path / "log")
    answer("track", store.root, "--to", "kept")
    assert kept.ended["r1"] == "ok"
    for name in ("wandb/run-2", "kept.log", "tensorboard"):
        (store.track / name).unlink(missing_ok=True)
        (store.track / name).symlink_to(tmp_path)
        assert f"{name}' is a link" in answer("track", store.root, "--to", "kept", code=2)
        (store.track / name).unlink()


# ---------------------------------------------------------------- the trackers themselves

#: What a tracker's own package reads of what was sent: programs that print it as JSON.
READS = {
    "tensorboard": """
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.plugins.hparams import metadata
runs = EventMultiplexer().AddRunsFromDirectory(folder + "/tensorboard").Reload()
name, _ = sorted(runs.Runs(), reverse=True)
scalars = {tag: runs.Scalars(name, tag) for tag in ("train_loss_nats", "final/test_loss_nats")}
content = runs.SummaryMetadata(name, metadata.SESSION_START_INFO_TAG).plugin_data.content
start = metadata.parse_session_start_info_plugin_data(content)
found = {
    "steps": [event.step for event in scalars["train_loss_nats"]],
    "loss": scalars["final/test_loss_nats"][0].value,
    "dim": start.hparams["model.dim"].number_value,
    "name": name.partition("/")[2].partition("--")[0],
}
""",
    "mlflow": """
from mlflow import MlflowClient
client = MlflowClient()
experiment = client.get_experiment_by_name("my test")
runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
_, name = sorted(runs)
run = runs[name]
curve = client.get_metric_history(run.info.run_id, "train_loss_nats")
found = {
    "steps": sorted(point.step for point in curve),
    "loss": run.data.metrics["final/test_loss_nats"],
    "dim": int(run.data.params["model.dim"]),
    "name": name,
}
""",
}


@pytest.mark.full
@pytest.mark.parametrize("name", [*READS, "wandb"])
@pytest.mark.row("R29", "sent twice to a tracker, and read by its own package")
def test_a_tracker_reads_one_run_with_its_curve_metrics_and_recipe(name, store, tmp_path):
    """Sent by the command, a process: trackers start threads."""
    pytest.importorskip(name)
    env = os.environ | {
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    committed(store, test_loss_nats=1.5)
    words = [sys.executable, "-m", "llama_ablate", "track", str(store.root), "--to", name]
    for _ in range(2):
        done = subprocess.run(words, env=env, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    Results(store.root).refuse_links()
    if name == "wandb":  # no package reads what it writes offline
        (file,) = store.track.glob("wandb/offline-run-*-r1/*.wandb")
        assert b"final/test_loss_nats" in file.read_bytes()
        return
    reads = f"import json, sys\nfolder = sys.argv[1]\n{READS[name]}print(json.dumps(found))"
    words = [sys.executable, "-W", "ignore", "-c", reads, str(store.track)]
    done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    called = slug("rope s0") if name == "tensorboard" else "rope s0"
    assert found == {"steps": [1, 2, 3], "loss": 1.5, "dim": 8, "name": called}
