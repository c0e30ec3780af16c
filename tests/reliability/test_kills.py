"""R1, R12 and R15: processes of a real grid are killed, starved and interrupted."""

import os
import random
import resource
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from llama_ablate.results import Store
from tests.commands import PYTHON, at_work, fork_server, kill
from tests.commands import command as run
from tests.in_process import run_in_process

from .harness import Settings, begun, breaches, grid, nobody_left, there

ROOT = Path(__file__).parents[2]
GRID = """{design: list, entries: [
  {label: base}, {label: ln, norm: layernorm}, {label: gelu, feedforward: gelu}, {label: mqa,
  attention: mqa}, {label: nope, position: none}, {label: post, block: post}, {label: relu,
  feedforward: relu}, {label: alibi, position: alibi}]}"""
TRAIN = "{steps: 120, batch: 4, lr: 1e-3, precision: float32, kernel: math, evals: 2}"
#: Experiments by the row of the battery that kills them.
KILLED = {
    "R1": {"variants": GRID, "seeds": "3", "measure": "[perplexity, kv_cache]"},
    "R30": {
        "variants": "{axes: {feedforward: [relu], norm: [layernorm]}}",
        "seeds": "{looks: [2, 3, 4]}",
        "margin": "0.02 nats",
        "tune": "{lr: [1e-3, 3e-3]}",
        "race": "2",
        "controls": "{aa: none, positive: {train.warmup: 0.9}}",
    },
}


def command(file, results):
    return run(file, results, "--checkpoint-every", "0.05")


@pytest.mark.full
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("row", KILLED)
def test_a_grid_whose_processes_are_killed_at_random_ends_with_the_same_results(
    row, experiment_file, tmp_path, launch, volume, tally
):
    file = experiment_file(**KILLED[row], train=TRAIN)
    assert run_in_process(file, tmp_path / "reference") == 0
    reference = tmp_path / "reference" / "tiny"
    runs = len(Store(reference).final_ids())
    assert not breaches(reference)
    chance, wanted = random.Random(0), volume(20, 20, 200)
    killed, finished, wrong = Counter(), 0, []
    while killed.total() < wanted:
        results = tmp_path / f"grid-{finished}"
        root = results / "tiny"
        while True:
            launcher = launch(command(file, results))
            while launcher.poll() is None and killed.total() < wanted:
                time.sleep(chance.expovariate(2.5))
                if who := strike(launcher, root, chance):
                    killed[who] += 1
            error = launcher.communicate()[1]
            if launcher.returncode == 0:
                break
            # 1: a run was lost three times without coming further; the next command tries again.
            # 2: what was measuring is gone, and said so in one line.
            assert launcher.returncode in (-signal.SIGKILL, 1, 2), error
            assert "Traceback" not in error
        nobody_left(root)
        finished += 1
        if found := breaches(root, reference):
            wrong.append(found)
    print(wrong)
    who = ", ".join(f"{often} {what}" for what, often in sorted(killed.items()))
    what = {"R1": "grids", "R30": "experiments with a race and three looks,"}[row]
    what = f"kill: {finished} {what} of {runs} runs: {who}"
    tally(row, what, killed.total(), len(wrong))


def strike(launcher, root, chance):
    """Kill one of those that are there, or nobody: most commands are to end. Return whom."""
    workers, measuring = (at_work(launcher, root, *of) for of in ((), ("(measure|compute)",)))
    who = ""
    if workers:
        who = chance.choices(["worker", "launcher", "group", "fork server"], [8, 1, 1, 1])[0]
    elif measuring:
        who = chance.choices(["measuring", "launcher that measures", ""], [1, 1, 2])[0]
    elif there(root, "working/report/lease-*"):
        who = chance.choices(["launcher that reports", ""], [1, 4])[0]
    if launcher.poll() is not None:
        return ""
    if who == "group":
        os.killpg(launcher.pid, signal.SIGKILL)
    elif who.startswith("launcher"):
        launcher.kill()
    else:
        one = chance.sample(workers, min(1, len(workers)))
        found = {"worker": one, "measuring": measuring, "": []}
        for process in found[who] if who in found else fork_server(launcher):
            kill(process)
    return who


INTERRUPTS = {
    "SIGINT": 130,
    "SIGTERM": 143,
    "SIGHUP": 129,
    "SIGINT twice": 130,
    "closed terminal": 129,
}


