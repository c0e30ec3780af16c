"""What is sent to trackers: all of a run, once, and never at its cost."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from llama_ablate.commands import track as command
from llama_ablate.errors import ConfigError
from llama_ablate.results import Results, Store, live
from llama_ablate.results.live import LiveNote
from llama_ablate.track import SINKS, TrackedRun
from llama_ablate.track.beside import beside
from llama_ablate.track.follower import Follower, alone, follow
from llama_ablate.track.sinks import checked
from tests.metrics import measured
from tests.plans import RECORD, document, run, table, variant

CURVE = [
    {"step": step, "tokens": 32 * step, "train_loss_nats": 4.0 / step, "lr": 0.1}
    for step in (1, 2, 3)
]


def plan(tuned=(), **experiment):
    variants = [variant("v1", "rope"), variant("v2", "alibi")]
    runs = [run("r1", "v1", tuned=dict(tuned)), run("r2", "v2", tuned=dict(tuned))]
    return document(table(variants, runs), name="my test", **experiment)


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "my-test")
    made.prepare()
    made.create(plan(), "")
    return made


def record(id_="r1", variant="v1", **changes):
    values = {"id": id_, "variant": variant, "label": "rope", "metrics": {}}
    return replace(RECORD, **{**values, **changes})


def committed(store, id_="r1", variant="v1", **numbers):
    metrics = {"perplexity": measured(**numbers)} if numbers else {}
    store.commit(record(id_, variant, metrics=metrics), CURVE, None)


def trains(store, points, id_="r1"):
    """Write what a worker notes of a run that it trains."""
    folder = store.working(id_)
    folder.mkdir(parents=True, exist_ok=True)
    LiveNote(folder, id_, steps=8, tokens_per_step=32)(points[-1]["step"], 4.0, points)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(live, "EVERY_S", 0.0)


@pytest.fixture
def kept(monkeypatch):
    """A sink that keeps what it is sent, and can fail."""
    for name in ("_components", "_schemas"):
        monkeypatch.setattr(SINKS, name, dict(getattr(SINKS, name)))
    seen = SimpleNamespace(runs={}, steps={}, ended={}, opened=[], fails=False)

    @SINKS.register("kept")
    class Kept:
        package = ""

        def __init__(self, folder):
            self._folder = folder

        def open(self, run):
            if seen.fails:
                raise ConnectionError("the network\nis gone")
            self._run = run.id
            seen.runs[run.id] = run
            seen.opened.append(run.id)
            return max((step for step, _ in seen.steps.get(run.id, [])), default=-1)

        def log(self, step, values):
            if seen.fails:
                raise ConnectionError("in the middle")
            seen.steps.setdefault(self._run, []).append((step, dict(values)))

        def finish(self, outcome, metrics):
            seen.ended[self._run] = outcome, dict(metrics)

    return seen


def test_a_run_is_named_by_experiment_variant_and_seed_and_has_its_recipe():
    made = plan(train={"steps": 2, "batch": 4, "lr": 0.25})
    first = TrackedRun.of(made, made.runs["r1"])
    made = plan({"lr": 0.1}, tune={"lr": [0.1, 0.2]})
    tuned = TrackedRun.of(made, made.runs["r2"])
    assert (first.project, first.group, first.name) == ("my test", "rope", "rope s0")
    assert tuned.name == "alibi s0 (lr=0.1)"
    assert first.config["model"] == {"dim": 8}
    assert first.config["train"]["lr"] == 0.25
    assert first.flat["train.batch"] == 4
    assert {type(value) for value in first.flat.values()} <= {str, int, float, bool}


def test_curves_are_sent_while_a_run_trains_and_each_point_once(store, kept):
    follower = Follower(Results(store), "kept")
    follower.send_new()
    assert not kept.opened
    trains(store, CURVE[:1])
    follower.send_new()
    trains(store, CURVE[:2])
    follower.send_new()
    assert [step for step, _ in kept.steps["r1"]] == [1, 2]
    assert not kept.ended
    committed(store, test_loss_nats=1.5)
    follower.send_new()
    follower.send_new()
    assert kept.steps["r1"] == [
        (p["step"], {k: v for k, v in p.items() if k != "step"}) for p in CURVE
    ]
    assert kept.opened == ["r1"]
    outcome, metrics = kept.ended["r1"]
    assert outcome == "ok"
    assert metrics["final/test_loss_nats"] == 1.5
    assert metrics["final/train_s"] == RECORD.train_s
    assert not follower.done  # the other has not ended


def test_what_is_measured_of_a_variant_afterwards_is_sent_by_the_last_look(store, kept):
    committed(store)
    follower = Follower(Results(store), "kept")
    follower.send_new()
    with store.alone("variants") as lease:
        speed = measured(decode_tokens_per_s=50.0)
        store.add_variant_metric(lease, "rope", "v1", "decode_speed", speed)
    follower.send_new()
    assert "final/decode_tokens_per_s" not in kept.ended["r1"][1]
    follower.send_new(last=True)
    assert kept.ended["r1"][1]["final/decode_tokens_per_s"] == 50.0
    assert len(kept.steps["r1"]) == len(CURVE)
    assert kept.opened == ["r1", "r1"]
    follower.send_new(last=True)  # nothing is new
    assert kept.opened == ["r1", "r1"]


@pytest.mark.row("R29", "kill: a run whose curve is being sent")
def test_a_run_that_was_interrupted_is_closed_as_cancelled_and_gone_on_with(store, kept):
    trains(store, CURVE[:2])
    Follower(Results(store), "kept").send_new(last=True)
    assert kept.ended["r1"] == ("cancelled", {})
    committed(store)
    Follower(Results(store), "kept").send_new(last=True)
    assert [step for step, _ in kept.steps["r1"]] == [1, 2, 3]
    assert kept.ended["r1"][0] == "ok"


@pytest.mark.row("R29", "damage: a tracker that fails, and works again")
def test_a_sink_that_fails_is_told_once_and_all_is_sent_when_it_works_again(store, kept):
    told, looks = [], []
    trains(store, CURVE[:1])

    def ended(_seconds):
        looks.append(_seconds)
        kept.fails = len(looks) < 4
        if len(looks) == 4:
            committed(store)
        return len(looks) == 5

    follower = Follower(Results(store), "kept")
    follower.send_new()
    trains(store, CURVE[:2])
    kept.fails = True  # in the middle of the run: it is opened again from what arrived
    follow(follower, ended, told.append)
    assert [type(error) for error in told] == [ConnectionError]
    assert looks[0] < looks[1] < looks[2] < looks[3]  # it waits longer each time
    assert looks[4] == looks[0]
    assert kept.opened == ["r1", "r1"]
    assert [step for step, _ in kept.steps["r1"]] == [1, 2, 3]
    assert kept.ended["r1"][0] == "ok"


def test_the_command_sends_what_has_finished_and_a_failing_sink_is_one_line(store, kept, answer):
    committed(store)
    words = ("track", store.root, "--to", "kept")
    assert answer(*words, "--to", "kept", "--json") == {"sent": {"kept": 1}}
    kept.fails = True
    error = answer(*words, code=2)
    assert error == "llama-ablate: --to kept: ConnectionError: the network; 0 runs were sent"


def test_a_link_in_what_a_tracker_keeps_of_a_run_is_its_own_and_any_other_is_refused(
    store, kept, tmp_path, answer
):
    """Weights & Biases links to a log of its own in the folder of each run."""
    committed(store)
    (store.track / "wandb" / "run-1" / "logs").mkdir(parents=True)
    (store.track / "wandb" / "run-1" / "logs" / "core.log").symlink_to(tmp_path / "log")
    answer("track", store.root, "--to", "kept")
    assert kept.ended["r1"][0] == "ok"
    for name in ("wandb/run-2", "kept.log", "tensorboard"):
        (store.track / name).unlink(missing_ok=True)
        (store.track / name).symlink_to(tmp_path)
        assert f"{name}' is a link" in answer("track", store.root, "--to", "kept", code=2)
        (store.track / name).unlink()


def test_the_command_follows_until_all_runs_have_ended(store, kept, monkeypatch, answer):
    def finish(_seconds):
        committed(store, "r2" if "r1" in kept.ended else "r1", "v2" if kept.ended else "v1")

    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=finish))
    assert "2 runs sent to kept" in answer("track", store.root, "--to", "kept", "--follow")
    assert {*kept.ended} == {"r1", "r2"}


@pytest.mark.row("R29", "race: two commands send to one tracker")
@pytest.mark.usefixtures("kept")
def test_one_process_at_a_time_sends_an_experiment_to_a_sink(store, answer):
    words = ("track", store.root, "--to", "kept")
    with alone(Results(store), "kept"):
        assert "another process is sending" in answer(*words, code=2)
    answer(*words)


def test_a_sink_that_is_not_installed_is_told_before_anything(monkeypatch):
    monkeypatch.setattr(SINKS.get("wandb"), "package", "no_such_package")
    with pytest.raises(ConfigError, match=r"--track wandb needs .*: pip install no_such_package$"):
        checked(["wandb"], "--track")


def test_a_command_starts_its_followers_and_waits_only_so_long(tmp_path, monkeypatch, capsys):
    started = []

    class Child(subprocess.Popen):
        def __init__(self, words, **options):
            started.append(words)
            super().__init__([sys.executable, "-S", "-c", CHILD[words[6]]], **options)

    CHILD = {"quick": "import sys; sys.stdin.read()", "stuck": "import time; time.sleep(60)"}
    monkeypatch.setattr("llama_ablate.track.beside.subprocess.Popen", Child)
    monkeypatch.setattr("llama_ablate.track.beside.PATIENCE_S", 1.0)
    loaded = {"/p.py": "0123", "package:mine": "1.0"}
    monkeypatch.setattr("llama_ablate.config.plugins._loaded", loaded)
    with beside(tmp_path, ["quick", "stuck"]):
        assert len(started) == 2
    assert started[0][-2:] == ["--plugin", "/p.py"]
    error = capsys.readouterr().err
    assert "--track stuck: not all was sent" in error
    assert "quick" not in error


# ---------------------------------------------------------------- the trackers themselves


def needs(name):
    missing = find_spec(name) is None
    return pytest.mark.skipif(missing, reason=f"needs the package: pip install {name}")


def read_by(code, *words, **environment):
    """Return what a program prints as JSON that reads by a tracker's own package."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, words)]
    env = os.environ | environment
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def sent(store, name, **environment):
    """Send a run by the command twice, half of it first; a process: trackers start threads."""
    words = [sys.executable, "-m", "llama_ablate", "track", str(store.root), "--to", name]
    env = os.environ | environment
    trains(store, CURVE[:2])
    subprocess.run(words, env=env, check=True, capture_output=True, timeout=300)
    committed(store, test_loss_nats=1.5)
    for _ in range(2):
        done = subprocess.run(words, env=env, check=True, capture_output=True, text=True)
        told, viewer = done.stdout.splitlines()
        assert told == f"{store.root}: 1 runs sent to {name}"
        assert viewer.startswith("to look at them: ")
    Results(store).refuse_links()


