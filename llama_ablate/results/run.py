"""Folders of finished runs: atomic commits, retries, and retention of weights."""

import contextlib
import csv
import hashlib
import io
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.slugs import slug
from llama_ablate.files.strict_json import parse, sealed, to_json
from llama_ablate.results.archive import Files
from llama_ablate.results.layout import METRICS, Layout
from llama_ablate.results.leases import Lease
from llama_ablate.results.record import CURVE, FINAL, Curve, Measurement, Points, Record, ending

_CHOSEN_BY = "validation_loss_nats"


class Runs:
    """Finished runs: final outcomes in `runs/`, each once; attempts to be retried in `failed/`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.final, self.failed = layout.final, layout.failed

    def commit(
        self, lease: Lease, record: Record, curve: Points, save_weights: disk.Save | None
    ) -> Path | None:
        """Commit a run by one rename, if the lease is still valid and no other commit came first.

        All files are written to a partial folder and flushed before, the manifest last. Returns the
        folder; None if the lease was lost, in which case no file remains.
        """
        kind = self.final if record.outcome in FINAL else self.failed
        placed = None
        with _partial_of(lease) as partial:
            ours = f"{slug(record.label)}--s{record.seed}--{record.id}"
            name = lease.set_once("name", ours)
            if name.partition("--")[2] != ours.partition("--")[2]:
                name = ours  # the stored name does not belong to this run
            attempt = "" if kind == self.final else f"--{self._attempts(record.id) + 1}"
            target = disk.below(kind, name + attempt)
            disk.make(partial / METRICS)
            disk.make(kind)
            _write(partial, self._layout.place(target), record, curve, save_weights)
            # Another process may have committed first; a final record is then the same.
            if lease.held and (disk.place(partial, target) or kind == self.final):
                placed = target
        if placed and kind == self.final:
            self.forget_failed(lease, record.id)
        return placed

    def _attempts(self, run: str) -> int:
        """Return the number of a run's last failed attempt, or 0."""
        attempts = self._folders(self.failed).get(run, [])
        return int(attempts[-1].name.rpartition("--")[2]) if attempts else 0

    def forget_failed(self, lease: Lease, run: str) -> None:
        """Move a run's failed attempts into the lease's folder, to be deleted with it."""
        for folder in self._folders(self.failed).get(run, []):
            disk.move(folder, lease.folder / folder.name)

    def folders(self) -> dict[str, Path]:
        """Return the folders of finished runs by id: the final one, else the last attempt."""
        latest = self._folders(self.failed) | self._folders(self.final)
        return {run: folders[-1] for run, folders in latest.items()}

    def final_ids(self) -> set[str]:
        """Return the runs with a final outcome."""
        return set(self._folders(self.final))

    def folder(self, run: str) -> Path | None:
        """Return a run's folder; None where it has not finished."""
        return self.folders().get(run)

    def _folders(self, kind: Path) -> dict[str, list[Path]]:
        """Return the folders in `runs/` or `failed/` by run, the last attempt last."""
        attempts: dict[str, list[tuple[int, Path]]] = {}
        for name in self._layout.files.names(kind):
            _label, seeded, rest = name.rpartition("--s")
            _seed, _, run_and_number = rest.partition("--")
            run, _, number = run_and_number.partition("--")
            if seeded and run and (number or "0").isdecimal():
                attempts.setdefault(run, []).append((int(number or 0), kind / name))
        return {run: [path for _, path in sorted(folders)] for run, folders in attempts.items()}

    def intact(self, folder: Path) -> bool:
        """Return whether a run's files are undamaged and in the folder for its outcome."""
        try:
            final = RunFolder(folder).verify().outcome in FINAL
        except ConfigError:
            return False
        return final == (folder.parent == self.final)

    def quarantine(self, folder: Path) -> list[Path]:
        """Quarantine a run's folder if it is not intact; return its new path, if any."""
        if self.intact(folder):
            return []  # another process was dropping its weights when it was first read
        return [self._layout.quarantine(folder)]

    def set_aside(self, run: str) -> list[Path]:
        """Set aside a run's folders for retraining; return their new paths."""
        folders = [
            f for kind in (self.final, self.failed) for f in self._folders(kind).get(run, [])
        ]
        return [self._layout.set_aside(folder) for folder in folders]

    def read(self, folder: Path) -> Record:
        """Read the record in a run's folder. Raises ConfigError if it is damaged."""
        return RunFolder(folder).record()

    def weights(self, run: str) -> Path | None:
        """Return the path of a finished run's weights; None without weights.

        Raises ConfigError for a damaged file.
        """
        folder = self.folder(run)
        return RunFolder(folder).weights() if folder else None

    def why_no_weights(self, run: str) -> str:
        """Explain why a finished run has no weights, and how to obtain them."""
        folder = self.folder(run)
        if folder and RunFolder(folder).lacks_weights:
            return f"they were deleted; delete '{folder}' too and run the experiment again"
        return "they were not kept (run --keep-weights)"

    def keep_best(self, tables: Sequence[Sequence[str]]) -> None:
        """Delete the weights of runs that are the best, by validation loss, in no table."""
        folders, best, worse = self.folders(), set(), set()
        for runs in tables:
            done = [RunFolder(folders[run]).record() for run in runs if run in folders]
            by_loss = sorted((r.numbers.get(_CHOSEN_BY, math.inf), r.id) for r in done if r.ok)
            best |= {run for _loss, run in by_loss[:1]}
            worse |= {run for _loss, run in by_loss[1:]}
        for run in worse - best:
            with contextlib.suppress(FileExistsError):  # another command drops them too
                disk.write(folders[run] / DROPPED, b"")
                disk.sync(folders[run])
            disk.remove(folders[run] / WEIGHTS)

    def add_metric(self, lease: Lease, run: str, name: str, metric: Measurement) -> None:
        """Add a metric to a finished run."""
        folder = self.folder(run)
        assert folder is not None, run
        file = disk.below(folder, METRICS, f"{name}.json")
        lease.replace(file, sealed(metric.to_dict(), self._layout.place(file)))