@pytest.mark.full
@pytest.mark.parametrize("how", INTERRUPTS)
def test_an_interrupt_leaves_checkpoints_no_process_and_the_same_results_later(
    how, experiment_file, tmp_path, launch, volume, tally
):
    train = TRAIN.replace("120", "600")
    file = experiment_file(train=train, seeds="1", measure="[perplexity]")
    reference = grid(file, tmp_path / "reference", Settings()).root
    wrong, trials, slowest = [], volume(1, 1, 10), 0.0
    for number in range(trials):
        results = tmp_path / str(number)
        root = results / "tiny"
        if how == "closed terminal":
            owner, ours = os.openpty()
            launcher = launch(command(file, results), terminal=ours)
        else:
            launcher = launch(command(file, results))
        begun(launcher, root, "working/*/checkpoint-*")
        began = time.monotonic()
        if how == "closed terminal":
            os.close(owner)
            time.sleep(0.1)
            os.kill(launcher.pid, signal.SIGHUP)  # the shell tells its jobs, after the system
        else:
            os.kill(launcher.pid, getattr(signal, how.split()[0]))
        if how.endswith("twice"):
            time.sleep(0.1)
            os.kill(launcher.pid, signal.SIGINT)
        error = launcher.communicate()[1] or ""
        took = time.monotonic() - began
        slowest = max(slowest, took)
        # The second one may find it on its way out: then it dies of it.
        codes = (130, -signal.SIGINT) if "twice" in how else (INTERRUPTS[how],)
        told = "stopping: " in error or how.endswith(("twice", "terminal"))
        if launcher.returncode not in codes or "Traceb" in error or not told:
            wrong.append((launcher.returncode, took, error))
        nobody_left(root)
        if not how.endswith("twice") and not there(root, "working/*/checkpoint-*"):
            wrong.append("no checkpoint")
        grid(file, results, Settings())
        if found := breaches(root, reference):
            wrong.append(found)
    print(wrong)
    what = f"{how}: exit code {INTERRUPTS[how]} within {slowest:.1f} s, no process left"
    tally("R15", what, trials, len(wrong))


@pytest.mark.full
def test_an_interrupt_at_any_line_of_the_launcher_leaves_no_process(
    experiment_file, tmp_path, volume, tally
):
    """The first lines define and import; from some 130 on they start, watch and finish runs."""
    file = experiment_file(train=TRAIN.replace("120", "600"), seeds="1", measure="[perplexity]")
    chance, wrong, trials = random.Random(15), [], volume(2, 2, 100)
    for number in range(trials):
        noted, root = tmp_path / f"line-{number}", tmp_path / str(number)
        words = [str(chance.randrange(100, 400)), str(noted), *command(file, root)[3:]]
        done = subprocess.run(
            [PYTHON, "-m", "tests.reliability.interrupted", *words],
            check=False,
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if (root / "tiny" / "plan.json").is_file():  # else there is nothing to be at work on
            nobody_left(root / "tiny")
        if done.returncode != 130 or "Traceb" in done.stderr:
            wrong.append((noted.exists() and noted.read_text(), done.returncode, done.stderr))
    print(wrong)
    what = "an interrupt at a line of the launcher: exit code 130, no process left"
    tally("R15", what, trials, len(wrong))


@pytest.mark.full
def test_a_grid_under_nohup_goes_on_when_its_terminal_is_closed(experiment_file, tmp_path, launch):
    file = experiment_file(train=TRAIN.replace("120", "200"), seeds="1", measure="[perplexity]")
    owner, terminal = os.openpty()
    launcher = launch(["nohup", *command(file, tmp_path)], terminal=terminal, cwd=tmp_path)
    begun(launcher, tmp_path, "tiny/working/*/checkpoint-*")
    os.close(owner)
    assert launcher.wait() == 0, (tmp_path / "nohup.out").read_text()
    assert [record.outcome for record in Store(tmp_path / "tiny").records()] == ["ok", "ok"]


@pytest.mark.full
def test_runs_that_want_more_memory_than_there_is_end_as_oom_and_leave_the_others_alone(
    experiment_file, tmp_path, volume, tally
):
    """A width of eight million wants gigabytes more than the small runs need."""
    seeds = volume(1, 1, 5)
    few = "{label: base}, {label: ln, norm: layernorm}"
    fat = "{label: fat, feedforward: {name: relu, width: 8000000}}"
    sections = {"train": TRAIN, "seeds": f"{seeds}", "measure": "[perplexity]"}
    small = experiment_file(f"{{design: list, entries: [{few}]}}", **sections)
    reference = grid(small, tmp_path / "reference", Settings())
    both = experiment_file(f"{{design: list, entries: [{few}, {fat}]}}", **sections)
    done = subprocess.run(
        command(both, tmp_path), capture_output=True, check=False, preexec_fn=_with_little_room
    )
    assert done.returncode == 1, done.stderr
    records = Store(tmp_path / "tiny").records()
    assert [r.outcome for r in records if r.label == "fat"] == ["oom"] * seeds, done.stderr
    healthy = [r for r in records if r.label != "fat"]
    assert [r.outcome for r in healthy] == ["ok"] * (2 * seeds)
    wrong = [r.id for r in healthy if r.metrics != reference.record(r.id).metrics]
    what = "runs out of memory (limited address space) among twice as many healthy ones"
    tally("R12", what, seeds, len(wrong))


def _with_little_room():
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