def in_tensorboard(store):
    """Return what TensorBoard reads, by run: its scalars, and a hyperparameter."""
    code = """
import json, sys, warnings
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.plugins.hparams import metadata
many, found = EventMultiplexer().AddRunsFromDirectory(sys.argv[1]).Reload(), {}
for name, tags in many.Runs().items():
    scalars = {t: [(e.step, e.value) for e in many.Scalars(name, t)] for t in tags["scalars"]}
    content = many.SummaryMetadata(name, metadata.SESSION_START_INFO_TAG).plugin_data.content
    start = metadata.parse_session_start_info_plugin_data(content)
    found[name] = [scalars, start.hparams["model.dim"].number_value]
print(json.dumps(found))
"""
    return read_by(code, store.track / "tensorboard")


@pytest.mark.full
@needs("tensorboard")
@pytest.mark.row("R29", "sent in halves to TensorBoard, and read by it")
def test_tensorboard_reads_one_run_with_its_curve_metrics_and_hyperparameters(store):
    sent(store, "tensorboard")
    ((name, (scalars, dim)),) = in_tensorboard(store).items()
    assert name == "rope/rope-s0--r1"
    assert [step for step, _ in scalars["train_loss_nats"]] == [1, 2, 3]
    assert scalars["train_loss_nats"][2][1] == pytest.approx(4 / 3)
    assert scalars["final/test_loss_nats"] == [[3, 1.5]]
    assert dim == 8


