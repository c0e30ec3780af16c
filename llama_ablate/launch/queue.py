"""Queue of runs: pending runs, runs leased by other processes, and retries.

Launchers start worker processes and report their end. The results folder shows whether a run is
finished or leased by another command. A run whose process was lost continues from its checkpoint.
"""

import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from llama_ablate.launch.environment import make_record
from llama_ablate.launch.progress import Progress
from llama_ablate.results import FINAL, Record, Store, live
from llama_ablate.results.leases import Watch, lease_timeout
from llama_ablate.results.plan_document import PlanDocument
from llama_ablate.results.run import RunFolder
from llama_ablate.training import checkpoint
from llama_ablate.training.compute import Compute

_TRIES = 3  # attempts for a run whose processes were lost without progress


@dataclass(frozen=True)
class Gone:
    """End of a run's process: the run id, the reason, and whether memory ran out."""

    run: str
    why: str = ""
    oom: bool = False


@dataclass
class News:
    """Report of a launcher: progress of its processes, and its ended processes.

    `steps` maps run ids to steps.
    """

    steps: dict[str, int] = field(default_factory=dict)
    gone: list[Gone] = field(default_factory=list)


def how_far(store: Store, run: str) -> int:
    """Return the step of a run: of its worker's live note, or else of its latest checkpoint."""
    note = live.read(store.working(run))
    return note.step if note else checkpoint.latest(store.working(run))


class Launcher(Protocol):
    """Launcher of workers, which reports their progress and end."""

    slots: int

    def submit(self, runs: Sequence[str]) -> None:
        """Start workers for these runs, at most as many as slots are free."""

    def poll(self) -> News:
        """Wait briefly, and return the launcher's report."""

    def stop(self) -> None:
        """Stop all workers after they have written checkpoints; return when all have ended."""


