"""What is on disk: the only code that knows file names. Records are committed whole, or not at all.

<results>/<experiment>/
experiment.yaml  plan.json  compute.json  pace.json  hypotheses.json
plan-<sha256>.json                 a plan that stood before, of finished runs that plan.json has not
runs/<label>--s<seed>--<id>/       record.json curve.csv weights.safetensors manifest.json metrics/
failed/<label>--s<seed>--<id>--<n>/  the same, of the n-th try of a run that is to be tried again
variants/<label>--<id>/            metrics/<metric>.json
working/<id>/                      leases, checkpoints and log of a run that has not finished
damaged/                           runs whose files were no more as written
report/
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from llama_ablate.config.experiment import Hypothesis
from llama_ablate.errors import ConfigError, nearest
from llama_ablate.files import disk
from llama_ablate.files.strict_json import sealed, to_json
from llama_ablate.results import leases, plans
from llama_ablate.results.documents import Documents
from llama_ablate.results.leases import Lease
from llama_ablate.results.metrics import Measurement
from llama_ablate.results.plan import PlanDocument, PlannedTable
from llama_ablate.results.record import FINAL, Record
from llama_ablate.results.runs import Runs


class Store:
    """The folder of one experiment's results."""

    def __init__(self, root: Path, plan: str = plans.PLAN) -> None:
        """Look at the results in a folder, as the plan in a file of it has them."""
        self.root = root
        self.plan_file = root / plan
        self.report = root / "report" / ("" if plan == plans.PLAN else self.plan_file.stem)
        self.runs = Runs(root, lambda: False)
        self._documents = Documents(root, lambda: False)
        self._working = root / "working"
        #: What submitit keeps of Slurm's jobs, links among it; closed to other users.
        self.jobs = self._working / "slurm" / "jobs"

    @classmethod
    def open(cls, root: Path | str) -> "Store":
        """Open existing results: a folder, or in it a plan that stood before.

        Raises ConfigError where there are none.
        """
        root = Path(root)
        if plans.EARLIER.fullmatch(root.name) and root.is_file():
            return cls(root.parent, plan=root.name)
        if not (root / plans.PLAN).is_file():
            there = sorted(p.parent.name for p in root.glob("*/plan.json"))
            others = there or sorted(p.parent.name for p in root.parent.glob("*/plan.json"))
            hint = nearest(root.name, others) if others else ""
            raise ConfigError(f"'{root}' holds no results (no plan.json){hint}")
        return cls(root)

    def prepare(self) -> None:
        """Make the folders. Raises ConfigError where that cannot be done, or a link leads out."""
        try:
            self.refuse_links(self.root)
            for folder in (self.runs.final, self._documents.variants, self._working):
                disk.make(folder)
            with self.alone("plan"):
                pass
        except OSError as error:
            raise self._unwritable(error) from None

    def refuse_links(self, *more: Path) -> None:
        """Raise ConfigError for a link in the results: what is written would land elsewhere."""
        links = [path for path in more if path.is_symlink()]
        links += [path for path in disk.links_below(self.root) if self.jobs not in path.parents]
        if links:
            raise ConfigError(f"'{links[0]}' is a link: results are kept in real folders and files")

    def create(self, plan: PlanDocument, experiment_text: str) -> None:
        """Write the plan, unless it stands there already.

        Raises ConfigError where that cannot be done, where another experiment's plan stands, and
        where others are at work on another plan.
        """
        try:
            with self.alone("plan") as lease:
                stands = self.plan_file.is_file()
                same = stands and plans.same(self.plan_file, plan)
                if stands and not same:
                    plans.refuse_another_experiment(self.plan_file, plan)
                    if self._at_work(besides=("plan", "report", "mend")):
                        raise ConfigError(
                            f"others are at work in '{self.root}' on another plan: "
                            "wait for them, or choose another --results"
                        )
                lease.replace(self.root / "experiment.yaml", experiment_text.encode("utf-8"))
                if same:
                    return
                if not self.runs.folders():  # from the first record on, what was stated stands
                    self._documents.keep_stated(lease, plan.experiment.hypotheses)
                if stands:
                    plans.keep(self.plan_file, plan, self.runs.final_ids(), lease)
                lease.replace(
                    self.plan_file, sealed(plan.model_dump(mode="json"), self.plan_file.name)
                )
        except leases.LostError:
            self.create(plan, experiment_text)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> ConfigError:
        why = error.strerror or error
        return ConfigError(f"the results folder '{self.root}' cannot be written: {why}")

    def _at_work(self, besides: Container[str]) -> bool:
        return leases.at_work([path for path in self._pieces() if path.name not in besides])

    def _pieces(self) -> list[Path]:
        """Return the folders of work in progress."""
        return [path for path in self._working.iterdir() if path.is_dir()]

    @property
    def plan(self) -> PlanDocument:
        """What was planned. Raises ConfigError where the file is damaged."""
        return plans.read(self.plan_file)

    def table_of(self, run: str) -> PlannedTable:
        """Return the first table that has a run. Raises ConfigError where none has."""
        try:
            return self.plan.table_of(run)
        except KeyError:
            raise ConfigError(f"'{run}' is not a run that '{self.plan_file}' plans") from None

    @property
    def stated(self) -> list[Hypothesis]:
        """The hypotheses as they stood before the first run had finished."""
        return self._documents.stated()

    @property
    def experiment_text(self) -> str:
        """The experiment file as the user wrote it; without that copy, what was read of it."""
        try:
            return (self.root / "experiment.yaml").read_text("utf-8", "replace")
        except FileNotFoundError:
            return to_json(self.plan.experiment.model_dump(mode="json"))

    def kept(self, name: str, key: str, measure: Callable[[], Any]) -> Any:
        """Return what was measured once for a key and then kept, in `<name>.json`."""
        try:
            with self.alone(name) as lease:
                known = self._documents.measured(name)
                if key not in known:
                    known[key] = measure()
                    self._documents.keep_measured(lease, name, known)
                return known[key]
        except leases.LostError:  # by now another may have measured it
            return self.kept(name, key, measure)

    def mend(self) -> list[Path]:
        """Set aside what was measured and is damaged, to be measured again; return where it went.

        Raises ConfigError for what cannot be made again.
        """
        with self.alone("mend"):
            moved = self._documents.set_aside()
        if self.runs.folders():
            self._documents.stated()
        return moved

    def working(self, key: str) -> Path:
        """Where a piece of work keeps its leases, its checkpoints and its log."""
        return self._working / key

    def log(self, key: str) -> Path:
        """Where the process of a piece of work writes what it prints."""
        disk.make(self.working(key))
        return self.working(key) / "log"

    def lease(self, run: str) -> Lease | None:
        """Lease a run that is to be done; None where it is done, or somebody is at it."""
        lease = self._take(run)
        if lease and self.is_final(run):  # by somebody who finished between our looks
            lease.finish()
            return None
        return lease

    def alone(self, key: str) -> AbstractContextManager[Lease]:
        """Do something that one process does at a time: wait until it is our turn."""
        return leases.alone(self.working(key))

    def commit(
        self,
        record: Record,
        curve: Iterable[Mapping[str, float]],
        save_weights: Callable[[disk.Writer], Any] | None,
        lease: Lease | None = None,
    ) -> Path | None:
        """Put a finished run in its place in one rename; the first final record stays.

        A record that is not final (`oom`, `error` ...) keeps what the next try goes on from.
        Returns its folder; None where somebody else has the run, or has finished it.
        """
        ours = lease or self.lease(record.id)
        if ours is None:
            return None
        with ours:
            folder = self.runs.commit(ours, record, curve, save_weights)
            if record.outcome in FINAL and folder:
                ours.finish()
        return folder

    def is_final(self, run: str) -> bool:
        """Return whether a run has a final record."""
        return (found := self.record(run)) is not None and found.outcome in FINAL

    def record(self, run: str) -> Record | None:
        """Return a run's record, or None where it has not finished."""
        folder = self.runs.folder(run)
        return self.runs.read(folder) if folder else None

    def records(self) -> list[Record]:
        """Return the records of the planned runs, in the plan's order, as far as they finished."""
        folders = self.runs.folders()
        return [self.runs.read(folders[run]) for run in self.plan.runs if run in folders]

    def verify(self, runs: Sequence[str], checked: Callable[[int], None]) -> list[Path]:
        """Set aside the runs whose files are not as they were written; return where they went.

        Calls `checked` with how many runs have been looked at.
        """
        moved, folders = [], self.runs.folders()
        for done, run in enumerate(runs, 1):
            folder = folders.get(run)
            if folder and not self.runs.stands(folder) and (lease := self._take(run)):
                if folder.is_dir():  # still, now that it is ours
                    moved += self.runs.set_aside(folder)
                lease.release()
            checked(done)
        return moved

    def sweep(self, *, unfinished: bool = True) -> None:
        """Remove what a crash has left of work that is done, or of which nothing is worth keeping.

        A run that has not finished keeps its checkpoints; its log too, unless `unfinished`.
        """
        final = self.runs.final_ids()
        for working in self._pieces():
            if working.name in final:
                with self.alone(working.name) as ours:  # whoever held it ends it, or is gone
                    self.runs.forget_failed(ours, working.name)
            elif not unfinished or any(n.startswith("checkpoint-") for n in disk.names(working)):
                continue
            elif lease := leases.take(working):
                lease.finish()

    def _take(self, key: str) -> Lease | None:
        return leases.take(self.working(key))

    def add_variant_metric(
        self, lease: Lease, label: str, variant: str, name: str, metric: Measurement
    ) -> None:
        """Add a per-variant metric."""
        self._documents.add_variant_metric(lease, label, variant, name, metric)

    def variant_metrics(self, variant: str) -> dict[str, Measurement]:
        """Return a variant's own metrics by name."""
        return self._documents.variant_metrics(variant)
