"""Results of an experiment: a reader, and a store with leases, commits and clean-up."""

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

from llama_ablate.errors import ConfigError, nearest
from llama_ablate.files import disk
from llama_ablate.files.strict_json import parse, sealed
from llama_ablate.results import leases, live, protocol
from llama_ablate.results.layout import EARLIER, METRICS, PLAN, Layout, experiments_in
from llama_ablate.results.leases import Lease
from llama_ablate.results.live import Live
from llama_ablate.results.plan_document import (
    PlanDocument,
    PlannedTable,
    keep_plan,
    read_plan,
    refuse_another_experiment,
    sound_plan,
)
from llama_ablate.results.protocol import Version
from llama_ablate.results.record import FINAL, Measurement, Points, Record
from llama_ablate.results.run import RunFolder, Runs


class StoredResults:
    """Results of one experiment for reading, from a folder or an archive."""

    def __init__(self, layout: Layout, home: Layout) -> None:
        """Read results from one layout; reports and locks use the layout `home`."""
        self.layout, self.home = layout, home
        self.plan_file = layout.plan
        self.runs = Runs(layout)
        self._documents = Documents(layout)

    @property
    def plan(self) -> PlanDocument:
        """Plan of the experiment. Raises ConfigError if its file is damaged."""
        return read_plan(self.plan_file, self.layout.files)

    @property
    def protocol(self) -> list[Version]:
        """Protocol of the experiment: its file before the first finished run, and later changes."""
        return self._documents.protocol()

    def finished(self) -> dict[str, RunFolder]:
        """Return the finished runs by id."""
        folders = self.runs.folders()
        return {run: RunFolder(folder, self.layout.files) for run, folder in folders.items()}

    def metrics_of(self, variants: Iterable[str]) -> dict[str, dict[str, Measurement]]:
        """Return the metrics of variants, by variant and name."""
        return self._documents.variant_metrics(variants)

    def files_of_variants(self, variants: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the files of variants' metrics by their paths. Raises ConfigError for damage."""
        self.metrics_of(variants)
        for file in self._documents.variant_files(variants):
            yield self.layout.place(file), self.layout.files.read(file)

    def is_leased(self, _run: str) -> bool:
        """Return whether a process has leased a run: never, in read-only results."""
        return False

    def live(self, _runs: Iterable[str]) -> dict[str, Live]:
        """Return the live notes of runs by id: none, in read-only results."""
        return {}

    def lock_report(self) -> AbstractContextManager[object]:
        """Lock the report, in a context manager, for one writing process at a time.

        Raises ConfigError for a link in the results, through which writes would land elsewhere.
        """
        self.home.refuse_links()
        return disk.locked(self.home.root)


class Store(StoredResults):
    """Writable results folder of one experiment."""

    def __init__(self, root: Path, plan: str = PLAN) -> None:
        """Use the results folder `root`, with the plan in its file `plan`."""
        layout = Layout(root, plan)
        super().__init__(layout, layout)
        self.root, self.report, self.jobs = root, layout.report, layout.jobs

    @classmethod
    def open(cls, root: Path | str) -> "Store":
        """Open existing results for writing: a folder, or an earlier plan's file in it.

        Raises ConfigError for a path without results, and for a pack.
        """
        root = Path(root)
        if EARLIER.fullmatch(root.name) and root.is_file():
            return cls(root.parent, plan=root.name)
        cls._refuse_pack(root)
        if not (root / PLAN).is_file():
            others = [path.name for path in experiments_in(root) or experiments_in(root.parent)]
            hint = nearest(root.name, others) if others else ""
            if not root.exists():
                raise ConfigError(f"there is no folder '{root}'{hint}")
            raise ConfigError(f"'{root}' holds no results (no plan.json){hint}")
        return cls(root)

    @staticmethod
    def _refuse_pack(root: Path) -> None:
        if Layout(root).pack.is_file():
            raise ConfigError(
                f"'{root}' holds packed results, without weights and closed to new runs: status, "
                "show, compare and report read them; new runs need another --results"
            )

    def prepare(self) -> None:
        """Create the folders. Raises ConfigError if they cannot be written, or contain a link."""
        self._refuse_pack(self.root)
        try:
            sound_plan(self.plan_file)
            self.layout.refuse_links(self.root)
            for folder in (self.layout.final, self.layout.variants, self.layout.working):
                disk.make(folder)
            with self.alone("plan"):
                pass
        except OSError as error:
            raise self._unwritable(error) from None

    def create(self, plan: PlanDocument, experiment_text: str) -> None:
        """Write the plan, unless the folder already has the same plan.

        Raises ConfigError if the folder cannot be written, if it has the plan of another
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
                    if self._at_work(besides=("plan", "report", "mend")):
                        raise ConfigError(
                            f"others are at work in '{self.root}' on another plan: "
                            "wait for them, or choose another --results"
                        )
                lease.replace(self.layout.experiment, experiment_text.encode("utf-8"))
                # An older version writes a variant's architecture with other options.
                if same and current and current.architectures == plan.architectures:
                    return
                self._keep_protocol(lease, plan)
                if current and self.runs.folders():
                    plan = plan.with_noise_of(current)
                if current:
                    keep_plan(self.plan_file, current, plan, self.runs.final_ids(), lease)
                elif exists:
                    self.layout.quarantine(self.plan_file)
                lease.replace(
                    self.plan_file, sealed(plan.model_dump(mode="json"), self.plan_file.name)
                )
        except leases.LostError:
            self.create(plan, experiment_text)
        except OSError as error:
            raise self._unwritable(error) from None

    def _keep_protocol(self, lease: Lease, plan: PlanDocument) -> None:
        """Write a plan's experiment to the protocol.

        Before any run has finished it replaces the protocol; afterwards it is added as a change.
        """
        folders = self.runs.folders()
        stated, replaced = [], []
        if folders:
            stated = self._documents.protocol()
            with contextlib.suppress(ConfigError, FileNotFoundError):
                before = read_plan(self.plan_file)
                controls = {v.id for t in before.tables for v in t.variants if v.role or v.baseline}
                runs = [run for run in before.runs.values() if run.variant in controls]
                records = {r.id: self.runs.read(folders[r.id]) for r in runs if r.id in folders}
                replaced = protocol.replaced(before, plan, records)
        versions = protocol.extended(stated, plan.experiment, len(folders), replaced)
        if versions != stated:
            self._documents.keep_protocol(lease, versions)

    def _unwritable(self, error: OSError) -> ConfigError:
        why = error.strerror or error
        return ConfigError(f"the results folder '{self.root}' cannot be written: {why}")

    def _at_work(self, besides: Container[str]) -> list[Path]:
        return leases.at_work([path for path in self._pieces() if path.name not in besides])

    def _pieces(self) -> list[Path]:
        """Return the folders of work in progress."""
        return [path for path in self.layout.working.iterdir() if path.is_dir()]

    def table_of(self, run: str) -> PlannedTable:
        """Return the first table that contains a run. Raises ConfigError if none does."""
        try:
            return self.plan.table_of(run)
        except KeyError:
            raise ConfigError(f"'{run}' is not a run that '{self.plan_file}' plans") from None

    def measure_once(self, name: str, key: str, measure: Callable[[], Any]) -> Any:
        """Return the value of a key in `<name>.json`; measure and store it if it is missing."""
        try:
            with self.alone(name) as lease:
                values = self._documents.measured(name)
                if key not in values:
                    values[key] = measure()
                    self._documents.keep_measured(lease, name, values)
                return values[key]
        except leases.LostError:  # another process may have measured it by now
            return self.measure_once(name, key, measure)

    def mend(self) -> list[Path]:
        """Quarantine damaged documents that can be measured again; return their new paths.

        Raises ConfigError for a damaged document that cannot be measured again.
        """
        sound_plan(self.plan_file)
        with self.alone("mend"):
            moved = self._documents.quarantine()
        if self.runs.folders():
            self._documents.protocol()
        return moved

    def working(self, key: str) -> Path:
        """Return the working folder of a run or task: leases, checkpoints and log."""
        return disk.below(self.layout.working, key)

    def log(self, key: str) -> Path:
        """Return the log file for the output of a run's or task's process."""
        disk.make(self.working(key))
        return self.working(key) / "log"

    def lease(self, run: str) -> Lease | None:
        """Lease a run; None if it has a final record or another process has the lease."""
        lease = self._take(run)
        if lease and self.is_final(run):  # another process finished it just before
            lease.finish()
            return None
        return lease

    def alone(self, key: str) -> AbstractContextManager[Lease]:
        """Acquire the exclusive lease of a task, in a context manager; wait until it is free."""
        return leases.alone(self.working(key))

    def commit(
        self,
        record: Record,
        curve: Points,
        save_weights: disk.Save | None,
        lease: Lease | None = None,
    ) -> Path | None:
        """Commit a finished run by one rename; the first final record wins.

        A record that is not final (`oom`, `error` ...) keeps the checkpoints for the next attempt.
        Returns its folder; None where another process has leased the run, or has finished it.
        """
        ours = lease or self.lease(record.id)
        if ours is None:
            return None
        with ours:
            folder = self.runs.commit(ours, record, curve, save_weights)
            if record.outcome in FINAL and folder:
                ours.finish()
        return folder

    def lock_report(self) -> AbstractContextManager[Lease]:
        """Acquire the lease for writing the report. Raises ConfigError for a link."""
        self.layout.refuse_links()
        return self.alone("report")

    def is_leased(self, run: str) -> bool:
        """Return whether a process appears to have leased a run, from a single check."""
        return leases.taken(self.working(run))

    def live(self, runs: Iterable[str]) -> dict[str, Live]:
        """Return the live notes of runs by id; runs without a note are left out."""
        there = {*disk.names(self.layout.working)}
        notes = {run: live.read(self.layout.working / run) for run in runs if run in there}
        return {run: note for run, note in notes.items() if note}

    def is_final(self, run: str) -> bool:
        """Return whether a run has a final record."""
        return (record := self.record(run)) is not None and record.outcome in FINAL

    def record(self, run: str) -> Record | None:
        """Return a run's record; None for an unfinished run."""
        folder = self.runs.folder(run)
        return self.runs.read(folder) if folder else None

    def records(self) -> list[Record]:
        """Return the records of the finished planned runs, in the plan's order."""
        folders = self.runs.folders()
        return [self.runs.read(folders[run]) for run in self.plan.runs if run in folders]

    def verify(self, runs: Sequence[str], checked: Callable[[int], None]) -> list[Path]:
        """Quarantine runs whose files were changed or damaged; return their new paths.

        Calls `checked` with the number of runs verified so far.
        """
        moved, folders = [], self.runs.folders()
        for done, run in enumerate(runs, 1):
            folder = folders.get(run)
            if folder and not self.runs.intact(folder) and (lease := self._take(run)):
                if folder.is_dir():  # it may have been moved before the lease was acquired
                    moved += self.runs.quarantine(folder)
                lease.release()
            checked(done)
        return moved

    def redo(self, label: str, runs: Sequence[str]) -> list[Path]:
        """Set aside the records of a variant's runs for retraining; return their new paths.

        The retraining is written to the protocol first. Raises ConfigError while another command
        works on one of the runs.
        """
        folders = self.runs.folders()
        finished = [run for run in runs if run in folders]
        if not finished:
            return []
        for run in finished:
            if leases.taken(self.working(run)):
                raise ConfigError(f"'{label}' is at work in another command: wait for it to end")
        outcomes = [RunFolder(folders[run]).outcome()[0] for run in finished]
        with self.alone("plan") as lease:
            now = protocol.version(self.plan.experiment, len(folders))
            redone = protocol.Redone(label=label, outcomes=outcomes)
            now = now.model_copy(update={"redone": [redone]})
            self._documents.keep_protocol(lease, [*self._documents.protocol(), now])
        moved = []
        for run in finished:
            if ours := self._take(run):
                moved += self.runs.set_aside(run)
                ours.finish()  # removes its checkpoints too, so that it restarts from step 0
        return moved

    def sweep(self, *, unfinished: bool = True) -> None:
        """Remove working folders of finished runs, and of unfinished runs without a checkpoint.

        A crash leaves such folders. With `unfinished=False`, unfinished runs keep their folders and
        logs. A planned run that another machine seems to have leased is left to the queue; another
        folder with a lease is watched until the lease expires, since no later command may use it.
        """
        final, held = self.runs.final_ids(), []
        for working in self._pieces():
            if working.name in final:
                with self.alone(working.name) as ours:  # its lease will be released or expire
                    self.runs.forget_failed(ours, working.name)
            elif not unfinished or any(n.startswith("checkpoint-") for n in disk.names(working)):
                continue
            elif lease := leases.take(working):
                lease.finish()
            else:
                held.append(working)
        runs = self.plan.runs if held else {}
        others = [working for working in held if working.name not in runs]
        for working in set(others).difference(leases.at_work(others)):
            if lease := leases.take(working):
                lease.finish()

    def _take(self, key: str) -> Lease | None:
        return leases.take(self.working(key))

    def add_variant_metric(
        self, lease: Lease, label: str, variant: str, name: str, metric: Measurement
    ) -> None:
        """Add a per-variant metric."""
        self._documents.add_variant_metric(lease, label, variant, name, metric)

    def variant_metrics(self, variant: str) -> dict[str, Measurement]:
        """Return the per-variant metrics of a variant by name."""
        return self.metrics_of([variant])[variant]


_MEASURED = ("compute", "pace")
_PROTOCOL = "protocol"


class Documents:
    """Documents `compute.json`, `pace.json`, `protocol.json`, and the metrics in `variants/`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def measured(self, name: str) -> dict[str, Any]:
        """Return a document of values measured once per experiment; empty without a file."""
        file = self._layout.document(name)
        return dict(self._read(file)) if file.is_file() else {}

    def keep_measured(self, lease: Lease, name: str, values: Mapping[str, Any]) -> None:
        """Write a document of values measured once per experiment."""
        self._write(lease, self._layout.document(name), values)

    def protocol(self) -> list[Version]:
        """Return the protocol: the file before the first finished run, and later changes.

        Empty without a file. Raises ConfigError for a damaged file.
        """
        file = self._layout.document(_PROTOCOL)
        try:
            stored = self._read(file) if self._layout.files.is_file(file) else {}
        except ConfigError as error:
            raise ConfigError(
                f"{error}. What was stated before the first run cannot be made again;"
                f" to go on without it: rm {quote(str(file))}"
            ) from None
        return protocol.read_versions(stored, file)

    def keep_protocol(self, lease: Lease, versions: Sequence[Version]) -> None:
        """Write the protocol."""
        entries = [version.model_dump(mode="json") for version in versions]
        self._write(lease, self._layout.document(_PROTOCOL), {"versions": entries})

    def add_variant_metric(
        self, lease: Lease, label: str, variant: str, name: str, metric: Measurement
    ) -> None:
        """Add a per-variant metric."""
        file = self._layout.variant_metric(label, variant, name)
        disk.make(file.parent)
        self._write(lease, file, metric.to_dict())

    def variant_metrics(self, variants: Iterable[str]) -> dict[str, dict[str, Measurement]]:
        """Return the metrics of variants, by variant and name; the folder is listed once.

        Raises ConfigError for a damaged file.
        """
        try:
            return {
                variant: {file.stem: Measurement.from_dict(self._read(file), file) for file in own}
                for variant, own in self._metrics(variants).items()
            }
        except ConfigError as error:
            raise ConfigError(f"{error}; 'run' and 'measure' measure it again") from None

    def variant_files(self, variants: Iterable[str]) -> list[Path]:
        """Return the files of variants' metrics."""
        return [*chain.from_iterable(self._metrics(variants).values())]

    def quarantine(self) -> list[Path]:
        """Quarantine damaged documents that can be measured again; return their new paths."""
        moved = []
        for file in self._measurable():
            try:
                self._read(file)
            except ConfigError:
                moved.append(self._layout.quarantine(file))
        return moved

    def _measurable(self) -> Iterator[Path]:
        documents = (self._layout.document(name) for name in _MEASURED)
        yield from (file for file in documents if file.is_file())
        yield from chain.from_iterable(self._metrics().values())

    def _metrics(self, variants: Iterable[str] | None = None) -> dict[str, list[Path]]:
        """Return the files of metrics, by variant: of some variants, or of all."""
        files: dict[str, list[Path]] = {id_: [] for id_ in variants or ()}
        names = self._layout.files.names
        for name in sorted(names(self._layout.variants)):
            id_ = name.rpartition("--")[2]
            if variants is None or id_ in files:
                folder = self._layout.variants / name / METRICS
                # File managers write files whose names begin with a dot.
                own = (n for n in names(folder) if n.endswith(".json") and not n.startswith("."))
                files.setdefault(id_, []).extend(folder / name for name in sorted(own))
        return files

    def _read(self, file: Path) -> Any:
        return parse(self._layout.files.read(file), file, self._layout.place(file))

    def _write(self, lease: Lease, file: Path, values: Mapping[str, object]) -> None:
        lease.replace(file, sealed(values, self._layout.place(file)))
