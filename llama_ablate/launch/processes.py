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
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from llama_ablate.config import plugins
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk

#: Modules that the fork server imports once. torch's optimizers need torch._dynamo, whose import
#: takes two seconds.
_PRELOADED = [
    "llama_ablate.launch.fork_server",
    "llama_ablate.launch.worker",
    "llama_ablate.measure",
    "torch._dynamo",
]

#: Exit code of a worker that refuses its run; the last line of its log states the reason.
REFUSED = 2

#: Environment variable of a command that ends when its standard input closes.
ENDS_WITH_STDIN = "LLAMA_ABLATE_ENDS_WITH_STDIN"

#: Seconds for a stopped process to write a checkpoint. Slurm's limit (KillWait) is 30 by default.
GRACE_S = 20.0

_TRIES = 3  # attempts to start a process
_TUNABLES = "GLIBC_TUNABLES"

_LONGEST = 70  # most bytes of a socket's folder: macOS limits socket paths to 103 bytes

Message = tuple[str, Any]
Task = Callable[..., Any]


def context() -> BaseContext:
    """Return the multiprocessing context: `forkserver` if the system has it, else `spawn`."""
    methods = multiprocessing.get_all_start_methods()
    method = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if hasattr(method, "set_forkserver_preload"):
        method.set_forkserver_preload(_PRELOADED)
    return method


def warm() -> None:
    """Start the fork server early, so that it imports torch in parallel with this process."""
    if context().get_start_method() == "forkserver":
        if len(os.fsencode(tempfile.gettempdir())) > _LONGEST:
            _take_short_folder()
        with _born():
            forkserver.ensure_running()


@contextmanager
def _born() -> Iterator[None]:
    """Block SIGINT and SIGHUP, and use huge pages, in processes started in the `with` body.

    A terminal sends SIGINT (Ctrl-C) and SIGHUP (its closing) to all of its processes. This process
    stops its workers itself, and the fork server has to outlive the workers, since it reports their
    end. With huge pages for glibc's allocations, where Linux provides them on request, a training
    step on a CPU is some 4% faster; glibc reads the setting before Python begins.
    """
    resource_tracker.ensure_running()  # its start unblocks SIGINT, so that it must precede
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    tunables = os.environ.get(_TUNABLES)
    os.environ.setdefault(_TUNABLES, "glibc.malloc.hugetlb=1")
    try:
        yield
    finally:
        if tunables is None:
            os.environ.pop(_TUNABLES, None)  # another thread may have removed it already
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take_short_folder() -> None:
    """Create this process's folder for sockets in /tmp, where its path is short."""
    before, tempfile.tempdir = tempfile.tempdir, "/tmp"  # noqa: S108  a folder of our own in it
    try:
        util.get_temp_dir()  # it is created once and reused
    finally:
        tempfile.tempdir = before


def start(
    task: Task,
    *arguments: Any,
    gpus: str = "",
    anew: bool = False,
    log: Path,
) -> "Child":
    """Start `task(report, *arguments)` in a new process whose output goes to `log`.

    `anew` starts a new Python interpreter, which takes some seconds, instead of forking: forked
    processes have their libraries and memory at the same addresses, so that their timings differ
    too little. Raises ChildProcessError if the fork server is killed repeatedly.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    method = multiprocessing.get_context("spawn") if anew else context()
    process = method.Process(  # type: ignore[attr-defined]
        target=_child,
        args=(theirs, str(log), gpus, plugins.loaded(), task, arguments),
        daemon=True,  # stopped when this process ends
    )
    for _ in range(_TRIES):
        if not anew:
            warm()
        try:
            with _without_script(), _born() if anew else nullcontext():
                process.start()
        except (EOFError, ConnectionError):  # the fork server was just killed: retry
            time.sleep(0.1)
            continue
        theirs.close()
        return Child(process, ours)
    raise ChildProcessError(
        f"no process can be started: the fork server was killed {_TRIES} times in a row"
    )


@contextmanager
def _without_script() -> Iterator[None]:
    """Hide this process's main script from a new process, which would run it again.

    multiprocessing would run the script to find functions that are defined in it. Tasks are
    functions of modules, so the script is not needed; a script that calls `llama_ablate.run` then
    needs no `if __name__ == "__main__"`.
    """
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def call(
    task: Task,
    *arguments: Any,
    log: Path,
    report: Callable[[Any], None] | None = None,
    anew: bool = False,
) -> Any:
    """Run `task(report, *arguments)` in a new process and return its result.

    `anew` is as for `start`. Raises the task's ConfigError; OSError if the log cannot be written;
    ChildProcessError, with the last line of its output, if the process died.
    """
    child = start(task, *arguments, anew=anew, log=log)
    try:
        while True:
            try:
                kind, value = child.connection.recv()
            except EOFError:
                child.process.join()
                code = child.process.exitcode
                last = last_words(log)
                raise ChildProcessError(f"the process ended with code {code}: {last}") from None
            if kind == "refused":
                child.process.join(GRACE_S)
                raise value
            if kind == "result":
                child.process.join(GRACE_S)  # a plug-in's thread may still run
                return value
            if report:
                report(value)
    finally:
        child.end()


def start_command(words: Sequence[str], stderr: int | None = None) -> "subprocess.Popen[bytes]":
    """Start a `llama_ablate` command in a separate interpreter, and return its process.

    The command's modules and plug-ins are not loaded in this process. The command ends soon after
    this process does. Its standard output is discarded; its standard error goes to `stderr` (None:
    the standard error of this process).
    """
    return subprocess.Popen(  # noqa: S603  our own command
        [sys.executable, "-P", "-m", "llama_ablate", *words],
        stdin=subprocess.PIPE,  # the pipe closes when this process ends
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env={**os.environ, ENDS_WITH_STDIN: "1"},
        start_new_session=True,  # a terminal interrupts this process alone
    )


def command(words: Sequence[str]) -> int:
    """Run a `llama_ablate` command in a separate interpreter; return its exit code.

    An interrupt of this process stops the command.
    """
    with start_command(words) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.communicate()
            raise


class Child:
    """Child process with the pipe for its reports."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process = process
        self.connection = connection

    def messages(self) -> list[Message]:
        """Return the messages that the process has sent since the last call."""
        unread = []
        try:
            while self.connection.poll():
                unread.append(self.connection.recv())
        except EOFError:
            pass
        return unread

    def end(self) -> None:
        """Kill the process if it is still alive, and free its resources."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.connection.close()
        self.process.close()


def ended_by(code: int, *, oom: bool) -> str:
    """Describe how a process ended, from its exit code."""
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    hint = ": the system had run out of memory" if oom else ""
    return f"the process ended by {name}{hint}"


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


def _child(
    connection: Connection,
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

    def tell(kind: str, value: Any) -> None:
        with suppress(BrokenPipeError):  # the launcher has ended, and this process ends soon
            connection.send((kind, value))

    try:
        handle = disk.append(Path(log))  # fails if another launcher has removed its folder
    except OSError as error:
        tell("refused", error)
        return
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    try:
        plugins.load_recorded(loaded)
        tell("result", task(partial(tell, "progress"), *arguments))
    except ConfigError as error:
        tell("refused", error)
    connection.close()


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
