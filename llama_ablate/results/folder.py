"""Reader of one experiment's results, from a results folder or a pack; nothing is cached."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

from llama_ablate.errors import ConfigError, nearest
from llama_ablate.files import disk
from llama_ablate.files.strict_json import parse
from llama_ablate.results import leases, live, protocol
from llama_ablate.results.layout import EARLIER, METRICS, PLAN, Layout, experiments_in, is_pack
from llama_ablate.results.live import Live
from llama_ablate.results.plan_document import PlanDocument, PlannedTable, read_plan
from llama_ablate.results.protocol import Version
from llama_ablate.results.record import FINAL, Measurement, Record
from llama_ablate.results.run import RunFolder

_PROTOCOL = "protocol"


class Folder(Layout):
    """Reader of one experiment's results, from a results folder or a pack."""

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
        file = self.document(_PROTOCOL)
        try:
            stored = self._read_sealed(file) if self.files.is_file(file) else {}
        except ConfigError as error:
            raise ConfigError(
                f"{error}. What was stated before the first run cannot be made again;"
                f" to go on without it: rm {quote(str(file))}"
            ) from None
        return protocol.read_versions(stored, file)

    def finished(self) -> dict[str, RunFolder]:
        """Return the folders of finished runs by id.

        A run without a final outcome has the folder of its last attempt.
        """
        latest = self._attempts(self.failed) | self._attempts(self.final)
        return {run: RunFolder(paths[-1], self.files) for run, paths in latest.items()}

    def folder(self, run: str) -> Path | None:
        """Return the path of a finished run's folder; None for an unfinished run."""
        finished = self.finished().get(run)
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
        folder = self.finished().get(run)
        return folder.record() if folder else None

    def records(self) -> list[Record]:
        """Return the records of the finished planned runs, in the plan's order."""
        folders = self.finished()
        return [folders[run].record() for run in self.plan.runs if run in folders]

    def is_final(self, run: str) -> bool:
        """Return whether a run has a final record."""
        return (record := self.record(run)) is not None and record.outcome in FINAL

    def weights(self, run: str) -> Path | None:
        """Return the path of a finished run's weights; None without weights.

        Raises ConfigError for a damaged file.
        """
        folder = self.finished().get(run)
        return folder.weights() if folder else None

    def why_no_weights(self, run: str) -> str:
        """Explain why a finished run has no weights, and how to obtain them."""
        folder = self.finished().get(run)
        if folder and folder.lacks_weights:
            return f"they were deleted; delete '{folder.path}' too and run the experiment again"
        return "they were not kept (run --keep-weights)"

    def metrics_of(self, variants: Iterable[str]) -> dict[str, dict[str, Measurement]]:
        """Return the per-variant metrics of some variants, by variant id and metric name.

        The folder is listed only once for all variants. Raises ConfigError for a damaged file.
        """
        try:
            return {
                variant: {
                    file.stem: Measurement.from_dict(self._read_sealed(file), file)
                    for file in files
                }
                for variant, files in self._metric_files(variants).items()
            }
        except ConfigError as error:
            raise ConfigError(f"{error}; 'run' and 'measure' measure it again") from None

    def files_of_variants(self, variants: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield the files of variants' metrics by path. Raises ConfigError for a damaged file."""
        self.metrics_of(variants)
        for file in chain.from_iterable(self._metric_files(variants).values()):
            yield self.place(file), self.files.read(file)

    def _metric_files(self, variants: Iterable[str] | None = None) -> dict[str, list[Path]]:
        """Return the files of per-variant metrics by variant id, by default for all variants."""
        files: dict[str, list[Path]] = {id_: [] for id_ in variants or ()}
        for name in sorted(self.files.names(self.variants)):
            id_ = name.rpartition("--")[2]
            if variants is None or id_ in files:
                folder = self.variants / name / METRICS
                # File managers write files whose names begin with a dot.
                names = (
                    n
                    for n in self.files.names(folder)
                    if n.endswith(".json") and not n.startswith(".")
                )
                files.setdefault(id_, []).extend(folder / name for name in sorted(names))
        return files

    def is_leased(self, run: str) -> bool:
        """Return whether a run appears to be leased, without waiting for a heartbeat."""
        return leases.taken(self.working(run))

    def live(self, runs: Iterable[str]) -> dict[str, Live]:
        """Return the live notes of runs by id; runs without a note are left out."""
        there = {*disk.names(self.in_progress)}
        notes = {run: live.read(self.in_progress / run) for run in runs if run in there}
        return {run: note for run, note in notes.items() if note}

    def alone(self, key: str) -> AbstractContextManager[leases.Lease]:
        """Acquire the exclusive lease of a task, in a context manager; wait until free."""
        return leases.alone(self.working(key))

    def lock_report(self) -> AbstractContextManager[object]:
        """Lock the report, in a context manager, for one writing process at a time.

        Raises ConfigError for a symbolic link in the results, since writes would follow the link.
        """
        self.refuse_links()
        return disk.locked(self.root) if self.is_packed else self.alone("report")

    def _read_sealed(self, file: Path) -> Any:
        return parse(self.files.read(file), file, self.place(file))


def open_folder(path: Path) -> Folder:
    """Open existing results for reading: a folder, an earlier plan's file in it, or a pack.

    Raises ConfigError for a path without results.
    """
    if EARLIER.fullmatch(path.name) and path.is_file():
        return Folder(path.parent, path.name)
    if not is_pack(path) and not (path / PLAN).is_file():
        others = [result.name for result in experiments_in(path) or experiments_in(path.parent)]
        hint = nearest(path.name, others) if others else ""
        if not path.exists():
            raise ConfigError(f"there is no folder '{path}'{hint}")
        raise ConfigError(f"'{path}' holds no results (no plan.json){hint}")
    return Folder(path)
