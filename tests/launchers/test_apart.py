"""R31: runs on machines that share no disk: what goes out, comes home and lies in the storage."""

import hashlib
import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from llama_ablate.commands.cli import main
from llama_ablate.config import experiment, plugins
from llama_ablate.data import tokens
from llama_ablate.design.plan import make
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.launch import apart, remote, worker
from llama_ablate.launch.storage import Storage
from llama_ablate.results import Settings, Store
from llama_ablate.training import checkpoint
from tests.quiet import until
from tests.reliability.harness import COMPUTE, breaches, grid

LONG = "{steps: 400, batch: 4, lr: 1e-3, precision: float32, kernel: math, evals: 2}"


@pytest.fixture
def planned(tmp_path, monkeypatch, experiment_file):
    """Plan an experiment of two runs; return its results, what its runs need and the storage.

    Its text is gone afterwards, and the machine's cache is another one.
    """

    def plan(*, loaded=None, **sections):
        text = Path(yaml.safe_load(experiment_file().read_text("utf-8"))["data"]["corpus"]["path"])
        copy = tmp_path / "text.txt"
        copy.write_bytes(text.read_bytes())
        data = f"{{corpus: {{name: files, path: '{copy}'}}, tokenizer: bytes}}"
        sections = {"seeds": "1", "measure": "[perplexity]", "data": data, **sections}
        source = experiment.load(experiment_file(**sections))
        plan = make(source)
        store = Store(tmp_path / "home" / plan.experiment.slug)
        store.prepare()
        settings = Settings(checkpoint_s=0.05, plugins=loaded or {})
        store.create(plan.document(COMPUTE, settings), source.text)
        url = (tmp_path / "storage").as_uri()
        parcel = apart.packed(store, url, lambda files: {n: f.copy() for n, f in files.items()})
        copy.unlink()
        monkeypatch.setenv("LLAMA_ABLATE_CACHE", str(tmp_path / "other machine"))
        return store, parcel, Storage(url, store.root.name)

    return plan


def fetch(files):
    return files


@pytest.fixture
def inline(monkeypatch):
    """Have workers in this process, where no test is about the process."""

    def work(root, run, stop, env):
        texts = json.loads(env[tokens.TRUSTED])
        monkeypatch.setattr(tokens, "trusted", {key: Path(at) for key, at in texts.items()})
        stop()
        ended = worker.run(Path(root), run)
        return 0, f"ended {ended}", False

    monkeypatch.setattr(remote, "work", work)


def home(store, run, arrival):
    """Commit what came home as the launcher does."""
    with store.lease(run) as lease:
        return store.adopt(lease, run, arrival.files)


@pytest.mark.usefixtures("inline")
def test_runs_that_have_nothing_but_the_parcel_end_as_those_beside_the_results(
    planned, tmp_path, experiment_file
):
    store, parcel, _ = planned()
    for run in store.plan.runs:
        code, _why, _oom, arrival = apart.work(parcel, run, {}, fetch)
        assert code == 0, arrival.log
        assert home(store, run, arrival)
    assert not [*(tmp_path / "other machine" / "apart").iterdir()]
    assert [*(tmp_path / "other machine" / "tokens").iterdir()]
    expected = grid(experiment_file(seeds="1", measure="[perplexity]"), tmp_path / "local").root
    assert not breaches(store.root, expected)