class Queue:
    """Queue of the runs of a plan that have no final record."""

    def __init__(self, store: Store, plan: PlanDocument, progress: Progress) -> None:
        self._store, self._plan, self._progress = store, plan, progress
        self._runs = plan.runs
        #: Runs that ran out of memory while others ran: each is retried once, without other runs.
        self._crowded: deque[str] = deque()
        self._beside: set[str] = set()
        self._retried: set[str] = set()
        #: Runs leased by other processes, with the report on this queue's own ended process if any.
        self._elsewhere: dict[str, Gone | None] = {}
        self._watch = Watch()
        #: Runs that the launcher has.
        self._active: set[str] = set()
        #: By submitted run: folder of an earlier record, number of attempts without progress, time
        #: of the first of these, and step of the latest checkpoint.
        self._before: dict[str, object] = {}
        self._tries: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._reached: dict[str, int] = {}

    def work(
        self, launcher: Launcher, wanted: Collection[str] | None = None, stage: str = ""
    ) -> None:
        """Run the `wanted` runs (default: all) that have no final record.

        On an interrupt, workers write checkpoints first. A run that diverges, fails, runs out of
        memory or is lost too often gets a record with that outcome, and the other runs continue. A
        run that ran out of memory while other runs trained is first retried alone. `stage` names
        the experiment's stage to which the runs belong.
        """
        final = self._store.final_ids()
        runs = [run for run in self._in_order() if wanted is None or run in wanted]
        pending = deque(run for run in runs if run not in final)
        self._progress.begin(stage, total=len(runs), done=len(runs) - len(pending))
        try:
            while pending or self._active or self._elsewhere or self._crowded:
                if self._crowded and not (pending or self._active):
                    pending.append(self._crowded.popleft())
                alone = not self._retried.isdisjoint(self._active)
                chosen = self._choose(pending, 0 if alone else launcher.slots - len(self._active))
                self._before |= {run: self._store.folder(run) for run in chosen}
                self._active |= {*chosen}
                if chosen:
                    launcher.submit(chosen)
                    self._beside |= self._active if len(self._active) > 1 else set()
                news = launcher.poll()
                for run, step in news.steps.items():
                    self._progress.step(run, step / self._runs[run].steps)
                for gone in news.gone:
                    if self._retry(gone):
                        pending.append(gone.run)
                    self._active.discard(gone.run)
                pending.extend(self._returned())
        except BaseException:
            launcher.stop()
            raise
        for variant in {run.variant for run in self._runs.values()}:
            self._keep_best(variant)

    def _in_order(self) -> list[str]:
        """Return all runs ordered by seed, then by decreasing FLOPs.

        The order by seed keeps the runs of an interrupted experiment paired; starting short runs
        last lets workers end at about the same time.
        """
        experiment = self._plan.experiment
        seeds = {seed: i for i, seed in enumerate(experiment.race_seeds + experiment.seed_list)}
        flops = {
            run.id: run.steps * table.variant(run.variant).work
            for table in self._plan.tables
            for run in table.runs
        }
        return sorted(self._runs, key=lambda run: (seeds[self._runs[run].seed], -flops[run]))

    def _choose(self, pending: deque[str], most: int) -> list[str]:
        """Take at most `most` pending runs that no other process has leased or finished."""
        chosen: list[str] = []
        if not pending or not most:
            return chosen
        final = self._store.final_ids()  # other commands may have finished some runs meanwhile
        while pending and len(chosen) < most:
            run = pending.popleft()
            if run in final or self._watch.waits(self._store.working(run)):
                self._elsewhere[run] = None
            else:
                chosen.append(run)
        return chosen

    def _retry(self, gone: Gone) -> bool:
        """Handle the end of a run's process; return whether to retry the run now."""
        store, run = self._store, gone.run
        # The lease of a dead process on another machine counts as active until its timeout.
        if self._watch.waits(store.working(run)):
            self._elsewhere[run] = gone
            return False
        # Read the record after the lease, since a run is committed before its lease is released.
        folder = store.folder(run)
        ended = folder is not None and folder != self._before.get(run)
        record = RunFolder(folder).record() if folder and ended else None
        oom = gone.oom or bool(record and record.outcome == "oom")
        if oom and run in self._beside - self._retried:
            self._retried.add(run)
            self._crowded.append(run)
            return False
        if record:
            self._finish(record)
            return False
        reached = checkpoint.latest(store.working(run))
        if reached > self._reached.get(run, 0) or run not in self._tries:
            self._tries[run], self._since[run] = 0, time.monotonic()
        self._tries[run] += 1
        self._reached[run] = reached
        if self._tries[run] < _TRIES and not gone.oom:
            return True
        if time.monotonic() - self._since[run] < lease_timeout() and not gone.oom:
            self._elsewhere[run] = gone  # a network file system's cache may hide its record
            return False
        lost = self._lost(run, gone)
        if store.commit(lost, [], None) is None:  # another process leased or finished it
            self._elsewhere[run] = gone
        else:
            self._finish(lost)
        return False

    def _finish(self, record: Record) -> None:
        for counted in (self._tries, self._since, self._reached):
            counted.pop(record.id, None)
        self._progress.finish(record.id, self._label(record.id), record)
        self._keep_best(record.variant)

    def _keep_best(self, variant: str) -> None:
        """Delete the weights of a variant's runs, except for the best run in each table.

        Does nothing unless `keep_weights` is `best`. Tables are separate, since losses on different
        texts or budgets are not comparable.
        """
        if self._plan.settings.keep_weights == "best":
            tables = [
                [run.id for run in table.runs if run.variant == variant]
                for table in self._plan.tables
            ]
            self._store.keep_best(tables)

    def _label(self, run: str) -> str:
        return self._plan.run_name(self._runs[run])

    def _returned(self) -> list[str]:
        """Return the runs that another process had leased, and has left unfinished."""
        back = []
        for run, gone in list(self._elsewhere.items()):
            if self._watch.waits(self._store.working(run)):
                continue
            del self._elsewhere[run]
            record = self._store.record(run)
            if record and record.outcome in FINAL:
                self._progress.finish(run, self._label(run), record)
            elif gone is None or self._retry(gone):
                back.append(run)
        return back

    def _lost(self, run: str, gone: Gone) -> Record:
        return make_record(
            self._plan,
            run,
            Compute.of(self._plan.compute),
            outcome="oom" if gone.oom else "error",
            reason=f"{gone.why}; see {self._store.log(run).relative_to(self._store.root)}",
            steps_done=self._reached.get(run, 0),
            tokens_done=0,
            train_s=0.0,
            peak_memory_bytes=0,
        )
