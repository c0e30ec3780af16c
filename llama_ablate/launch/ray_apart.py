"""Ray launcher for machines that share no disk: plan and tokens go out, finished runs come home.

The command holds the lease of each of its runs, takes what was sealed on the other machine, and
commits it. What is unfinished lies in a storage, so that another machine can go on with it.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.launch import apart
from llama_ablate.launch.queue import Gone, News
from llama_ablate.launch.ray import Ray
from llama_ablate.launch.storage import Storage
from llama_ablate.results import Store
from llama_ablate.results.leases import Lease
from llama_ablate.results.live import EVERY_S, LIVE


def _work(parcel: apart.Parcel, run: str, failed: Mapping[str, bytes]) -> Any:
    import ray

    return apart.work(parcel, run, failed, ray.get)


class RayApart(Ray):
    """Runs workers as Ray tasks in folders of their own machines."""

    task = staticmethod(_work)

    def __init__(self, storage: str, store: Store, *asked: Any) -> None:
        """Keep checkpoints at a URL; the rest is as `Ray` takes it."""
        super().__init__(store, *asked)
        self._url, self._storage = storage, Storage(storage, store.root.name)
        self._leases: dict[str, Lease] = {}
        self._held: list[str] = []
        self._noted = 0.0

    def __enter__(self) -> "RayApart":
        super().__enter__()
        try:
            with self._told():  # of a command that was killed, or of a node that came late
                for run in self._store.runs.final_ids().intersection(self._storage.runs()):
                    self._storage.forget(run)
            parcel = apart.packed(self._store, self._url, self._ray.put)
            self._parcel = self._ray.put(parcel)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for lease in self._leases.values():
            lease.release()
        super().__exit__(*error)

    def submit(self, runs: Sequence[str]) -> None:
        """Start a task for each of these runs, under its lease."""
        for run in runs:
            if lease := self._store.lease(run):
                self._leases[run] = lease
                self.start(run, self._parcel, run, self._store.runs.files(run))
            else:
                self._held.append(run)

    def poll(self) -> News:
        """Wait as `Ray.poll` does."""
        if time.monotonic() - self._noted > EVERY_S:
            self._noted = time.monotonic()
            for run in self._leases:
                with contextlib.suppress(OSError):  # nothing depends on a note
                    disk.replace(self._store.working(run) / LIVE, self._storage.read(run, LIVE))
        news = super().poll()
        news.gone += [Gone(run) for run in self._held]
        self._held.clear()
        return news

    def ended(self, gone: Gone, arrival: apart.Arrival | None = None) -> Gone:
        """Commit what came home, and return how the task has ended."""
        why, oom, reached = gone.why, gone.oom, 0
        with self._leases.pop(gone.run) as lease:
            if arrival:
                with os.fdopen(disk.append(self._store.log(gone.run)), "ab") as log:
                    log.write(arrival.log)
                try:
                    if self._store.adopt(lease, gone.run, arrival.files):
                        with self._told():
                            self._storage.forget(gone.run)
                        return gone
                except ConfigError as error:
                    why = str(error)
            with self._told():
                reached = self._storage.latest(gone.run)
        return Gone(gone.run, why, oom, reached)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Tell of a storage that fails, and go on: what was sealed is committed here."""
        try:
            yield
        except OSError as error:
            sys.stderr.write(f"note: the storage fails: {error}\n")
