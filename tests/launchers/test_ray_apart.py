"""R31: runs as tasks of a Ray whose nodes share no disk; checkpoints lie in a bucket."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from llama_ablate.launch.ray import answers
from llama_ablate.launch.storage import Storage
from llama_ablate.results import Store
from tests.commands import ended
from tests.quiet import until
from tests.reliability.harness import Settings, breaches, grid

from .ray_cluster import ENVIRONMENT, RayCluster

pytest.importorskip("ray", reason="Ray is not installed here (the extra 'ray').")

TRAIN = "{steps: 1500, batch: 4, lr: 1e-3, precision: float32, kernel: math, evals: 2}"
WORKER = "llama_ablate.launch.worker"


@pytest.fixture
def bucket(monkeypatch):
    """Serve S3 on this machine; return the URL of a bucket."""
    pytest.importorskip("moto.server", reason="no S3 server here: pip install 'moto[server]'")
    from pyarrow import fs

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-the-tests")
    with subprocess.Popen(words, **quiet) as server:
        until(lambda: answers(f"127.0.0.1:{port}"))
        place = f"?endpoint_override=127.0.0.1:{port}&scheme=http"
        files, _ = fs.FileSystem.from_uri(f"s3://runs{place}&allow_bucket_creation=true")
        files.create_dir("runs")
        yield f"s3://runs/some/where{place}"
        server.terminate()


def workers(nodes):
    """Return the processes that train on nodes with caches in this folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if WORKER in words and any(str(nodes) in word for word in words):
                found.append(process)
    return found


@pytest.mark.timeout(7200)
def test_a_grid_on_nodes_without_a_shared_disk_survives_kills_of_workers_nodes_and_the_command(
    experiment_file, tmp_path, launch, volume, tally, bucket
):
    file = experiment_file(train=TRAIN, measure="[perplexity]")
    expected = grid(file, tmp_path / "reference", Settings()).root
    chance, wanted, wrong = random.Random(0), volume(4, 6, 20), []
    kills, grids, nodes = [], 0, tmp_path / "nodes"
    while len(kills) < wanted:
        results = tmp_path / f"grid-{grids}"
        options = ("--launcher", "ray", "--storage", bucket)
        done, grids = False, grids + 1
        with RayCluster(2, nodes) as cluster:
            while not done:
                where = (*options, "--ray-address", cluster.address)
                launcher = launch(file, results, *where, **cluster.env)
                while launcher.poll() is None:
                    time.sleep(chance.uniform(1, 3))
                    alive = workers(nodes)
                    if launcher.poll() is not None or not alive or len(kills) == wanted:
                        continue
                    kind = ("worker", "node", "command")[len(kills) % 3]
                    kills.append(kind)
                    if kind == "worker":
                        with suppress(psutil.NoSuchProcess):
                            chance.choice(alive).kill()
                    elif kind == "node":
                        cluster.kill_node()
                        cluster.start_node()
                    else:
                        os.killpg(launcher.pid, signal.SIGKILL)
                error = launcher.communicate()[1]
                # 1: a run was lost three times without coming further; the next command tries it.
                done = launcher.returncode == 0
                if launcher.returncode not in (0, 1, -signal.SIGKILL):
                    wrong.append((launcher.returncode, error))
                    break
        if found := breaches(results / "tiny", expected):
            wrong.append(found)
        left = Storage(bucket, "tiny")
        wrong += [run for run in Store(results / "tiny").plan.runs if left.latest(run)]
    print(kills, wrong)
    ended(workers(nodes), 20)
    assert len([*nodes.iterdir()]) >= 2
    what = f"Ray without a shared disk: SIGKILL of workers, nodes and the command, {grids} grids"
    tally("R31", what, len(kills), len(wrong))


def test_an_interrupted_grid_leaves_checkpoints_in_the_bucket_and_goes_on_from_them(
    experiment_file, tmp_path, launch, bucket
):
    file = experiment_file("{}", seeds="1", train=TRAIN, measure="[perplexity]")
    storage, run = Storage(bucket, "tiny"), None
    with RayCluster(1, tmp_path / "nodes") as cluster:
        where = ("--launcher", "ray", "--ray-address", cluster.address, "--storage", bucket)
        launcher = launch(file, tmp_path, *where, **cluster.env)
        until(lambda: (tmp_path / "tiny" / "plan.json").is_file() or launcher.poll() is not None)
        (run,) = Store(tmp_path / "tiny").plan.runs
        until(lambda: storage.latest(run) or launcher.poll() is not None)
        os.killpg(launcher.pid, signal.SIGINT)
        error = launcher.communicate()[1]
        assert launcher.returncode == 130, error
        reached = storage.latest(run)
        assert 0 < reached < 1500
        launcher = launch(file, tmp_path, *where, **cluster.env)
        error = launcher.communicate()[1]
        assert launcher.returncode == 0, error
    assert not breaches(tmp_path / "tiny", grid(file, tmp_path / "local", Settings()).root)


@pytest.fixture
def jobs(tmp_path):
    """Start a Ray head that takes jobs; return a function that submits one and returns its log."""
    pytest.importorskip("aiohttp_cors", reason="no jobs here: pip install 'ray[default]'")
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        head, page = one.getsockname()[1], other.getsockname()[1]
    ray = [sys.executable, "-m", "ray.scripts.scripts"]
    words = f"start --head --block --num-cpus 1 --port {head} --dashboard-port {page}"
    env = os.environ | ENVIRONMENT | {"LLAMA_ABLATE_CACHE": str(tmp_path / "head")}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*ray, *words.split()], env=env, start_new_session=True, **quiet) as node:
        family = []
        try:
            until(lambda: answers(f"127.0.0.1:{page}"))

            def submit(*command, wait=True):
                options = ["--address", f"http://127.0.0.1:{page}", *["--no-wait"] * (not wait)]
                job = [*ray, "job", "submit", *options, "--", sys.executable, "-m", "llama_ablate"]
                done = subprocess.run(
                    [*job, *map(str, command)], env=env, capture_output=True, text=True, check=False
                )
                family.extend(psutil.Process(node.pid).children(recursive=True))
                return done.stdout + done.stderr

            yield submit
        finally:
            family.extend(psutil.Process(node.pid).children(recursive=True))
            node.terminate()
            ended(family, 30)


def test_a_command_that_was_submitted_as_a_job_works_alone_and_is_asked_from_elsewhere(
    experiment_file, tmp_path, bucket, jobs
):
    short = TRAIN.replace("1500", "50")
    file = experiment_file("{}", seeds="1", train=short, measure="[perplexity]")
    where = ("--launcher", "ray", "--ray-address", "auto", "--storage", bucket)
    said = jobs("run", file, "--results", tmp_path, "--device", "cpu", *where, wait=False)
    assert "submitted successfully" in said
    until((tmp_path / "tiny" / "plan.json").is_file)
    until(Store(tmp_path / "tiny").runs.final_ids)
    until((tmp_path / "tiny" / "report" / "report.md").is_file)
    assert "tiny: 1 runs: 1 too short" in jobs("status", tmp_path / "tiny")
    assert not breaches(tmp_path / "tiny")