@contextlib.contextmanager
def _partial_of(lease: Lease) -> Iterator[Path]:
    """Yield a partial folder for the commit of a leased run; it is removed at the end.

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


def _write(
    partial: Path, place: str, record: Record, curve: Points, save_weights: disk.Save | None
) -> None:
    """Write a run's files, the manifest last; `place` is the final path of their folder."""
    text = io.StringIO(newline="")
    points = list(curve)
    # The columns shared by all curves come first, then the columns of this run's extra losses.
    own = dict.fromkeys(key for point in points for key in point if key not in CURVE)
    rows = csv.DictWriter(text, [*CURVE, *own])
    rows.writeheader()
    rows.writerows(points)
    values = record.to_dict()
    metrics = values.pop("metrics")
    contents: dict[str, disk.Content] = {
        "curve.csv": text.getvalue().encode(),
        RECORD: (to_json(values) + "\n").encode(),
    }
    if save_weights:
        contents[WEIGHTS] = save_weights
    digests = {name: disk.write(partial / name, content) for name, content in contents.items()}
    manifest: dict[str, dict[str, object]] = {
        name: {"bytes": (partial / name).stat().st_size, "sha256": digest}
        for name, digest in sorted(digests.items())
    }
    # The manifest repeats the outcome, so that thousands of outcomes are read without records.
    manifest[RECORD] |= {"outcome": record.outcome, "reason": record.reason}
    manifest[METRICS] = dict.fromkeys(metrics, "sealed")
    for name, metric in metrics.items():
        file = f"{METRICS}/{name}.json"
        disk.write(disk.below(partial, METRICS, f"{name}.json"), sealed(metric, f"{place}/{file}"))
    disk.write(partial / MANIFEST, sealed(manifest, f"{place}/{MANIFEST}"))


MANIFEST = "manifest.json"
RECORD = "record.json"
WEIGHTS = "weights.safetensors"
#: Empty file that marks weights as dropped on purpose.
DROPPED = "weights.dropped"
_NO_FILE = (FileNotFoundError, NotADirectoryError)


