"""Child processes, forked from a server that has imported torch, or as new interpreters."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from llama_ablate.config import plugins
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.terminal import in_one_line

#: Modules that the fork server imports once. torch's optimizers need torch._dynamo, whose import
#: takes two seconds.
_PRELOADED = ["llama_ablate.launch.worker", "llama_ablate.measure", "torch._dynamo"]

#: Exit code of a process that refuses its task; the last line of its log states the reason.
REFUSED = 2

#: Seconds for a stopped process to write a checkpoint. Slurm's limit (KillWait) is 30 by default.
GRACE_S = 20.0

_TRIES = 3  # attempts to start a process
_LONGEST = 70  # most bytes of a socket's folder: macOS limits socket paths to 103 bytes

Task = Callable[..., Any]


def context() -> BaseContext:
    """Return the multiprocessing context: `forkserver` if the system has it, else `spawn`."""
    methods = multiprocessing.get_all_start_methods()
    method = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if hasattr(method, "set_forkserver_preload"):
        method.set_forkserver_preload(_PRELOADED)
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST:
        tempfile.tempdir = "/tmp"  # noqa: S108  the server's socket lies in a folder of our own in it
    return method


def warm() -> None:
    """Start the fork server early, so that it imports torch in parallel with this process."""
    if context().get_start_method() == "forkserver":
        with _beginning():
            forkserver.ensure_running()


@contextmanager
def _beginning() -> Iterator[None]:
    """Prepare processes that start in the `with` body: without signals and this main script.

    A terminal sends SIGINT (Ctrl-C) and SIGHUP (its closing) to all of its processes. This process
    stops its workers itself, and the fork server has to outlive the workers, since it reports their
    end. multiprocessing would run the main script in a new process to find functions that are
    defined in it. Tasks are functions of modules, so a script that calls `llama_ablate.run` needs
    no `if __name__ == "__main__"`.
    """
    resource_tracker.ensure_running()  # its start unblocks SIGINT, so that it must precede
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    # With huge pages a training step on a CPU is some 4% faster; glibc reads this before Python.
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(
    task: Task, *arguments: Any, log: Path, gpus: str = "", anew: bool = False
) -> BaseProcess:
    """Start `task(*arguments)` in a new process whose output goes to `log`; return the process.

    A ConfigError or an OSError of the task becomes the exit code `REFUSED`. `anew` starts a new
    Python interpreter, which takes some seconds, instead of forking: forked processes have their
    libraries and memory at the same addresses, so that their timings differ too little. Raises
    ChildProcessError if the fork server is killed repeatedly.
    """
    method = multiprocessing.get_context("spawn") if anew else context()
    process: BaseProcess = method.Process(  # type: ignore[attr-defined]
        target=_run,
        args=(str(log), gpus, plugins.loaded(), task, arguments),
        daemon=True,  # stopped when this process ends
    )
    for _ in range(_TRIES):
        try:
            with _beginning():
                process.start()
        except (EOFError, ConnectionError):  # the fork server was just killed: retry
            time.sleep(0.1)
        else:
            return process
    raise ChildProcessError(
        f"no process can be started: the fork server was killed {_TRIES} times in a row"
    )


def end(process: BaseProcess) -> None:
    """Kill a process if it is still alive, and free its resources."""
    if process.is_alive():
        process.kill()
    process.join()
    process.close()


def call(
    task: Task,
    *arguments: Any,
    log: Path,
    report: Callable[[Any], None] | None = None,
    anew: bool = False,
) -> Any:
    """Run `task(report, *arguments)` in a new process and return its result.

    `anew` is as for `start`. Raises the task's ConfigError; ChildProcessError, with the last line
    of its output, if the process died.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = start(_answer, theirs, task, arguments, log=log, anew=anew)
    theirs.close()
    try:
        while True:
            kind, value = ours.recv()
            if kind == "result":
                process.join(GRACE_S)  # a plug-in's thread may still run
                return value
            if kind == "refused":
                raise value
            if report:
                report(value)
    except EOFError:
        process.join()
        why = f"the process ended with code {process.exitcode}: {last_words(log)}"
        raise ChildProcessError(why) from None
    finally:
        end(process)
        ours.close()


def _answer(connection: Connection, task: Task, arguments: tuple[Any, ...]) -> None:
    def tell(kind: str, value: Any) -> None:
        with suppress(BrokenPipeError):  # the caller has ended, and this process ends soon
            connection.send((kind, value))

    try:
        tell("result", task(partial(tell, "progress"), *arguments))
    except ConfigError as error:
        tell("refused", error)


class Program(AbstractContextManager["Program"]):
    """Module in a new interpreter, in a context manager that stops it at the end."""

    def __init__(self, words: Sequence[str], log: Path, **env: str) -> None:
        """Start a module, given its name and arguments; its output goes to `log`."""
        with os.fdopen(disk.append(log), "ab") as file:
            self._process = subprocess.Popen(  # noqa: S603  fixed words
                [sys.executable, "-m", *words],
                env=os.environ | env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def wait(self, asked_to_stop: Callable[[], bool] = lambda: False) -> int:
        """Wait for the end, or stop the program when asked to; return its exit code."""
        while self._process.poll() is None and not asked_to_stop():
            time.sleep(0.1)  # a short sleep lets an exception interrupt it
        return self.stop()

    def stop(self) -> int:
        """Ask the program to end, kill it after `GRACE_S` seconds, and return its exit code."""
        self._process.terminate()
        try:
            return self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            return self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.stop()


def how_ended(code: int, kills: int, log: Path) -> tuple[str, bool]:
    """Describe how a worker ended, and whether the system killed it for lack of memory.

    `kills` is the number of the system's out-of-memory kills before the worker began.
    """
    oom = code == -signal.SIGKILL and out_of_memory_kills() > kills
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    more = ": the system had run out of memory" if oom else ""
    more += f": {last_words(log)}" if code == REFUSED else ""
    return f"the process ended by {name}{more}", oom


def last_words(log: Path) -> str:
    """Return the last line of a process's log."""
    printed = log.read_text("utf-8", "replace") if log.is_file() else ""
    return (printed.strip().splitlines() or ["it printed nothing"])[-1]


def out_of_memory_kills() -> int:
    """Count the processes that the system has killed for lack of memory; 0 if unknown."""
    try:
        lines = Path("/proc/vmstat").read_text("ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _run(
    log: str,
    gpus: str,
    loaded: dict[str, str],
    task: Task,
    arguments: tuple[Any, ...],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # interrupts are handled by the parent
    launcher = multiprocessing.parent_process()
    assert launcher is not None
    leave_after(launcher.join)
    try:
        handle = disk.append(Path(log))  # fails if another launcher has removed its folder
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        plugins.load_recorded(loaded)
        task(*arguments)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"{in_one_line(str(error))}\n")
        sys.exit(REFUSED)


def leave_after(ended: Callable[[], object]) -> None:
    """Terminate this process when its parent has ended.

    `ended` is a function that blocks until the parent has ended; a thread calls it. Then this
    process sends itself SIGTERM: a worker writes a checkpoint, and any other process ends. After
    GRACE_S seconds this process exits in any case.
    """

    def watch() -> None:
        ended()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
