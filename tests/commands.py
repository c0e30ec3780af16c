"""Commands as users run them: in processes, which tests watch and kill while they come and go."""

import os
import re
import subprocess
import sys
import time
from contextlib import suppress

import psutil

from tests.quiet import within

PYTHON = sys.executable


def command(file, results, *options):
    """Return the words that run an experiment file on the CPU."""
    words = ["run", str(file), "--results", str(results), "--device", "cpu"]
    return [PYTHON, "-m", "llama_ablate", *words, *options]


def started(words, terminal=None, **more):
    """Start a command in a session of its own, on a terminal or with pipes for `communicate`.

    The terminal is left to the command.
    """
    if terminal is None:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(words, start_new_session=True, **pipes, **more)
    process = subprocess.Popen(
        ["setsid", "--ctty", *words], stdin=terminal, stdout=terminal, stderr=terminal, **more
    )
    os.close(terminal)
    return process


def family(process):
    """Return the processes that descend from one; none once it has ended."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def kill(process):
    """Kill a process that may have ended since it was found."""
    with suppress(psutil.NoSuchProcess):
        process.kill()


def alive(processes):
    """Return those that have not ended; who has ended may be left unburied by its parent."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def ended(processes, limit=5.0):
    """Wait until processes have ended, which may cost them some CPU seconds together.

    What goes on working instead fails; what is only slow does not.
    """

    def used():
        for process in alive(processes):
            with suppress(psutil.Error):
                seconds[process] = sum(process.cpu_times()[:2])
        return sum(seconds.values())

    seconds = {}
    began = used()
    while alive(processes):
        assert within(used() - began, limit), f"still at work: {alive(processes)}"
        time.sleep(0.1)


def fork_server(launcher):
    """Return the process that a launcher's workers are forked from; none where it has none."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(launcher.pid).children():
            with suppress(psutil.Error):
                found += [process] * ("multiprocessing.forkserver" in " ".join(process.cmdline()))
    return found


def at_work(launcher, root, run="[0-9a-f]{8}"):
    """Return the processes that train for a launcher: they have the log of a planned run open."""
    log = re.compile(rf"{re.escape(str(root))}/working/{run}/log")
    found = []
    for process in family(launcher):
        with suppress(psutil.Error):
            if any(log.fullmatch(file.path) for file in process.open_files()):
                found.append(process)
    return found