@pytest.mark.full
@pytest.mark.row("R29", "kill: a command that sends to TensorBoard, in each of its calls")
@needs("tensorboard")
@pytest.mark.parametrize("call", ["open", "log", "finish"])
@pytest.mark.parametrize("often", [1, 2])
def test_sending_that_is_killed_is_done_again_and_each_point_is_there_once(store, call, often):
    code = f"""
import os, sys
from llama_ablate.commands.cli import main
from llama_ablate.track.tensorboard import TensorBoard
real, left = TensorBoard.{call}, [{often}]
def killed(*arguments):
    done = real(*arguments)
    left[0] -= 1
    return done if left[0] else os.kill(os.getpid(), 9)
TensorBoard.{call} = killed
sys.exit(main(["track", sys.argv[1], "--to", "tensorboard"]))
"""
    committed(store)
    committed(store, "r2", "v2")
    words = [sys.executable, "-c", code, str(store.root)]
    assert subprocess.run(words, check=False, capture_output=True).returncode == -9
    words = [sys.executable, "-m", "llama_ablate", "track", store.root, "--to", "tensorboard"]
    subprocess.run(words, check=True, capture_output=True)
    read = in_tensorboard(store)
    assert len(read) == 2
    for scalars, _ in read.values():
        assert [step for step, _ in scalars["train_loss_nats"]] == [1, 2, 3]


