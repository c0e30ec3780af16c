"""Worker processes on the machines of a cluster, started by tasks of Ray and jobs of Slurm.

The arguments of tasks and jobs are two strings: a results folder and a run id. The module has no
slow imports.
"""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ablate.launch import processes
from llama_ablate.results import Store

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission


def work(root: str, run: str) -> tuple[int, str, bool]:
    """Train a run in a worker process, and describe the process's end.

    Returns its exit code, a description, and whether memory ran out. When an exception arrives, as
    in a cancelled task, the worker writes a checkpoint before it ends.
    """
    return Job().run(root, run)


class Job:
    """Slurm job of a run, which submitit requeues when Slurm reclaims its machine.

    Slurm then sends SIGUSR2; submitit calls `checkpoint`, and requeues the job, whether or not its
    launcher still runs.
    """

    def __init__(self) -> None:
        self._worker: processes.Program | None = None

    def run(self, root: str, run: str) -> tuple[int, str, bool]:
        """Train a run, as `work` does."""
        kills, log = processes.out_of_memory_kills(), Store(Path(root)).log(run)
        words = ("llama_ablate.launch.worker", root, run)
        with processes.Program(words, log, LLAMA_ABLATE_PARENT=str(os.getpid())) as worker:
            self._worker = worker
            code = worker.wait()
        return code, *processes.how_ended(code, kills, log)

    def __call__(self, root: str, run: str) -> str:
        """Train a run in a job; return a description of the end of its worker."""
        # Slurm cancels a job by SIGTERM, which submitit would ignore.
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
        return self.run(root, run)[1]

    def checkpoint(self, root: str, run: str) -> "DelayedSubmission":
        """Stop the worker after a checkpoint, and return the job for submitit to requeue."""
        from submitit.helpers import DelayedSubmission

        if self._worker:
            self._worker.stop()
        return DelayedSubmission(Job(), root, run)