@pytest.mark.parametrize("plugin", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_run_whose_machine_is_killed_goes_on_elsewhere_bit_for_bit(
    planned, tmp_path, experiment_file, monkeypatch, plugin
):
    store, parcel, storage = planned(train=LONG, **plug_in(tmp_path, monkeypatch) if plugin else {})
    run = next(iter(store.plan.runs))
    with monkeypatch.context() as patch:
        kill_when(patch, lambda: storage.latest(run) >= 100)
        code, _why, _oom, arrival = apart.work(parcel, run, {}, fetch)
    assert code == -signal.SIGKILL
    assert not arrival.files
    reached, steps = storage.latest(run), []
    assert 100 <= reached < 400
    monkeypatch.setenv("LLAMA_ABLATE_CACHE", str(tmp_path / "third machine"))
    monkeypatch.setattr(apart, "EVERY_S", 0.0)
    monkeypatch.setattr(Storage, "note", lambda *a: steps.append(checkpoint.latest(a[2])))
    _code, _why, _oom, arrival = apart.work(parcel, run, {}, fetch)
    assert min(step for step in steps if step) >= reached  # 0 once it is done
    assert home(store, run, arrival)
    text = experiment_file("{}", seeds="1", measure="[perplexity]", train=LONG)
    local = grid(text, tmp_path / "local", Settings())
    one, other = (
        {name: value for name, value in record.numbers.items() if "loss" in name}
        for record in (store.record(run), local.records()[0])
    )
    assert one == other
    assert one


def plug_in(tmp_path, monkeypatch):
    """Have a plug-in file for loaded, in no test's process."""
    file = tmp_path / "mine.py"
    file.write_text("mine = 1\n", "utf-8")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(plugins._loaded, str(file), digest)
    return {"loaded": {str(file): digest}}


def kill_when(monkeypatch, reached):
    """Kill the worker once the storage has what is waited for."""
    started = remote.subprocess.Popen

    def watched(*words, **more):
        process = started(*words, **more)

        def kill():
            until(lambda: reached() or process.poll() is not None)
            os.killpg(process.pid, signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()
        return process

    monkeypatch.setattr(remote.subprocess, "Popen", watched)
    monkeypatch.setattr(apart, "EVERY_S", 0.0)


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("damage", ["one byte", "half", "another run", "a path", "no manifest"])
def test_what_did_not_arrive_as_it_was_sealed_is_refused(planned, damage):
    store, parcel, _ = planned()
    run, other = store.plan.runs
    files = dict(apart.work(parcel, run, {}, fetch)[3].files)
    record = next(path for path in files if path.endswith("record.json"))
    if damage == "one byte":
        files[record] = files[record].replace(b"1", b"2", 1)
    elif damage == "half":
        files[record] = files[record][: len(files[record]) // 2]
    elif damage == "a path":
        files["runs/../../../elsewhere"] = b""
    elif damage == "no manifest":
        files = {path: content for path, content in files.items() if "manifest" not in path}
    wanted = other if damage == "another run" else run
    with store.lease(wanted) as lease, pytest.raises(ConfigError):
        store.adopt(lease, wanted, files)
    assert not store.runs.final_ids()
    assert not [*store.working(wanted).glob("partial-*")]


@pytest.mark.usefixtures("inline")
def test_a_run_that_was_taken_over_meanwhile_is_not_committed(planned):
    store, parcel, _ = planned()
    run = next(iter(store.plan.runs))
    arrival = apart.work(parcel, run, {}, fetch)[3]
    lease = store.lease(run)
    (store.working(run) / f"lease-{lease.number}").unlink()
    assert not store.adopt(lease, run, arrival.files)
    assert not store.runs.final_ids()
    assert home(store, run, arrival)


@pytest.mark.usefixtures("inline")
def test_failed_attempts_come_home_under_numbers_of_their_own(planned):
    store, parcel, _ = planned()
    parcel = replace(parcel, tokens={})  # nor is the text there
    run = next(iter(store.plan.runs))
    for number in (1, 2):
        arrival = apart.work(parcel, run, store.runs.files(run), fetch)[3]
        assert not home(store, run, arrival)
        assert len([*store.layout.failed.iterdir()]) == number
    assert store.record(run).outcome == "error"
    assert all(map(store.runs.intact, store.layout.failed.iterdir()))


def test_a_plug_in_file_travels_as_it_was_loaded(tmp_path, planned, monkeypatch):
    loaded = plug_in(tmp_path, monkeypatch)
    store, parcel, _ = planned(**loaded)
    run = next(iter(store.plan.runs))
    (tmp_path / "mine.py").write_text("changed", "utf-8")
    arrival = apart.work(parcel, run, {}, fetch)[3]
    assert home(store, run, arrival)
    digest = next(iter(loaded["loaded"].values()))
    assert store.record(run).environment["plugins"] == {"mine.py": digest}
    with pytest.raises(ConfigError, match="is not what these runs were planned with"):
        apart.packed(store, "file:///x", fetch)


@pytest.mark.usefixtures("inline")
def test_the_texts_of_a_mixture_travel_too(planned, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("the other text\n" * 500, "utf-8")
    text = tmp_path / "text.txt"
    data = (
        f"{{corpus: {{name: files, path: '{text}'}}, tokenizer: bytes, "
        f"sources: {{other: {{name: files, path: '{other}'}}}}}}"
    )
    mixed = "{axes: {data.mixture: [{label: mixed, value: {corpus: 1, other: 1}}]}}"
    store, parcel, _ = planned(data=data, variants=mixed)
    other.unlink()
    assert len(parcel.tokens) == 2
    for run in store.plan.runs:
        arrival = apart.work(parcel, run, {}, fetch)[3]
        assert home(store, run, arrival), store.record(run).reason


def test_a_checkpoint_half_written_to_the_storage_is_skipped_and_written_again(tmp_path):
    storage, folder = Storage(tmp_path.as_uri(), "name"), tmp_path / "working"
    folder.mkdir()
    for step in (1, 2):
        checkpoint.save(folder, step, {"step": step})
    storage.mirror("run", folder)
    (_, name), _ = checkpoint.ordered(disk.names(folder))
    written = tmp_path / "name" / "run" / name
    written.write_bytes(written.read_bytes()[:100])
    for number, step in ((1, 1), (2, 2)):
        elsewhere = tmp_path / f"machine {number}"
        elsewhere.mkdir()
        storage.fetch("run", elsewhere)
        assert checkpoint.load(elsewhere) == {"step": step}
        storage.mirror("run", folder)


@pytest.mark.usefixtures("inline")
def test_a_storage_that_fails_meanwhile_is_told_in_the_log_and_fails_no_run(planned, monkeypatch):
    store, parcel, _ = planned()
    run = next(iter(store.plan.runs))

    def fails(*_):
        raise OSError("no route to host")

    monkeypatch.setattr(Storage, "mirror", fails)
    code, _why, _oom, arrival = apart.work(parcel, run, {}, fetch)
    assert code == 0
    assert b"its checkpoint was not copied to the storage: no route to host" in arrival.log
    assert home(store, run, arrival)


def test_the_storage_keeps_the_last_two_checkpoints_and_forgets_a_run(tmp_path):
    storage = Storage(tmp_path.as_uri(), "name")
    folder = tmp_path / "working"
    folder.mkdir()
    for step in range(1, 5):
        checkpoint.save(folder, step, {"step": step})
        storage.mirror("run", folder)
    kept = [step for step, _ in checkpoint.ordered(disk.names(tmp_path / "name" / "run"))]
    assert (storage.latest("run"), kept) == (4, [4, 3])
    assert storage.runs() == ["run"]
    storage.forget("run")
    storage.forget("run")
    assert storage.latest("run") == 0


def test_checkpoints_that_the_worker_does_not_trust_make_room_for_its_own(tmp_path):
    """Of another torch, say: they stand for more steps than those that are written now."""
    storage = Storage(tmp_path.as_uri(), "name")
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, steps in ((before, (800, 900)), (after, (50, 100))):
        folder.mkdir()
        storage.mirror("run", folder)  # with nothing yet: it changes nothing
        for step in steps:
            checkpoint.save(folder, step, {"step": step})
            storage.mirror("run", folder)
    assert storage.latest("run") == 100


BAD = [
    ("nonsense", "--storage nonsense: "),
    ("ftp://me:secret@host/x", "--storage ftp://host/x: "),
    ("s3://?scheme=http", "--storage s3://: "),
    ("file:///proc/none", "--storage file:///proc/none: "),
    pytest.param(  # asked again and again, for some twelve seconds
        "s3://bucket/x?endpoint_override=127.0.0.1:1&scheme=http",
        "--storage s3://bucket/x: ",
        marks=pytest.mark.full,
    ),
]


@pytest.mark.parametrize(("url", "told"), BAD)
def test_a_storage_that_cannot_be_written_is_refused_before_anything_is(
    url, told, experiment_file, tmp_path, capsys, monkeypatch
):
    pytest.importorskip("ray", reason="Ray is not installed here (the extra 'ray').")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    words = ["run", str(experiment_file()), "--results", str(tmp_path / "r"), "--launcher", "ray"]
    assert main([*words, "--storage", url]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"llama-ablate: {told}")
    assert said.count("\n") == 1
    assert "secret" not in said
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{gpus: 1.5}", "ray.gpus"),
        ("{gpus: 0}", "ray.gpus"),
        ("{memory_gb: -1}", "ray.memory_gb"),
        ("{resources: {fast: 0}}", "ray.resources.fast"),
        ("{resources: {fast: 1.5}}", "a number above 1 must be whole"),
        ("{resources: {GPU: 1}}", "GPU is no custom resource"),
        ("{cpu: 1}", "ray.cpu"),
    ],
)
def test_what_a_run_cannot_ask_of_ray_is_refused(section, told, experiment_file, capsys):
    assert main(["plan", str(experiment_file(ray=section))]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1
