"""R14 and R19: runs as jobs of a Slurm that loses nodes, jobs, its controller, its launcher."""

import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.reliability.harness import Settings, breaches, grid, nobody_left

from .slurm_cluster import PLACES, SlurmCluster

pytest.importorskip("submitit", reason="submitit is not installed here (the extra 'slurm').")
HERE = os.geteuid() == 0 and all(shutil.which(d, path=PLACES) for d in ("munged", "slurmctld"))
pytestmark = pytest.mark.skipif(not HERE, reason="Slurm's daemons take root, slurm-wlm and munge")

#: Long enough for something to happen in every run.
TRAIN = "{steps: 1500, batch: 4, lr: 1e-3, precision: float32, kernel: math, evals: 2}"
EVENTS = ["node", "requeue", "USR2", "controller", "launcher", "step"]


@pytest.fixture
def cluster():
    """A cluster of three nodes, in a folder whose name is short: it holds sockets."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    try:
        with SlurmCluster(folder, nodes=3) as up:
            yield up
    finally:
        shutil.rmtree(folder)


def jobs(cluster, state="RUNNING"):
    """Return the jobs in a state. Raises RuntimeError while the controller is away."""
    return cluster.command("squeue", "-h", "-r", "-t", state, "-o", "%i").split()


def at_work(cluster, what="%i"):
    """Return the jobs that run, or another column of them; none while the controller is away."""
    with contextlib.suppress(RuntimeError):
        return cluster.command("squeue", "-h", "-r", "-t", "RUNNING", "-o", what).split()
    return []


def started_again(cluster, job):
    """Spare a requeued job the seconds that it has to wait; return when it runs or has ended."""
    cluster.wait(lambda: job not in jobs(cluster, "RUNNING,COMPLETING"), f"{job} has left")
    update = ("scontrol", "update", f"JobId={job}", "StartTime=now")
    cluster.wait(
        lambda: job not in jobs(cluster, "PENDING") or not cluster.command(*update),
        f"{job} may start",
    )


def befall(event, cluster, chance):
    """Let something happen to a job that runs."""
    job = chance.choice(at_work(cluster))
    if event == "node":
        node = chance.choice(at_work(cluster, "%N"))
        cluster.kill(node)
        cluster.command("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=died")
        cluster.start_node(node)
    elif event == "requeue":
        cluster.command("scontrol", "requeue", job)
        started_again(cluster, job)
    elif event == "USR2":
        cluster.command("scancel", "--batch", "--signal=USR2", job)
        started_again(cluster, job)
    elif event == "step":
        steps = [p for n in cluster.names for p in cluster.processes(n) if "stepd" in p.name()]
        for step in chance.sample(steps, min(1, len(steps))):  # it may just have ended
            step.kill()
    elif event == "controller":
        cluster.kill("slurmctld")
        time.sleep(1)
        cluster.start_controller()


def killed_after_sbatch(folder):
    """Return a PATH with an sbatch that submits, and kills who asked before it can take note."""
    script = folder / "bin" / "sbatch"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\n{shutil.which("sbatch")} "$@"\nkill -9 $PPID\n', "utf-8")
    script.chmod(0o755)
    return f"{script.parent}:{os.environ['PATH']}"


@pytest.mark.timeout(7200)
def test_a_grid_to_which_all_happens_that_slurm_is_for_ends_with_the_results_of_the_local_launcher(
    experiment_file, tmp_path, cluster, launch, checkpoints, volume, tally
):
    def slurm(**env):
        options = ("--launcher", "slurm", "--slurm", "time=30")
        return launch(file, results, *options, **cluster.env, **env)

    file = experiment_file(train=TRAIN, measure="[perplexity]")
    expected = grid(file, tmp_path / "reference", Settings()).root
    path = killed_after_sbatch(tmp_path)
    chance, wanted, wrong = random.Random(0), volume(6, 6, 30), []
    happened, grids, longest = [], 0, 0.0
    while len(happened) < wanted:
        results = tmp_path / f"grid-{grids}"
        root = results / "tiny"
        grids += 1
        events = iter(EVENTS)
        if grids % 5 == 1:
            launcher = slurm(PATH=path)
            error = launcher.communicate()[1]
            assert launcher.returncode == -signal.SIGKILL, error
            happened.append("launcher killed in sbatch")
        launcher, calm = slurm(), time.monotonic()
        seen, since = set(), calm
        while launcher.poll() is None:
            time.sleep(0.2)
            longest = max(longest, time.monotonic() - since)
            if (there := {*checkpoints(root), *root.glob("runs/*")}) != seen:
                seen, since = there, time.monotonic()
            if (
                not (checkpoints(root) and at_work(cluster))
                or time.monotonic() - calm < 2
                or len(happened) >= wanted
            ):
                continue
            event = next(events, None) or chance.choice(EVENTS)
            if event == "launcher":
                launcher.kill()
                launcher.communicate()
                launcher = slurm()
            else:
                befall(event, cluster, chance)
            happened.append(event)
            calm = time.monotonic()
        error = launcher.communicate()[1]
        nobody_left(root)
        found = breaches(root, expected)
        if launcher.returncode or found:
            wrong.append((launcher.returncode, error, found))
    print(wrong)
    assert not jobs(cluster, "PENDING,RUNNING,COMPLETING")
    counts = ", ".join(f"{happened.count(what)} {what}" for what in dict.fromkeys(happened))
    tally(
        "R19",
        f"Slurm: {counts}, during {grids} grids of 4 runs; {longest:.0f} s at most "
        "without a checkpoint or a commit",
        len(happened),
        len(wrong),
    )


def test_a_job_whose_machine_is_wanted_back_queues_itself_again_and_an_interrupt_ends_all_jobs(
    experiment_file, tmp_path, cluster, launch, checkpoints
):
    """What is asked for comes behind a checkpoint that was just written: the next is far away."""
    file = experiment_file("{}", train=TRAIN.replace("1500", "500_000"), seeds="1")
    root, seldom = tmp_path / "tiny", ("--checkpoint-every", "8", "--launcher", "slurm")

    def latest():
        return max((int(path.name.split("-")[1]) for path in checkpoints(root)), default=0)

    def written(since):
        cluster.wait(lambda: latest() > since, "a checkpoint is written")
        return latest()

    launcher = launch(file, tmp_path, *seldom, **cluster.env)
    first = written(since=0)
    (job,) = jobs(cluster)
    cluster.command("scancel", "--batch", "--signal=USR2", job)
    cluster.wait(lambda: jobs(cluster, "PENDING") == [job], "the job waits again")
    asked = latest()
    assert asked > first
    started_again(cluster, job)
    second = written(since=asked)
    launcher.send_signal(signal.SIGINT)
    out, error = launcher.communicate()
    assert (launcher.returncode, out) == (130, ""), error
    assert not jobs(cluster, "PENDING,RUNNING,COMPLETING")
    nobody_left(root)
    assert latest() > second


def test_a_whole_grid_in_one_allocation_goes_on_after_its_node_was_wanted_back(
    experiment_file, tmp_path, cluster, checkpoints, monkeypatch
):
    """By the script of docs/launchers."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    script = Path(__file__).parents[2] / "docs" / "launchers" / "slurm.sh"
    file, root = experiment_file(train=TRAIN, measure="[perplexity]"), tmp_path / "tiny"
    options = ("--results", tmp_path, "--device", "cpu", "--checkpoint-every", "0.2")
    submit = ("sbatch", "--parsable", "--time=30", f"--output={tmp_path}/log", script, file)
    job = cluster.command(*map(str, (*submit, *options))).strip()
    cluster.wait(lambda: checkpoints(root), "a checkpoint is written")
    cluster.command("scancel", "--batch", "--signal=USR2", job)
    cluster.wait(lambda: jobs(cluster, "PENDING") == [job], "the job waits again")
    assert checkpoints(root)
    nobody_left(root)
    started_again(cluster, job)
    # A job that has just been requeued may still be listed by the state in which it ended.
    cluster.wait(lambda: jobs(cluster) == [job], "the job runs again")
    # Not until it is in none of some states: between two of them Slurm lists it in neither.
    cluster.wait(lambda: jobs(cluster, "COMPLETED,FAILED") == [job], "the job has ended")
    assert not breaches(root), (tmp_path / "log").read_text("utf-8")
