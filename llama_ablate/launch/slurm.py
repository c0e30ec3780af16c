"""Slurm launcher: runs as job arrays, through submitit.

Job states come from `squeue`, since accounting may be off. The launcher does not wait for
submitit's pickled results, since a killed job leaves none. A job that is not in the queue has
ended; the outcome of its run is read from the store. Every job has a name derived from the results
folder, so that jobs of a killed launcher can be found even if the launcher had not recorded the
jobs.
"""

import contextlib
import io
import os
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from llama_ablate.config.spec import digest
from llama_ablate.errors import ConfigError, require
from llama_ablate.launch import processes, remote
from llama_ablate.launch.queue import Gone, News, how_far
from llama_ablate.results import Store
from llama_ablate.results.leases import taken

_POLL_S = 2.0
#: Seconds without an answer from Slurm before an error; a restarted controller answers after about
#: a minute.
_PATIENCE_S = 180.0
_ARRAY = 1000  # most jobs of an array; Slurm's MaxArraySize is 1001 by default
_HOUR = 60  # default time limit in minutes, after which a job is requeued and continues
_REQUEUES = 1_000_000  # after its time limit; submitit ends a job after three by default
_ENDED = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
}
#: Reason of a job that waits indefinitely because a node could not start it.
_HELD_STATES = "launch failed requeued held"

#: Shell code that waits up to 20 s for the job's file, which is moved into place after the
#: submission. If the launcher was killed meanwhile, the file is missing, and submitit alone would
#: wait for a minute.
_WAIT = """\
me=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
for second in $(seq 20); do
  test -e {folder}/"${{me:-$SLURM_JOB_ID}}"_submitted.pkl && break
  test "$second" -lt 20 || exit 1
  sleep 1
done"""


class _Unanswered(Exception):  # noqa: N818  not an error yet: controllers may restart
    """Failure of a Slurm command, which may be temporary."""


