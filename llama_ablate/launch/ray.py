"""Ray launcher: one task per run, on a cluster or on a local Ray instance.

Ray schedules the tasks and reports lost tasks; the queue, not Ray, retries them. Ray reads its
access settings when it is imported, so they are set before the import.
"""

import contextlib
import ipaddress
import math
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from llama_ablate.config.schema import RayTask
from llama_ablate.errors import ConfigError
from llama_ablate.launch import local, processes, remote
from llama_ablate.launch.queue import Gone, News, how_far
from llama_ablate.results import Store

_POLL_S = 0.5
#: Seconds without an answer from Ray's head node before an error. After 60 s, Ray would end this
#: process without a message.
_PATIENCE_S = 15.0
_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",  # a task can run any code, so that submitting one needs a token
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_task_oom_retries": "0",
}
_DEFAULT_TASK = RayTask()
#: Settings for Ray on this machine alone: it listens on the loopback address and needs the token.
_ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}


class Ray:
    """Launcher of workers as Ray tasks, connected inside `with`."""

    def __init__(
        self,
        store: Store,
        device: str,
        workers: int | None,
        address: str | None,
        ranks: int = 1,
        asked: RayTask = _DEFAULT_TASK,
    ) -> None:
        """Set the resources of each task.

        `asked` is the section `ray` of an experiment file. GPUs are per rank; without a stated
        number of CPUs, a task gets one CPU per rank.
        """
        self._store, self._cuda, self._address = store, device == "cuda", address
        gpus = ranks * asked.gpus if self._cuda else 0
        self._need = gpus or asked.cpus or ranks
        self._asked: dict[str, Any] = {
            "num_cpus": asked.cpus or ranks,
            "num_gpus": gpus,
            "memory": round(1e9 * asked.memory_gb) or None,
            "resources": asked.resources,
        }
        share = asked.gpus if self._cuda else 1
        self.slots = workers or int(local.default_workers(device, ranks) / share)
        self._workers = workers
        self._tasks: dict[Any, str] = {}

    def __enter__(self) -> "Ray":
        """Connect to Ray. Raises ConfigError or OSError if the connection fails."""
        host = self._address.rpartition(":")[0] if self._address else "127.0.0.1"
        for name, value in (_ENVIRONMENT | (_ALONE if _loopback(host) else {})).items():
            os.environ.setdefault(name, value)
        if not self._address and "RAY_AUTH_TOKEN_PATH" not in os.environ:
            os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        import ray as imported

        self._ray = ray = cast("Any", imported)
        self._quiet = contextlib.ExitStack()
        # Ray prints long messages about nodes to standard output, where the command's answer goes.
        nowhere = self._quiet.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        self._quiet.enter_context(contextlib.redirect_stdout(nowhere))
        ends = signal.getsignal(signal.SIGTERM)
        asked_for = self._asked["resources"]
        alone = {
            "num_cpus": math.ceil(self.slots * self._asked["num_cpus"]),
            "num_gpus": math.ceil(self.slots * self._asked["num_gpus"]),
            "resources": {name: math.ceil(self.slots * each) for name, each in asked_for.items()},
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
        try:
            ray.init(
                address=self._address or "local",
                log_to_driver=False,
                logging_level="CRITICAL",
                **({} if self._address else alone),
            )
            self._work = ray.remote(max_retries=0, max_calls=1, **self._asked)(remote.work)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            self._quiet.close()
            why = str(error).strip().partition("\n")[0]
            raise ConfigError(f"--launcher ray: {why}") from None
        signal.signal(signal.SIGTERM, ends)  # restores the handler that Ray replaced
        self._head, self._heard = ray.get_runtime_context().gcs_address, time.monotonic()
        kind = "GPU" if self._cuda else "CPU"
        has = ray.cluster_resources()
        for name, need in {kind: self._need, **asked_for}.items():
            if has.get(name, 0) < need:
                sys.stderr.write(
                    f"note: a run takes {need:g} {name}, the cluster has {has.get(name, 0):g}: "
                    "waiting for nodes to join\n"
                )
        if self._address and not self._workers:
            self.slots = max(1, int(has.get(kind, 0) / self._need))
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()
        self._quiet.close()

    def submit(self, runs: Sequence[str]) -> None:
        """Submit a task for each run."""
        root = str(self._store.root.resolve())
        for run in runs:
            self._tasks[self._work.remote(root, run)] = run

    def poll(self) -> News:
        """Wait up to 0.5 s for a task to end; return progress and ended tasks.

        Raises OSError if Ray's head does not answer, or if this machine's node has died.
        """
        if answers(self._head):
            self._heard = time.monotonic()
        elif time.monotonic() - self._heard > _PATIENCE_S:
            raise OSError(f"Ray's head at {self._head} has not answered for {_PATIENCE_S:.0f} s")
        news = News()
        for task in self._ended(_POLL_S):
            run = self._tasks.pop(task)
            try:
                _code, why, oom = self._ray.get(task)
            except self._ray.exceptions.LocalRayletDiedError:
                raise OSError("the Ray node that this machine is has died") from None
            except self._ray.exceptions.RayError as error:
                oom = isinstance(error, self._ray.exceptions.OutOfMemoryError)
                why = f"Ray: {self._in_words(error)}"
            news.gone.append(Gone(run, why, oom))
        news.steps = {run: how_far(self._store, run) for run in self._tasks.values()}
        return news

    def stop(self) -> None:
        """Cancel the tasks; their workers write checkpoints before they end."""
        for task in self._tasks:
            self._ray.cancel(task)
        deadline = time.monotonic() + processes.GRACE_S
        try:
            while self._tasks and answers(self._head) and time.monotonic() < deadline:
                for task in self._ended(_POLL_S):
                    del self._tasks[task]
        except KeyboardInterrupt:
            sys.stderr.write("stopping at once\n")  # a second interrupt: do not wait

    def _in_words(self, error: Exception) -> str:
        """Describe an error without the machine addresses in Ray's messages."""
        if isinstance(error, self._ray.exceptions.RayTaskError):  # raised by our code in the task
            return str(error).strip().rpartition("\n")[2]
        return type(error).__name__

    def _ended(self, seconds: float) -> list[Any]:
        if not self._tasks:
            time.sleep(seconds)
            return []
        tasks = list(self._tasks)
        ended: list[Any] = self._ray.wait(tasks, num_returns=len(tasks), timeout=seconds)[0]
        return ended


def answers(address: str) -> bool:
    """Return whether an address HOST:PORT accepts TCP connections."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
