"""Functions that start worker processes on the machines of a cluster.

Cluster launchers call these functions on the cluster's machines. The module has no slow imports,
and the functions' arguments are two strings: a results folder and a run id.
"""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from llama_ablate.launch import processes
from llama_ablate.results import Store


def work(root: str, run: str, stop: Callable[[], bool] = lambda: False) -> tuple[int, str, bool]:
    """Train a run in a worker process, and describe the process's end.

    Returns its exit code, a description, and whether memory ran out. When `stop` returns True, or
    an exception arrives (as in a cancelled task), the worker writes a checkpoint before it ends.
    """
    kills, log = processes.out_of_memory_kills(), Store(Path(root)).log(run)
    words = ("llama_ablate.launch.worker", root, run)
    code = processes.supervise(words, log, stop, LLAMA_ABLATE_PARENT=str(os.getpid()))
    return code, *processes.how_ended(code, kills, log)


def job(root: str, run: str) -> str:
    """Run the worker as a Slurm job; return a description of its end.

    SIGUSR2 means that Slurm reclaims the machine, soon or by the job's time limit: the worker
    writes a checkpoint, and the job requeues itself, whether or not its launcher still runs. After
    SIGTERM, with which Slurm cancels a job, it does not requeue itself.
    """
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR2):  # replaces submitit's handlers
        signal.signal(number, lambda n, _frame: signals.append(n))
    code, how, _oom = work(root, run, lambda: bool(signals))
    if code and signals and signal.SIGTERM not in signals:
        # An element of a job array needs the compound id; a plain id may mean the whole array.
        array, element = (os.environ.get(f"SLURM_ARRAY_{k}_ID") for k in ("JOB", "TASK"))
        itself = f"{array}_{element}" if array else os.environ["SLURM_JOB_ID"]
        subprocess.run(["scontrol", "requeue", itself], check=False, timeout=60)  # noqa: S603, S607  Slurm's
    return how
