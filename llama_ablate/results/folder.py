"""Reader of one experiment's results, from a results folder or a pack; nothing is cached.

<results>/<experiment>/
experiment.yaml  plan.json  compute.json  pace.json  protocol.json
plan-<sha256>.json                 an earlier plan, of finished runs that plan.json leaves out
runs/<label>--s<seed>--<id>/       record.json curve.csv weights.safetensors, and
                                   metrics/<metric>.json of what was measured later
failed/<label>--s<seed>--<id>--<n>/  the same, of the n-th attempt of a run that is to be retried
variants/<label>--<id>/            metrics/<metric>.json
tokenizers/<fingerprint>.json      the tokenizer of each text, by the fingerprint of its tokens
working/<id>/                      leases, checkpoints, log and live.json of an unfinished run
damaged/                           files and folders whose content was changed or damaged
redone/                            folders of runs that were trained again on request
report/
track/                             files and output of trackers; never read by this program

A pack has, instead of these files, results.tar.xz: an archive of the files that readers need.
"""

import os
from collections.abc import Container, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from shlex import quote
from typing import Any, Self

from llama_ablate.errors import ConfigError, nearest
from llama_ablate.files import disk
from llama_ablate.files.slugs import slug
from llama_ablate.files.strict_json import parse
from llama_ablate.results import leases, protocol
from llama_ablate.results.archive import PACK, PAGES, Archive, Files, changed_pages, is_pack
from llama_ablate.results.plan_document import EARLIER, PLAN, PlanDocument, PlannedTable, read_plan
from llama_ablate.results.protocol import Version
from llama_ablate.results.record import FINAL, Measurement, Record
from llama_ablate.results.run import METRICS, RUNS, RunFolder


def experiments_in(folder: Path) -> list[Path]:
    """Return the subfolders with an experiment's results, packed or not, by name."""
    folders = {file.parent for name in (PLAN, PACK) for file in folder.glob(f"*/{name}")}
    return sorted(folders)


