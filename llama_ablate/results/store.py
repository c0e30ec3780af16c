"""Writable results folder of an experiment: leases, commits, and clean-up."""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.slugs import slug
from llama_ablate.files.strict_json import sealed
from llama_ablate.results import leases, protocol
from llama_ablate.results.folder import Folder
from llama_ablate.results.leases import Lease
from llama_ablate.results.plan_document import (
    PLAN,
    PlanDocument,
    keep_plan,
    read_plan,
    refuse_another_experiment,
    sound_plan,
)
from llama_ablate.results.protocol import Version
from llama_ablate.results.record import FINAL, Measurement, Points, Record
from llama_ablate.results.run import METRICS, RunFolder, write_run

_CHOSEN_BY = "validation_loss_nats"


class Store(Folder):
    """Writable results folder of one experiment. Raises ConfigError for a pack."""

    def __init__(self, root: Path, plan_name: str = PLAN) -> None:
        super().__init__(root, plan_name)
        if self.is_packed:
            raise ConfigError(
                f"'{root}' holds packed results, without weights and closed to new runs: status, "
                "show and report read them; new runs need another --results"
            )

    def prepare(self) -> None:
        """Create the folders of the results.

        Raises ConfigError if the folders cannot be written, or contain a symbolic link, and for a
        damaged protocol of finished runs.
        """
        try:
            sound_plan(self.plan_file)
            _ = self.protocol if self.folders() else []
            self.refuse_links(self.root)
            for folder in (self.final, self.variants, self.in_progress):
                disk.make(folder)
            with self.alone("plan"):
                pass
        except OSError as error:
            raise self._unwritable(error) from None

    def create(self, plan: PlanDocument, experiment_text: str) -> None:
        """Write the plan, unless the folder already has the same plan.

        Raises ConfigError if the folder cannot be written, if the folder has the plan of another
        experiment, and while other processes work on another plan.
        """
        try:
            with self.alone("plan") as lease:
                current = sound_plan(self.plan_file)
                same = current is not None and current.identity() == plan.identity()
                exists = self.plan_file.exists()
                if exists and not same:
                    if current:
                        refuse_another_experiment(self.plan_file, current, plan)
                    others = [t for t in self._tasks() if t.name not in ("plan", "report")]
                    if leases.at_work(others):
                        raise ConfigError(
                            f"others are at work in '{self.root}' on another plan: "
                            "wait for them, or choose another --results"
                        )
                lease.replace(self.experiment_file, experiment_text.encode("utf-8"))
                # An older version writes a variant's architecture with other options.
                if same and current and current.architectures == plan.architectures:
                    return
                planned = current.runs if current else {}
                has_begun = any(task.name in planned for task in self._tasks())
                self._keep_protocol(lease, plan, has_begun=has_begun)
                if current:
                    keep_plan(self.plan_file, current, plan, self.final_ids(), lease)
                elif exists:
                    self.set_aside(self.plan_file, "damaged")
                self._write_sealed(lease, self.plan_file, plan.model_dump(mode="json"))
        except leases.LostError:
            self.create(plan, experiment_text)
        except OSError as error:
            raise self._unwritable(error) from None

    def keep_tokenizers(self, saved: Mapping[str, str]) -> None:
        """Write tokenizers, saved as JSON, by the fingerprints of their tokens.

        Finished runs then work where the corpus and the cache of tokens are gone. A damaged file is
        written again.
        """
        with self.alone("plan") as lease:
            for fingerprint, text in saved.items():
                values = json.loads(text)
                with contextlib.suppress(ConfigError):
                    if self.tokenizer(fingerprint) == values:
                        continue
                file = self.tokenizer_file(fingerprint)
                disk.make(file.parent)
                self._write_sealed(lease, file, values)

    def _keep_protocol(self, lease: Lease, plan: PlanDocument, *, has_begun: bool) -> None:
        """Write a plan's experiment to the protocol.

        Before any run has begun, the experiment replaces the protocol; afterwards the experiment is
        added to the protocol as a change.
        """
        folders = self.folders()
        stated_versions, replaced = [], []
        if folders or has_begun:
            stated_versions = self.protocol
            with contextlib.suppress(ConfigError, FileNotFoundError):
                before = read_plan(self.plan_file)
                controls = {v.id for t in before.tables for v in t.variants if v.role or v.baseline}
                runs = [run for run in before.runs.values() if run.variant in controls]
                records = {r.id: folders[r.id].record() for r in runs if r.id in folders}
                replaced = protocol.replaced(before, plan, records)
        versions = protocol.extended(stated_versions, plan.experiment, len(folders), replaced)
        if versions != stated_versions:
            self._write_protocol(lease, versions)

    def _write_protocol(self, lease: Lease, versions: Sequence[Version]) -> None:
        entries = [version.model_dump(mode="json") for version in versions]
        self._write_sealed(lease, self.document("protocol"), {"versions": entries})

    def _write_sealed(self, lease: Lease, file: Path, values: Mapping[str, object]) -> None:
        lease.replace(file, sealed(values, self.place(file)))

    def _unwritable(self, error: OSError) -> ConfigError:
        why = error.strerror or error
        return ConfigError(f"the results folder '{self.root}' cannot be written: {why}")

    def _tasks(self) -> list[Path]:
        """Return the folders of work in progress."""
        return [path for path in self.in_progress.iterdir() if path.is_dir()]

    def measure_once(self, name: str, key: str, measure: Callable[[], Any]) -> Any:
        """Return the value of a key in `<name>.json`; measure and store it if it is missing.

        A damaged document is measured again.
        """
        file = self.document(name)
        try:
            with self.alone(name) as lease:
                values: dict[str, Any] = {}
                with contextlib.suppress(ConfigError, FileNotFoundError):
                    values = self._read_sealed(file)
                if key not in values:
                    values[key] = measure()
                    self._write_sealed(lease, file, values)
                return values[key]
        except leases.LostError:  # another process may have measured it by now
            return self.measure_once(name, key, measure)

    def add_metric(self, lease: Lease, folder: Path, name: str, metric: Measurement) -> None:
        """Add a metric to the folder of a finished run, or of a variant."""
        file = disk.below(folder, METRICS, f"{name}.json")
        disk.make(file.parent)
        self._write_sealed(lease, file, metric.to_dict())

    def log(self, key: str) -> Path:
        """Return the log file for the output of a run's or task's process."""
        disk.make(self.working(key))
        return self.working(key) / "log"

    def lease(self, run: str) -> Lease | None:
        """Lease a run; None if the run is final or another process has the lease."""
        lease = leases.take(self.working(run))
        if lease and self.is_final(run):  # another process finished it just before
            lease.finish()
            return None
        return lease

    def commit(
        self,
        record: Record,
        curve: Points,
        save_weights: disk.Save | None,
        lease: Lease | None = None,
    ) -> Path | None:
        """Commit a finished run by one rename; if several processes commit, the first wins.

        A record that is not final (`oom`, `error` ...) keeps the checkpoints for the next attempt.
        Returns the run's folder; returns None if another process has leased the run, or has
        finished it.
        """
        ours = lease or self.lease(record.id)
        if ours is None:
            return None
        with ours:
            folder = self._commit(ours, record, curve, save_weights)
            if record.outcome in FINAL and folder:
                ours.finish()
        return folder

    def _commit(
        self, lease: Lease, record: Record, curve: Points, save_weights: disk.Save | None
    ) -> Path | None:
        """Commit a run, if the lease is still valid and no other commit came first.

        All files are written to a partial folder and flushed before the rename, the manifest last.
        Returns the folder; returns None if the lease was lost, in which case no file remains.
        """
        kind = self.final if record.outcome in FINAL else self.failed
        placed = None
        with _partial_of(lease) as partial:
            ours = f"{slug(record.label)}--s{record.seed}--{record.id}"
            name = lease.set_once("name", ours)
            if name.partition("--")[2] != ours.partition("--")[2]:
                name = ours  # the stored name does not belong to this run
            failed = self._attempts(self.failed).get(record.id, [])
            last = int(failed[-1].name.rpartition("--")[2]) if failed else 0
            target = disk.below(kind, name if kind == self.final else f"{name}--{last + 1}")
            disk.make(partial)
            disk.make(kind)
            write_run(partial, self.place(target), record, curve, save_weights)
            # Another process may have committed first; a final record is then the same.
            if lease.held and (disk.place(partial, target) or kind == self.final):
                placed = target
        if placed and kind == self.final:
            self._forget_failed(lease, record.id)
        return placed

    def _forget_failed(self, lease: Lease, run: str) -> None:
        """Move a run's failed attempts into the lease's folder, to be deleted with it."""
        for folder in self._attempts(self.failed).get(run, []):
            disk.move(folder, lease.folder / folder.name)

    def keep_best(self, tables: Sequence[Sequence[str]]) -> None:
        """Delete weights of `ok` runs, except the best run of each group by validation loss.

        `tables` holds the groups: one variant's run ids in each table. A run that is the best of
        any group keeps its weights.
        """
        folders, best, worse = self.folders(), set(), set()
        for runs in tables:
            done = [folders[run].record() for run in runs if run in folders]
            by_loss = sorted((r.numbers.get(_CHOSEN_BY, math.inf), r.id) for r in done if r.ok)
            best |= {run for _loss, run in by_loss[:1]}
            worse |= {run for _loss, run in by_loss[1:]}
        for run in worse - best:
            folders[run].drop_weights()

    def verify(self, runs: Sequence[str], checked: Callable[[int], None]) -> list[Path]:
        """Quarantine runs whose files were changed or damaged; return their new paths.

        Calls `checked` with the number of runs verified so far.
        """
        moved, folders = [], self.folders()
        for done, run in enumerate(runs, 1):
            folder = folders.get(run)
            if folder and not folder.is_intact and (lease := leases.take(self.working(run))):
                # It may have been moved before the lease was acquired, or another process was
                # dropping its weights when it was first read.
                if folder.path.is_dir() and not RunFolder(folder.path).is_intact:
                    moved.append(self.set_aside(folder.path, "damaged"))
                lease.release()
            checked(done)
        return moved

    def redo(self, label: str, runs: Sequence[str]) -> list[Path]:
        """Move a variant's finished runs to `redone/` for retraining; return their new paths.

        The retraining is written to the protocol first. Raises ConfigError while another command
        works on one of the runs.
        """
        folders = self.folders()
        finished = [run for run in runs if run in folders]
        if not finished:
            return []
        for run in finished:
            if leases.taken(self.working(run)):
                raise ConfigError(f"'{label}' is at work in another command: wait for it to end")
        outcomes = [folders[run].outcome()[0] for run in finished]
        with self.alone("plan") as lease:
            now = protocol.version(self.plan.experiment, len(folders))
            redone = protocol.Redone(label=label, outcomes=outcomes)
            now = now.model_copy(update={"redone": [redone]})
            self._write_protocol(lease, [*self.protocol, now])
        moved = []
        for run in finished:
            if ours := leases.take(self.working(run)):
                for kind in (self.final, self.failed):
                    attempts = self._attempts(kind).get(run, [])
                    moved += [self.set_aside(folder, "redone") for folder in attempts]
                ours.finish()  # removes its checkpoints too, so that it restarts from step 0
        return moved

    def sweep(self, *, unfinished: bool = True) -> None:
        """Remove working folders of finished runs, and of unfinished runs without a checkpoint.

        A crash leaves such folders. With `unfinished=False`, unfinished runs keep their folders and
        logs. If a process of another machine seems to have leased a folder, a planned run's folder
        is left to the queue. Any other leased folder is watched until the lease expires, since no
        later command may use the folder.
        """
        final, folders = self.final_ids(), []
        for working in self._tasks():
            if working.name in final:
                with self.alone(working.name) as ours:  # its lease will be released or expire
                    self._forget_failed(ours, working.name)
            elif not unfinished or any(n.startswith("checkpoint-") for n in disk.names(working)):
                continue
            elif lease := leases.take(working):
                lease.finish()
            else:
                folders.append(working)
        runs = self.plan.runs if folders else {}
        others = [working for working in folders if working.name not in runs]
        for working in set(others).difference(leases.at_work(others)):
            if lease := leases.take(working):
                lease.finish()


@contextlib.contextmanager
def _partial_of(lease: Lease) -> Iterator[Path]:
    """Yield a partial folder for the commit of a leased run, and then remove it.

    After a lost lease an OSError is suppressed, since the new lease holder has removed the folder.
    """
    partial = lease.folder / f"partial-{lease.number}"
    try:
        yield partial
    except OSError:
        if lease.held:
            raise
    finally:
        disk.remove_tree(partial)
