"""R14 and R18: runs as tasks of Ray, whose nodes and whose head are killed."""

import os
import random
import signal
import time

import psutil
import pytest

from llama_ablate.results import Store
from tests.commands import ended
from tests.reliability.harness import Settings, begun, breaches, grid, nobody_left, there

from .ray_cluster import RayCluster

pytest.importorskip("ray", reason="Ray is not installed here (the extra 'ray').")

ALONE = ("--launcher", "ray", "--workers", "2")
LOGS = f"tiny/working/{'[0-9a-f]' * 8}/log"  # of runs: the launcher has found its cluster
TRAIN = "{steps: 1500, batch: 4, lr: 1e-3, precision: float32, kernel: math, evals: 2}"


@pytest.mark.timeout(7200)
def test_a_grid_whose_nodes_and_head_are_killed_ends_with_the_results_of_the_local_launcher(
    experiment_file, tmp_path, launch, volume, tally
):
    file = experiment_file(train=TRAIN, measure="[perplexity]")
    expected = grid(file, tmp_path / "reference", Settings()).root
    chance, wanted, wrong = random.Random(0), volume(3, 3, 50), []
    nodes = heads = grids = 0
    while nodes < wanted:
        results = tmp_path / f"grid-{grids}"
        grids += 1
        head, done = True, False  # the head of every grid is killed once
        while not done:
            with RayCluster() as cluster:
                options = ("--launcher", "ray", "--ray-address", cluster.address)
                launcher = launch(file, results, *options, **cluster.env)
                while launcher.poll() is None:
                    time.sleep(chance.uniform(2, 4))
                    if launcher.poll() is not None or not list(results.glob(LOGS)):
                        continue
                    if head:
                        cluster.order("head")
                        head, heads = False, heads + 1
                        break
                    if nodes < wanted:
                        cluster.order("node")
                        cluster.order("start")
                        nodes += 1
                error = launcher.communicate()[1]
                # 1: a run was lost three times without coming further; the next command tries it.
                # 2: the head was killed.
                done = launcher.returncode == 0
                if launcher.returncode not in (0, 1, 2) or "Traceback" in error:
                    wrong.append((launcher.returncode, error))
                    break
        nobody_left(results / "tiny")
        if found := breaches(results / "tiny", expected):
            wrong.append(found)
    print(wrong)
    what = f"Ray: SIGKILL of {nodes} nodes and {heads} heads during {grids} grids of 4 runs"
    tally("R18", what, nodes + heads, len(wrong))


def test_a_ray_of_this_machine_listens_to_nobody_else_and_leaves_when_interrupted(
    experiment_file, tmp_path, launch
):
    file = experiment_file("{}", train=TRAIN.replace("1500", "500_000"), measure="[perplexity]")
    root = tmp_path / "tiny"
    launcher = launch(file, tmp_path, *ALONE)
    begun(launcher, root, "working/*/checkpoint-*")
    family = psutil.Process(launcher.pid).children(recursive=True)
    listens = {
        connection.laddr.ip
        for process in family
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert listens <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    os.killpg(launcher.pid, signal.SIGINT)  # as from a terminal, which reaches all that it runs
    out, error = launcher.communicate()
    assert (launcher.returncode, out) == (130, ""), error
    assert "Traceback" not in error
    ended(family, 20)
    nobody_left(root)
    assert there(root, "working/*/checkpoint-*")


def test_runs_whose_machine_runs_out_of_memory_end_as_oom_and_are_not_tried_again(
    experiment_file, tmp_path, launch, tally
):
    """Ray kills whatever task it finds: it is told that a hundredth of the memory is too much."""
    file = experiment_file(train=TRAIN, measure="[perplexity]")
    little = {"RAY_memory_usage_threshold": "0.01", "RAY_memory_monitor_refresh_ms": "100"}
    launcher = launch(file, tmp_path, *ALONE, **little)
    error = launcher.communicate()[1]
    assert launcher.returncode == 1, error
    found = [store.outcome for store in Store(tmp_path / "tiny").records()]
    assert found == ["oom"] * 4
    tries = [folder.name.rpartition("--")[2] for folder in (tmp_path / "tiny" / "failed").iterdir()]
    twice = 4 - tries.count("1")
    tally("R18", "Ray: tasks killed for want of memory, tried once", 4, twice)