class Slurm:
    """Launcher of workers as Slurm jobs, one launcher at a time for the same results."""

    slots = _ARRAY

    def __init__(
        self,
        store: Store,
        device: str,
        workers: int | None,
        options: Mapping[str, str | bool],
        ranks: int = 1,
    ) -> None:
        self._store, self._parameters = store, _parameters(device, workers, options, ranks)
        self._name = f"llama-ablate-{digest(str(store.root.resolve()), 16)}"
        self._unsent: list[str] = []
        self._jobs: dict[str, str] = {}  # by run
        self._refused, self._left = "", True

    def __enter__(self) -> "Slurm":
        """Lease the job folder, and cancel pending jobs of a killed launcher.

        The killed launcher's running jobs continue, since their workers hold leases of their runs.
        Raises ConfigError if other users can access the folder, or if Slurm fails.
        """
        os.environ.setdefault("SUBMITIT_LOG_LEVEL", "ERROR")
        import submitit

        self._submitit = submitit
        self._turns = contextlib.ExitStack()
        if taken(self._store.working("slurm")):
            sys.stderr.write("note: waiting for another command that has these runs at Slurm\n")
        self._lease = self._turns.enter_context(self._store.alone("slurm"))
        self._folder = self._store.jobs.parent.resolve() / self._store.jobs.name
        self._folder.mkdir(mode=0o700, exist_ok=True)
        there = self._folder.lstat()
        if there.st_uid != os.geteuid() or stat.S_IMODE(there.st_mode) & 0o077:  # also of a link
            self._turns.close()
            raise ConfigError(
                f"'{self._folder}' is not a folder of this user alone: who may write "
                "there may run anything"
            )
        self._heard = time.monotonic()
        try:
            _tell("scancel", f"--name={self._name}", "--state=PENDING")
            self._executor = submitit.AutoExecutor(
                self._folder,
                cluster="slurm",
                slurm_max_num_timeout=_REQUEUES,
                slurm_python=f"exec {shlex.quote(sys.executable)}",
            )
            more = {f"slurm_{key}": value for key, value in self._parameters.items()}
            more["slurm_setup"] = [_WAIT.format(folder=shlex.quote(str(self._folder)))]
            more["slurm_additional_parameters"]["job_name"] = self._name
            self._executor.update_parameters(name=self._name, **more)
        except (_Unanswered, RuntimeError) as error:
            self._turns.close()
            raise ConfigError(f"--launcher slurm: {error}") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Release the job folder; remove the folder unless remaining jobs may need its files."""
        if kind is None:
            self.stop()
        if self._left:
            self._lease.release()
        self._turns.close()

    def submit(self, runs: Sequence[str]) -> None:
        """Queue a job for each run; the next poll submits them."""
        self._unsent += runs

    def poll(self) -> News:
        """Wait two seconds, and read the job queue. Raises OSError if Slurm does not answer."""
        try:
            if self._unsent:
                self._send()
            time.sleep(_POLL_S)
            states = self._states()
        except _Unanswered as error:
            if time.monotonic() - self._heard > _PATIENCE_S:
                raise OSError(f"Slurm has not answered for {_PATIENCE_S:.0f} s: {error}") from None
            time.sleep(_POLL_S)
            return News()
        self._heard = time.monotonic()
        news = News()
        for run, job in list(self._jobs.items()):
            state = states.get(job, "not in the queue")
            if state in _ENDED or state == _HELD_STATES or job not in states:
                del self._jobs[run]
                if state == _HELD_STATES:
                    with contextlib.suppress(_Unanswered):  # cancelled with the others at the end
                        _tell("scancel", job)
                detail = self._last_line(job) if state == "FAILED" else ""
                why = f"Slurm's job {job}: {state}{detail}"
                news.gone.append(Gone(run, why, state == "OUT_OF_MEMORY"))
            elif state == "RUNNING":
                news.steps[run] = how_far(self._store, run)
        return news

    def stop(self) -> None:
        """Cancel all jobs; workers write checkpoints before they end.

        Returns when the queue is empty, or after a time limit.
        """
        deadline = time.monotonic() + 3 * processes.GRACE_S
        self._unsent.clear()
        try:
            _tell("scancel", f"--name={self._name}")
            while (there := self._there()) and time.monotonic() < deadline:
                time.sleep(_POLL_S / 4)
            self._left = there
        except KeyboardInterrupt:
            sys.stderr.write("stopping at once\n")  # a second interrupt: do not wait
        except _Unanswered as error:
            sys.stderr.write(f"note: jobs could not be cancelled and may go on: {error}\n")

    def _send(self) -> None:
        root, jobs = str(self._store.root.resolve()), []
        try:
            with contextlib.redirect_stderr(io.StringIO()), self._executor.batch():
                jobs = [self._executor.submit(remote.Job(), root, run) for run in self._unsent]
        except (self._submitit.core.utils.FailedJobError, OSError) as error:
            self._states()  # the controller answers, so it refused; the second refusal is final
            if self._refused:
                raise ConfigError(f"--launcher slurm: {_last(str(error))}") from None
            self._refused = str(error) or "refused"
            return
        given = {run: job.job_id for run, job in zip(self._unsent, jobs, strict=True)}
        # A killed controller may have lost jobs and reused their numbers.
        forgotten = {run: "" for run, job in self._jobs.items() if job in given.values()}
        self._jobs |= forgotten | given
        self._unsent, self._refused = [], ""

    def _states(self) -> dict[str, str]:
        """Return the Slurm states of all jobs, including recently ended ones, by job id."""
        command = ("squeue", "-h", "-r", "-o", "%i %T %r", "--states=all", f"--name={self._name}")
        rows = [line.split(maxsplit=2) for line in _tell(*command).splitlines()]
        return {
            job: _HELD_STATES if reason == [_HELD_STATES] else state for job, state, *reason in rows
        }

    def _there(self) -> bool:
        return any(state not in _ENDED for state in self._states().values())

    def _last_line(self, job: str) -> str:
        with contextlib.suppress(OSError):
            printed = (self._folder / f"{job}_0_log.out").read_text("utf-8", "replace")
            return f", {last}" if (last := _last(printed)) else ""
        return ""


def _parameters(
    device: str, workers: int | None, options: Mapping[str, str | bool], ranks: int
) -> dict[str, Any]:
    """Return submitit's parameters of a job."""
    given = {key.replace("-", "_"): value for key, value in options.items()}
    return {
        "time": _HOUR,
        "cpus_per_task": ranks,
        **({"gpus_per_node": ranks} if device == "cuda" else {}),
        "stderr_to_stdout": True,
        "use_srun": False,
        "array_parallelism": workers or _ARRAY,
        "additional_parameters": {"signal": "B:USR2@90", "requeue": True, **given},
    }


def script(
    device: str, workers: int | None, options: Mapping[str, str | bool], ranks: int, runs: int
) -> str:
    """Return the job script of an array of runs. Raises ConfigError without submitit."""
    require("submitit", "--launcher slurm")
    from submitit.slurm.slurm import _make_sbatch_string

    command = f"exec {shlex.quote(sys.executable)} ..."
    given = _parameters(device, workers, options, ranks) | {"map_count": min(runs, _ARRAY)}
    return str(_make_sbatch_string(command, "jobs", job_name="llama-ablate", **given)).strip()


def _tell(*words: str) -> str:
    """Run a Slurm command and return its output. Raises _Unanswered if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603  fixed words
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unanswered(str(error)) from None
    if done.returncode:
        raise _Unanswered(_last(done.stderr) or f"{words[0]} exited {done.returncode}")
    return done.stdout


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2]
