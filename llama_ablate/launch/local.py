"""Local launcher: one worker per core or GPU, or per group of cores or GPUs."""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

import torch

from llama_ablate.errors import ConfigError
from llama_ablate.launch import processes, worker
from llama_ablate.launch.environment import cores
from llama_ablate.launch.queue import Gone, News, how_far
from llama_ablate.results import FINAL, Store, live
from llama_ablate.training import containers
from llama_ablate.training.compute import free_bytes

_GRACE_S = 8.0  # seconds for a stopped worker to write a checkpoint


def default_workers(device: str, ranks: int = 1) -> int:
    """Return the number of workers: usable cores or GPUs, divided by the ranks per run.

    A container's CPU time counts as cores, rounded down.
    """
    units = devices(device) if device == "cuda" else min(cores(), containers.cpus())
    return max(1, int(units) // ranks)


def describe_limits() -> str:
    """Describe the limits of this container to memory and CPU time; "" without any."""
    cpus, memory = containers.cpus(), containers.memory_left()
    limits = [f"{cpus:.3g} CPUs"] * math.isfinite(cpus)
    limits += [f"{memory / 1e9:,.1f} GB of memory, now free"] * math.isfinite(memory)
    return f"this container has {' and '.join(limits)}" if limits else ""


def devices(device: str) -> int:
    """Return the number of devices with separate memory: the GPUs, or 1 for all cores."""
    return torch.cuda.device_count() if device == "cuda" else 1


@dataclass
class _Job:
    run: str
    process: BaseProcess
    gpus: str
    kills: int  # out-of-memory kills of the system before this job began


class Local:
    """Launcher of workers as processes on this machine.

    At first, one worker starts per device. The peak memory of the first worker then determines how
    many more start: as many as fit into the memory that other programs and launchers leave free.
    """

    def __init__(self, store: Store, device: str, workers: int, ranks: int = 1) -> None:
        self.slots = workers
        self._store, self._device = store, device
        self._devices = max(1, devices(device) // (ranks if device == "cuda" else 1))
        self._in_one_device = ranks if device == "cpu" else 1
        self._waiting: deque[str] = deque()
        #: Largest number of concurrent workers; None until a worker's peak memory is known.
        self._most = workers if workers <= self._devices else None
        gpus = _gpus() if device == "cuda" else []
        if gpus and ranks > len(gpus):
            raise ConfigError(f"parallel.data: {ranks} processes on {len(gpus)} GPUs")
        self._gpus = [_share(worker, ranks, gpus) for worker in range(workers)]
        self._active: list[_Job] = []

    def submit(self, runs: Sequence[str]) -> None:
        """Start a process for each run, as soon as memory is available."""
        self._waiting.extend(runs)
        self._start()

    def _start(self) -> None:
        while self._waiting and len(self._active) < (self._most or self._devices):
            run, gpus = self._waiting.popleft(), self._gpus.pop(0)
            kills, log = processes.out_of_memory_kills(), self._store.log(run)
            process = processes.start(worker.run, self._store.root, run, gpus=gpus, log=log)
            self._active.append(_Job(run, process, gpus, kills))

    def _admit(self, runs: Sequence[str]) -> None:
        """Set the number of concurrent workers once a run's peak memory is known."""
        if self._most is not None or not (peak := max(map(self._peak_of, runs), default=0)):
            return
        free = free_bytes(self._device)
        each = peak * self._in_one_device
        self._most = min(self.slots, len(self._active) + free // each * self._devices)
        self._most = max(self._most, self._devices)
        if self._most < self.slots:
            sys.stderr.write(
                f"note: {self._most} of {self.slots} workers at a time: the first took "
                f"{each / 1e9:,.1f} GB of memory, and {free / 1e9:,.1f} GB are free\n"
            )

    def _peak_of(self, run: str) -> int:
        """Return the peak memory of a run in bytes; 0 while unknown."""
        if note := live.read(self._store.working(run)):
            return note.peak_memory_bytes
        record = self._store.record(run)
        return record.peak_memory_bytes if record and record.outcome in FINAL else 0

    def poll(self) -> News:
        """Wait up to 0.25 s for a process to end; return progress and ended processes."""
        runs = [job.run for job in self._active]
        wait([job.process.sentinel for job in self._active], timeout=0.25)
        news = News()
        for job in list(self._active):
            news.steps[job.run] = how_far(self._store, job.run)
            if not job.process.is_alive():
                log, code = self._store.working(job.run) / "log", job.process.exitcode or 0
                news.gone.append(Gone(job.run, *processes.how_ended(code, job.kills, log)))
                self._active.remove(job)
                processes.end(job.process)
                self._gpus.append(job.gpus)
        if self._most is None:
            self._admit(runs)
        self._start()
        return news

    def stop(self) -> None:
        """Ask workers to write checkpoints and end; kill workers that exceed the grace time."""
        self._waiting.clear()
        working = [job.process for job in self._active]
        if working:
            sys.stderr.write(
                f"stopping: {len(working)} workers write checkpoints, for {_GRACE_S:g} s at most; "
                "Ctrl-C stops them at once\n"
            )
        try:
            for process in working:
                if process.is_alive():
                    process.terminate()
            deadline = time.monotonic() + _GRACE_S
            while any(p.is_alive() for p in working) and time.monotonic() < deadline:
                wait([process.sentinel for process in working], timeout=0.1)
        except KeyboardInterrupt:
            sys.stderr.write("stopping at once\n")  # a second interrupt: do not wait
        finally:
            for job in self._active:
                processes.end(job.process)


def _gpus() -> list[str]:
    """Return the names of the GPUs that this process may use, as in CUDA_VISIBLE_DEVICES."""
    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return given.split(",")[:count] if given else [str(index) for index in range(count)]


def _share(worker: int, ranks: int, gpus: Sequence[str]) -> str:
    """Return the CUDA_VISIBLE_DEVICES of a worker; "" without GPUs."""
    chosen = range(worker * ranks, (worker + 1) * ranks) if gpus else ()
    return ",".join(gpus[number % len(gpus)] for number in chosen)