class RunFolder:
    """Folder of a finished run; files absent from its manifest are foreign.

    Every file is verified when it is read; a damaged file raises ConfigError.
    """

    def __init__(self, path: Path, files: Files = disk) -> None:
        self.path, self._reader = path, files

    def record(self) -> Record:
        """Return the run's record with its metrics."""
        return Record.from_dict({**self._values, "metrics": self.metrics}, self.path / RECORD)

    def outcome(self) -> tuple[str, str]:
        """Return the outcome and its reason, from the manifest alone."""
        return ending(self.manifest.get(RECORD, {}), f"{self.path}/{MANIFEST}")

    def curve(self) -> list[dict[str, float]]:
        """Read the learning curve; an empty cell becomes NaN."""
        text = self._content("curve.csv").decode("utf-8", "replace")
        try:
            names, *rows = [*csv.reader(io.StringIO(text))] or [[]]
        except csv.Error as error:
            raise ConfigError(f"{self.path / 'curve.csv'}: damaged, no CSV ({error})") from None
        cells = ([cell or "nan" for cell in row] for row in rows)
        return Curve.of(names, cells, self.path / "curve.csv").points

    def weights(self) -> Path | None:
        """Return the path of the run's verified weights; None without weights."""
        if not (self.path / WEIGHTS).is_file():
            return None
        self._check(WEIGHTS)
        return self.path / WEIGHTS

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the run's verified files by name, with its weights marked as dropped."""
        self.verify()
        for name in sorted({*self._files, MANIFEST} - {WEIGHTS}):
            yield name, self._reader.read(self.path / name)
        for name in sorted(self.metrics):
            yield f"{METRICS}/{name}.json", self._reader.read(self.path / METRICS / f"{name}.json")
        if WEIGHTS in self.manifest:
            yield DROPPED, b""

    def verify(self) -> Record:
        """Read all of the run's files, and return its record."""
        for name in sorted(self._files):
            if name != WEIGHTS or (self.path / name).exists():  # users may delete weights
                self._check(name)
        return self.record()

    @property
    def lacks_weights(self) -> bool:
        """Loss of weights: true if they were deleted, but not by a command of this program."""
        return WEIGHTS in self.manifest and not {WEIGHTS, DROPPED} & self._names

    @property
    def foreign(self) -> list[Path]:
        """Foreign files in the folder, written by other programs or people."""
        own = {*self._files, MANIFEST, DROPPED, METRICS}
        added = self._metric_files - {f"{name}.json" for name in self.manifest[METRICS]}
        added -= {f"{name}.json" for name in self.metrics} if added else set()
        names = self._names - own | {f"{METRICS}/{name}" for name in added}
        return [self.path / name for name in sorted(names)]

    @cached_property
    def manifest(self) -> dict[str, dict[str, Any]]:
        """Manifest: size and SHA-256 of each file, the outcome, and the metrics' names."""
        manifest = self._json(MANIFEST)
        entries = manifest.values() if isinstance(manifest, dict) else [None]
        if METRICS not in manifest or not all(isinstance(entry, dict) for entry in entries):
            raise ConfigError(f"{self.path / MANIFEST}: damaged, it is no manifest")
        return dict(manifest)

    @property
    def metrics(self) -> dict[str, Measurement]:
        """Metrics of the run by name; a metric added later is included if its seal is intact."""
        named = self.manifest[METRICS]
        files = (Path(name) for name in self._metric_files)
        there = {file.stem for file in files if file.suffix == ".json" and file.name[0] != "."}
        if missing := {*named} - there:
            raise ConfigError(f"{self.path}: damaged, it lacks the metric {', '.join(missing)}")
        metrics = {}
        for name in sorted(there):
            try:
                metrics[name] = Measurement.from_dict(self._json(f"{METRICS}/{name}.json"))
            except ConfigError:
                if name in named:
                    raise
        return metrics

    @property
    def _files(self) -> set[str]:
        """The names of the run's files in the folder itself."""
        return {*self.manifest} - {METRICS}

    @property
    def _names(self) -> set[str]:
        return {*self._reader.names(self.path)}

    @property
    def _metric_files(self) -> set[str]:
        return {*self._reader.names(self.path / METRICS)}

    @property
    def _values(self) -> dict[str, Any]:
        file = self.path / RECORD
        return parse(self._content(file.name), file)

    def _json(self, name: str) -> Any:
        file = f"{self.path}/{name}"  # joining paths would take a fifth of reading a manifest
        try:
            content = self._reader.read(file)
        except _NO_FILE:
            raise ConfigError(f"{file}: damaged, there is no such file") from None
        return parse(content, file, "/".join((*self.path.parts[-2:], name)))

    def _content(self, name: str) -> bytes:
        try:
            content = self._reader.read(self.path / name)
        except _NO_FILE:
            raise ConfigError(f"{self.path}: damaged, it lacks {name}") from None
        self._compare(name, hashlib.sha256(content).hexdigest())
        return content

    def _check(self, name: str) -> None:
        if name != WEIGHTS:
            self._content(name)
            return
        with disk.opened(self.path / name) as opened:  # it may be larger than memory
            self._compare(name, hashlib.file_digest(opened, "sha256").hexdigest())

    def _compare(self, name: str, digest: str) -> None:
        if self.manifest.get(name, {}).get("sha256") != digest:
            raise ConfigError(f"{self.path / name}: damaged, not what was written there")