class Folder:
    """Reader of one experiment's results under one of its plan files, from a folder or a pack."""

    def __init__(self, root: Path, plan_name: str = PLAN) -> None:
        self.root, self.plan_name = root, plan_name
        self.is_packed = is_pack(root)
        #: Folder of the files: the results folder itself, or the archive in it.
        self.base = root / PACK if self.is_packed else root
        self.files: Files = Archive(self.base) if self.is_packed else disk
        self.plan_file = self.base / plan_name
        #: The experiment file as the user wrote it.
        self.experiment_file = self.base / "experiment.yaml"
        #: Folder of the runs with a final outcome, each run once.
        self.final = self.base / RUNS
        #: Folder of failed attempts at runs that will be retried.
        self.failed = self.base / "failed"
        #: Folder of the metrics of variants.
        self.variants = self.base / "variants"
        #: Folder of work in progress: leases, checkpoints, logs, live notes.
        self.in_progress = root / "working"
        #: The folder of the plan's report.
        self.report = root / "report" / ("" if plan_name == PLAN else self.plan_file.stem)
        #: Folder of the trackers' files.
        self.track = root / "track"
        #: Folder of submitit's files for Slurm jobs, which include links.
        self.jobs = self.in_progress / "slurm" / "jobs"

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open existing results: a folder, an earlier plan's file in a folder, or a pack.

        Raises ConfigError for a path without results.
        """
        path = Path(path)
        if EARLIER.fullmatch(path.name) and path.is_file():
            return cls(path.parent, path.name)
        if not is_pack(path) and not (path / PLAN).is_file():
            others = [each.name for each in experiments_in(path) or experiments_in(path.parent)]
            hint = nearest(path.name, others) if others else ""
            if not path.exists():
                raise ConfigError(f"there is no folder '{path}'{hint}")
            raise ConfigError(f"'{path}' holds no results (no plan.json){hint}")
        return cls(path)

    @property
    def plan(self) -> PlanDocument:
        """Plan of the experiment. Raises ConfigError if the plan's file is damaged."""
        return read_plan(self.plan_file, self.files)

    def table_of(self, run: str) -> PlannedTable:
        """Return the first table that contains a run. Raises ConfigError if none does."""
        try:
            return self.plan.table_of(run)
        except KeyError:
            raise ConfigError(f"'{run}' is not a run that '{self.plan_file}' plans") from None

    @property
    def protocol(self) -> list[Version]:
        """Protocol of the experiment: its file before the first finished run, and later changes.

        The list is empty without a protocol file. Raises ConfigError for a damaged file.
        """
        file = self.document("protocol")
        try:
            stored = self._read_sealed(file) if self.files.is_file(file) else {}
        except ConfigError as error:
            raise ConfigError(
                f"{error}. What was stated before the first run cannot be made again;"
                f" to go on without it: rm {quote(str(file))}"
            ) from None
        return protocol.read_versions(stored, file)

    def folders(self) -> dict[str, RunFolder]:
        """Return the folders of finished runs by id.

        A run without a final outcome has the folder of its last attempt.
        """
        latest = self._attempts(self.failed) | self._attempts(self.final)
        return {run: RunFolder(paths[-1], self.files) for run, paths in latest.items()}

    def folder(self, run: str) -> Path | None:
        """Return the folder of a finished run on disk; None in a pack or for another run."""
        finished = None if self.is_packed else self.folders().get(run)
        return finished.path if finished else None

    def final_ids(self) -> set[str]:
        """Return the ids of the runs with a final outcome."""
        return set(self._attempts(self.final))

    def _attempts(self, kind: Path) -> dict[str, list[Path]]:
        """Return the folders in `runs/` or `failed/` by run id, the last attempt last."""
        attempts: dict[str, list[tuple[int, Path]]] = {}
        for name in self.files.names(kind):
            _label, seeded, rest = name.rpartition("--s")
            _seed, _, run_and_number = rest.partition("--")
            run, _, number = run_and_number.partition("--")
            if seeded and run and (number or "0").isdecimal():
                attempts.setdefault(run, []).append((int(number or 0), kind / name))
        return {run: [path for _, path in sorted(folders)] for run, folders in attempts.items()}

    def record(self, run: str) -> Record | None:
        """Return a run's record; None for an unfinished run."""
        folder = self.folders().get(run)
        return folder.record() if folder else None

    def records(self) -> list[Record]:
        """Return the records of the finished planned runs, in the plan's order."""
        folders = self.folders()
        return [folders[run].record() for run in self.plan.runs if run in folders]

    def is_final(self, run: str) -> bool:
        """Return whether a run has a final record."""
        return (record := self.record(run)) is not None and record.outcome in FINAL

    def weights(self, run: str) -> Path | None:
        """Return the path of a finished run's weights; None without weights.

        Raises ConfigError for a damaged file.
        """
        folder = self.folders().get(run)
        return folder.weights() if folder else None

    def why_no_weights(self, run: str) -> str:
        """Explain why a finished run has no weights, and how to obtain them."""
        folder = self.folders().get(run)
        if folder and folder.lacks_weights:
            return f"they were deleted; delete '{folder.path}' too and run the experiment again"
        return "they were not kept (run --keep-weights)"

    def metrics_of(
        self, variants: Iterable[str], *, sound: bool = False
    ) -> dict[str, dict[str, Measurement]]:
        """Return the per-variant metrics of some variants, by variant id and metric name.

        Raises ConfigError for a damaged file, which is left out if only `sound` files are wanted.
        """
        metrics: dict[str, dict[str, Measurement]] = {variant: {} for variant in variants}
        for variant, file in self._metric_files(metrics):
            try:
                metrics[variant][file.stem] = Measurement.from_dict(self._read_sealed(file), file)
            except ConfigError as error:
                if not sound:
                    raise ConfigError(f"{error}; 'run' and 'measure' measure it again") from None
        return metrics

    def _metric_files(self, variants: Container[str]) -> Iterator[tuple[str, Path]]:
        """Yield the files of per-variant metrics, each after its variant's id."""
        for name in sorted(self.files.names(self.variants)):
            if (id_ := name.rpartition("--")[2]) in variants:
                folder = self.variants / name / METRICS
                for file in sorted(self.files.names(folder)):
                    # File managers write files whose names begin with a dot.
                    if file.endswith(".json") and not file.startswith("."):
                        yield id_, folder / file

    def alone(self, key: str) -> AbstractContextManager[leases.Lease]:
        """Acquire the exclusive lease of a task, in a context manager; wait until free."""
        return leases.alone(self.working(key))

    def lock_report(self) -> AbstractContextManager[object]:
        """Lock the report, in a context manager, for one writing process at a time.

        Raises ConfigError for a symbolic link in the results, since writes would follow the link.
        """
        self.refuse_links()
        is_own = not self.is_packed and os.access(self.root, os.W_OK)
        return self.alone("report") if is_own else disk.locked(self.root)

    def refuse_links(self, *more: Path) -> None:
        """Raise ConfigError for a symbolic link in the results, since writes would follow the link.

        Two kinds of links are allowed: links for Slurm jobs, and links from a tracker to its logs,
        which lie inside a folder that is new for each run.
        """
        links = [path for path in more if path.is_symlink()]
        links += [
            path
            for path in disk.links_below(self.root)
            if self.jobs not in path.parents and self.track not in path.parents[2:]
        ]
        if links:
            raise ConfigError(f"'{links[0]}' is a link: results are kept in real folders and files")

    @property
    def changed_pages(self) -> list[Path]:
        """Files beside a pack's archive that have changed since packing."""
        file = self.base / PAGES
        is_listed = self.is_packed and self.files.is_file(file)
        return changed_pages(self.root, self._read_sealed(file)) if is_listed else []

    def working(self, key: str) -> Path:
        """Return the working folder of a run or task: leases, checkpoints and log."""
        return disk.below(self.in_progress, key)

    def track_log(self, sink: str) -> Path:
        """Return the path of the log of a sink's failures."""
        return disk.below(self.track, f"{sink}.log")

    def document(self, name: str) -> Path:
        """Return the path of a sealed document in the results folder."""
        return self.base / f"{name}.json"

    def variant_folder(self, label: str, variant: str) -> Path:
        """Return the folder of a variant's metrics."""
        return disk.below(self.variants, f"{slug(label)}--{variant}")

    def tokenizer_file(self, fingerprint: str) -> Path:
        """Return the path of a text's tokenizer, given the fingerprint of the text's tokens."""
        return self.base / "tokenizers" / f"{fingerprint}.json"

    def tokenizer(self, fingerprint: str) -> dict[str, Any] | None:
        """Return the saved values of a text's tokenizer; None in results of older versions.

        Raises ConfigError for a damaged file.
        """
        file = self.tokenizer_file(fingerprint)
        return dict(self._read_sealed(file)) if self.files.is_file(file) else None

    def place(self, file: Path) -> str:
        """Return a file's path relative to the results folder, for use in the file's seal."""
        return file.relative_to(self.base).as_posix()

    def _read_sealed(self, file: Path) -> Any:
        return parse(self.files.read(file), file, self.place(file))

    def set_aside(self, path: Path, kind: str) -> Path:
        """Move a file or folder to `damaged/` or `redone/` (`kind`); return its new path."""
        parts = path.relative_to(self.root).parts
        name = "--".join(parts[1:] or parts)  # the parent folder is not needed
        disk.make(self.root / kind)
        places = (disk.below(self.root / kind, f"{name}--{n}") for n in count(1))
        place = next(place for place in places if not place.exists())
        disk.move(path, place)
        return place
