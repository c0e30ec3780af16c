"""Start processes from a fork server that has imported torch and computed nothing, or anew."""

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

#: What the server imports once. torch's optimizers import torch._dynamo, two seconds of it.
_PRELOADED = [
    "llama_ablate.launch.fork_server",
    "llama_ablate.launch.worker",
    "llama_ablate.measure",
    "torch._dynamo",
]

#: Exit code of a worker that refuses its run; its last line says why.
REFUSED = 2

#: The variable of a command that ends with the process which holds its standard input open.
ENDS_WITH_STDIN = "LLAMA_ABLATE_ENDS_WITH_STDIN"

#: To write a checkpoint in, when asked to stop. Slurm's own patience (KillWait) is 30 by default.
GRACE_S = 20.0

_TRIES = 3  # to start a process
_TUNABLES = "GLIBC_TUNABLES"

_LONGEST = 70  # bytes of a folder in which a socket may be: with names of its own 103, macOS' most

Message = tuple[str, Any]
Task = Callable[..., Any]


def context() -> BaseContext:
    """Return the way to start processes: a fork server where the system has one."""
    methods = multiprocessing.get_all_start_methods()
    method = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if hasattr(method, "set_forkserver_preload"):
        method.set_forkserver_preload(_PRELOADED)
    return method


def warm() -> None:
    """Start the fork server now, so that it imports torch while this process does other things."""
    if context().get_start_method() == "forkserver":
        if len(os.fsencode(tempfile.gettempdir())) > _LONGEST:
            _take_short_folder()
        with _born():
            forkserver.ensure_running()


@contextmanager
def _born() -> Iterator[None]:
    """Have a process that starts now get no SIGINT or SIGHUP, and huge pages, from the first on.

    A terminal tells all of its processes of Ctrl-C, and that it closes. This one asks the others to
    stop; it knows the end of workers from the fork server, which has to outlive them. With huge
    pages for what glibc allocates, where Linux gives them on request, a training step on a CPU is
    some 4% faster; glibc reads that before Python begins.
    """
    resource_tracker.ensure_running()  # which would unblock SIGINT when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    asked = os.environ.get(_TUNABLES)
    os.environ.setdefault(_TUNABLES, "glibc.malloc.hugetlb=1")
    try:
        yield
    finally:
        if asked is None:
            os.environ.pop(_TUNABLES, None)  # another thread may start one, too
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take_short_folder() -> None:
    """Have this process's sockets below /tmp."""
    before, tempfile.tempdir = tempfile.tempdir, "/tmp"  # noqa: S108  a folder of our own in it
    try:
        util.get_temp_dir()  # made once, and kept from then on
    finally:
        tempfile.tempdir = before


def start(
    task: Task,
    *arguments: Any,
    gpus: str = "",
    anew: bool = False,
    log: Path,
) -> "Child":
    """Start `task(report, *arguments)` in a fresh process; what it prints goes to `log`.

    `anew` starts Python again, some seconds, instead of forking: forked processes
    have their libraries and memory at the same addresses, so that their timings differ too little.
    Raises ChildProcessError where the fork server is killed again and again.
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
        except (EOFError, ConnectionError):  # the fork server was killed just now: another one
            time.sleep(0.1)
            continue
        theirs.close()
        return Child(process, ours)
    raise ChildProcessError(
        f"no process can be started: the fork server was killed {_TRIES} times in a row"
    )


@contextmanager
def _without_script() -> Iterator[None]:
    """Hide this process's script from the one that starts, which would run it once more.

    multiprocessing does that so that it can find what the script defines. Tasks are functions of
    modules; and a script that calls `llama_ablate.run` needs no `if __name__ == "__main__"`.
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
    """Run `task(report, *arguments)` in a fresh process and return what it returns.

    `anew` as for `start`. Raises the ConfigError that the task raises; OSError where
    the log cannot be written; ChildProcessError where the process died, with the end of what it
    printed.
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
                child.process.join(GRACE_S)  # a thread of a plug-in may go on
                return value
            if report:
                report(value)
    finally:
        child.end()


def command(words: Sequence[str]) -> int:
    """Run a command of ours in an interpreter of its own, and return its exit code.

    What it loads is not loaded here. Its answer is thrown away. It is interrupted with this
    process, and ends soon after it.
    """
    with subprocess.Popen(  # noqa: S603  our own command
        [sys.executable, "-P", "-m", "llama_ablate", *words],
        stdin=subprocess.PIPE,  # which closes when this process ends
        stdout=subprocess.DEVNULL,
        env={**os.environ, ENDS_WITH_STDIN: "1"},
        start_new_session=True,  # a terminal interrupts this process alone
    ) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            child.communicate()
            raise


class Child:
    """A process and the pipe on which it reports."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process = process
        self.connection = connection

    def messages(self) -> list[Message]:
        """Return the reports that have not been read yet."""
        found = []
        try:
            while self.connection.poll():
                found.append(self.connection.recv())
        except EOFError:
            pass
        return found

    def end(self) -> None:
        """Kill the process if it is still there, and free its resources."""
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
    """Return the last line of what a process has printed."""
    printed = log.read_text("utf-8", "replace") if log.is_file() else ""
    return (printed.strip().splitlines() or ["it printed nothing"])[-1]


def out_of_memory_kills() -> int:
    """Return how many processes the system has killed because memory ran out."""
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
        with suppress(BrokenPipeError):  # the launcher is gone, and this process ends soon
            connection.send((kind, value))

    try:
        handle = disk.append(Path(log))  # another launcher may have swept its folder
    except OSError as error:
        tell("refused", error)
        return
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus
    try:
        plugins.again(loaded)
        tell("result", task(partial(tell, "progress"), *arguments))
    except ConfigError as error:
        tell("refused", error)
    connection.close()


def leave_after(ended: Callable[[], object]) -> None:
    """Have this process end soon after `ended` returns, which waits for what started it to end.

    It gets SIGTERM, as from a user: a worker then writes a checkpoint, others just end. After
    GRACE_S it ends in any case.
    """

    def watch() -> None:
        ended()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