@pytest.mark.full
@needs("wandb")
@pytest.mark.row("R29", "sent in halves to Weights & Biases, and read by it")
def test_weights_and_biases_offline_has_one_file_with_curve_summary_and_config(store):
    code = """
import json, sys
from wandb.proto import wandb_internal_pb2 as pb
def entries(raw, block=32768, header=7):  # LevelDB's log format, after a header of W&B's own
    at, parts = header, b""
    while at + header <= len(raw):
        if block - at % block < header:  # no room for a header: the block is padded
            at += block - at % block
        length, kind = int.from_bytes(raw[at + 4 : at + 6], "little"), raw[at + 6]
        parts += raw[at + header : at + header + length]
        at += header + length
        if kind in (1, 4):  # whole, or the last part
            yield pb.Record.FromString(parts)
            parts = b""
found = {"steps": [], "summary": {}, "config": {}}
for entry in entries(open(sys.argv[1], "rb").read()):
    kind = entry.WhichOneof("record_type")
    if kind == "run":
        found |= {"id": entry.run.run_id, "project": entry.run.project}
        found |= {"group": entry.run.run_group, "name": entry.run.display_name}
        found["config"] |= {u.key: json.loads(u.value_json) for u in entry.run.config.update}
    if kind == "history":
        found["steps"].append(entry.history.step.num)
    if kind == "summary":
        for one in entry.summary.update:
            key = one.key or "/".join(one.nested_key)
            found["summary"][key] = json.loads(one.value_json)
print(json.dumps(found))
"""
    sent(store, "wandb", WANDB_MODE="offline")
    (file,) = store.track.glob("wandb/offline-run-*/*.wandb")
    found = read_by(code, file)
    assert (found["id"], found["project"]) == ("r1", "my-test")
    assert (found["group"], found["name"]) == ("rope", "rope s0")
    assert found["steps"] == [1, 2, 3]
    assert found["config"]["model"] == {"dim": 8}
    assert found["summary"]["final/test_loss_nats"] == 1.5
    assert found["summary"]["outcome"] == "ok"


@pytest.mark.full
@needs("mlflow")
@pytest.mark.row("R29", "sent in halves to MLflow, and read by it")
def test_mlflow_finds_one_run_with_its_curve_metrics_and_parameters(store, tmp_path):
    code = """
import json
from mlflow import MlflowClient
client = MlflowClient()
experiment = client.get_experiment_by_name("my test")
(run,) = client.search_runs([experiment.experiment_id])
curve = client.get_metric_history(run.info.run_id, "train_loss_nats")
steps = sorted(point.step for point in curve)
print(json.dumps([run.info.run_name, run.info.status, steps, run.data.metrics, run.data.params,
                  run.data.tags]))
"""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    environment = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_DISABLE_TELEMETRY": "true"}
    sent(store, "mlflow", **environment)
    name, status, steps, metrics, params, tags = read_by(code, **environment)
    assert (name, status, steps) == ("rope s0", "FINISHED", [1, 2, 3])
    assert metrics["final/test_loss_nats"] == 1.5
    assert params["model.dim"] == "8"
    assert (tags["variant"], tags["outcome"]) == ("rope", "ok")
