"""R1, R15 and R30: processes of a real grid are killed and interrupted."""

import os
import random
import signal
import time
from collections import Counter

import pytest

from llama_ablate.results import Store
from tests.commands import at_work, fork_server, kill
from tests.commands import command as run
from tests.in_process import run_in_process

from .harness import Settings, begun, breaches, gone_on, grid, nobody_left, there

GRID = """{design: list, entries: [
  {label: base}, {label: ln, norm: layernorm}, {label: gelu, feedforward: gelu}, {label: mqa,
  attention: mqa}, {label: nope, position: none}, {label: post, block: post}, {label: relu,
  feedforward: relu}, {label: alibi, position: alibi}]}"""
TRAIN = "{steps: 120, batch: 4, lr: 1e-3, precision: float32, kernel: math, evals: 2}"
LONG = TRAIN.replace("120", "600")
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
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
#: Killed by us; ended or interrupted, once or on its way out; 1: a run was lost three times without
#: coming further, and the next command tries again; 2: what was measuring is gone.
ENDS = {1, 2, 130, 143, *(-number for number in SIGNALS)}


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
        code = None
        while code != 0:
            launcher = launch(command(file, results))
            while launcher.poll() is None and killed.total() < wanted:
                time.sleep(chance.expovariate(2.5))
                if who := strike(launcher, results / "tiny", chance):
                    killed[who] += 1
            error, code = launcher.communicate()[1], launcher.returncode
            assert code == 0 or code in ENDS, (code, error)
            assert "Traceback" not in error
        nobody_left(results / "tiny")
        finished += 1
        wrong += breaches(results / "tiny", reference)
    print(wrong)
    who = ", ".join(f"{often} {what}" for what, often in sorted(killed.items()))
    what = {"R1": "grids", "R30": "experiments with a race and three looks,"}[row]
    what = f"kill: {finished} {what} of {runs} runs: {who}"
    tally(row, what, killed.total(), len(wrong))


def strike(launcher, root, chance):
    """Kill one of those that are there, or nobody: most commands are to end. Return whom.

    Launchers are also interrupted and ended, alone or with all that they have started.
    """
    workers, measuring = (at_work(launcher, root, *of) for of in ((), ("(measure|compute)",)))
    who, how = "", chance.choice(SIGNALS)
    if workers:
        who = chance.choices(["worker", "launcher", "group", "fork server"], [8, 3, 3, 1])[0]
    elif measuring:
        who = chance.choices(["measuring", "launcher that measures", ""], [1, 1, 2])[0]
    elif there(root, "working/report/lease-*"):
        who = chance.choices(["launcher that reports", ""], [1, 4])[0]
    if launcher.poll() is not None or not who:
        return ""
    if who == "group":
        os.killpg(launcher.pid, how)
    elif who.startswith("launcher"):
        launcher.send_signal(how)
    else:
        one = chance.sample(workers, min(1, len(workers)))
        found = {"worker": one, "measuring": measuring, "fork server": fork_server(launcher)}
        for process in found[who]:
            kill(process)
        return who
    return f"{who} by {how.name}"


#: What is done to a command, and its exit code; under nohup it goes on to its end.
INTERRUPTS = {
    "SIGINT": 130,
    "SIGTERM": 143,
    "SIGHUP": 129,
    "SIGINT twice": 130,
    "closed terminal": 129,
    "nohup and closed terminal": 0,
}


@pytest.mark.full
@pytest.mark.parametrize("how", INTERRUPTS)
def test_an_interrupt_leaves_checkpoints_no_process_and_the_same_results_later(
    how, experiment_file, tmp_path, launch, volume, tally
):
    file = experiment_file(train=LONG, seeds="1", measure="[perplexity]")
    reference = grid(file, tmp_path / "reference", Settings()).root
    chance, code, wrong, trials = random.Random(how), INTERRUPTS[how], [], volume(2, 2, 20)
    slowest = 0.0
    for number in range(trials):
        results = tmp_path / str(number)
        words = command(file, results)
        owner, ours = os.openpty() if "terminal" in how else (None, None)
        words = ["nohup", *words] if "nohup" in how else words
        launcher = launch(words, terminal=ours, cwd=tmp_path)
        if at_any_moment := number % 2:
            time.sleep(chance.uniform(0.3, 6))
        else:
            begun(launcher, results, "tiny/working/*/checkpoint-*")
        began = time.monotonic()
        if owner is not None:
            os.close(owner)
            time.sleep(0.1)
            launcher.send_signal(signal.SIGHUP)  # the shell tells its jobs, after the system
        else:
            launcher.send_signal(getattr(signal, how.split()[0]))
        if how.endswith("twice"):
            time.sleep(0.1)
            launcher.send_signal(signal.SIGINT)
        error = launcher.communicate()[1] or ""
        slowest = max(slowest, time.monotonic() - began)
        # The second one may find it on its way out: then it dies of it.
        codes = (code, -signal.SIGINT) if how.endswith("twice") else (code,)
        told = at_any_moment or "stopping: " in error or how.endswith(("twice", "terminal"))
        if launcher.returncode not in codes or "Traceb" in error or not told:
            wrong.append((launcher.returncode, error))
        left = at_any_moment or there(results, "tiny/working/*/checkpoint-*")
        wrong += ["no checkpoint"] * bool(code and not how.endswith("twice") and not left)
        wrong += (
            gone_on(file, results, reference) if code else breaches(results / "tiny", reference)
        )
    print(wrong)
    what = f"{how}: exit code {code} within {slowest:.1f} s, no process left"
    tally("R15", what, trials, len(wrong))
