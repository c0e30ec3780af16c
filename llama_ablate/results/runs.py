"""Folders of finished runs: atomic commits, retries, and which weights are kept."""

import contextlib
import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.slugs import slug
from llama_ablate.files.strict_json import sealed, to_json
from llama_ablate.results.layout import METRICS, Layout
from llama_ablate.results.leases import Lease
from llama_ablate.results.metrics import Measurement
from llama_ablate.results.record import CURVE, FINAL, Record
from llama_ablate.results.run_folder import DROPPED, MANIFEST, RECORD, WEIGHTS, RunFolder

_CHOSEN_BY = "validation_loss_nats"


class Runs:
    """`runs/` holds each run with a final outcome, once; `failed/` attempts that are retried."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.final, self.failed = layout.final, layout.failed

    def commit(
        self,
        lease: Lease,
        record: Record,
        curve: Iterable[Mapping[str, float]],
        save_weights: Callable[[disk.Writer], Any] | None,
    ) -> Path | None:
        """Commit a run by one rename, if the lease still holds and nobody was faster.

        Everything is written to a partial folder and flushed before, the manifest last.
        Returns the folder; None where the lease was lost, and then nothing is left behind.
        """
        kind = self.final if record.outcome in FINAL else self.failed
        partial = lease.folder / f"partial-{lease.number}"
        try:
            ours = f"{slug(record.label)}--s{record.seed}--{record.id}"
            name = lease.set_once("name", ours)
            if name.partition("--")[2] != ours.partition("--")[2]:
                name = ours  # what stands there is no name of this run
            attempt = "" if kind == self.final else f"--{self._attempts(record.id) + 1}"
            target = disk.below(kind, name + attempt)
            disk.make(partial / METRICS)
            disk.make(kind)
            _write(partial, self._layout.place(target), record, curve, save_weights)
            if not lease.held:
                return None
            if not disk.place(partial, target) and kind == self.failed:
                return None  # somebody else's attempt was a moment faster
        except OSError:
            if lease.held:
                raise
            return None  # the process that took the lease over has removed our partial folder
        finally:
            disk.remove_tree(partial)
        if kind == self.final:
            self.forget_failed(lease, record.id)
        return target

    def _attempts(self, run: str) -> int:
        """Return the number of a run's last failed attempt, or 0."""
        attempts = _folders(self.failed).get(run, [])
        return int(attempts[-1].name.rpartition("--")[2]) if attempts else 0

    def forget_failed(self, lease: Lease, run: str) -> None:
        """Move a run's failed attempts into the lease's folder, to be deleted with it."""
        for folder in _folders(self.failed).get(run, []):
            disk.move(folder, lease.folder / folder.name)

    def folders(self) -> dict[str, Path]:
        """Return the folders of finished runs by id: the final one, else the last attempt."""
        latest = _folders(self.failed) | _folders(self.final)
        return {run: folders[-1] for run, folders in latest.items()}

    def final_ids(self) -> set[str]:
        """Return the runs with a final outcome."""
        return set(_folders(self.final))

    def folder(self, run: str) -> Path | None:
        """Return a run's folder; None where it has not finished."""
        return self.folders().get(run)

    def intact(self, folder: Path) -> bool:
        """Return whether a run's files are as written, and lie where its outcome belongs."""
        try:
            final = RunFolder(folder).verify().outcome in FINAL
        except ConfigError:
            return False
        return final == (folder.parent == self.final)

    def quarantine(self, folder: Path) -> list[Path]:
        """Move a folder that is not intact away; return where it is now."""
        if self.intact(folder):
            return []  # another process was dropping its weights when it was first read
        return [self._layout.quarantine(folder)]

    def set_aside(self, run: str) -> list[Path]:
        """Move a run's folders away, for it to be trained again; return where they are now."""
        folders = [f for kind in (self.final, self.failed) for f in _folders(kind).get(run, [])]
        return [self._layout.set_aside(folder) for folder in folders]

    def read(self, folder: Path) -> Record:
        """Return the record of a run's folder. Raises ConfigError where it is damaged."""
        return RunFolder(folder).record()

    def weights(self, run: str) -> Path | None:
        """Return the file of a finished run's weights, where it has one.

        Raises ConfigError for a damaged one.
        """
        folder = self.folder(run)
        return RunFolder(folder).weights() if folder else None

    def why_no_weights(self, run: str) -> str:
        """Return why a finished run has no weights, and how to get them."""
        folder = self.folder(run)
        if folder and RunFolder(folder).lacks_weights:
            return f"they were deleted; delete '{folder}' too and run the experiment again"
        return "they were not kept (run --keep-weights)"

    def keep_best(self, tables: Sequence[Sequence[str]]) -> None:
        """Delete the weights of runs that have the lowest validation loss in no table."""
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


def _folders(kind: Path) -> dict[str, list[Path]]:
    """Return the folders in `runs/` or `failed/` by run, the last attempt last."""
    attempts: dict[str, list[tuple[int, Path]]] = {}
    for name in disk.names(kind):
        _label, seeded, rest = name.rpartition("--s")
        _seed, _, run_and_number = rest.partition("--")
        run, _, number = run_and_number.partition("--")
        if seeded and run and (number or "0").isdecimal():
            attempts.setdefault(run, []).append((int(number or 0), kind / name))
    return {run: [path for _, path in sorted(folders)] for run, folders in attempts.items()}


def _write(
    partial: Path,
    place: str,
    record: Record,
    curve: Iterable[Mapping[str, float]],
    save_weights: Callable[[disk.Writer], Any] | None,
) -> None:
    """Write a run's files, the manifest last; `place` is what their folder will be called."""
    text = io.StringIO(newline="")
    points = list(curve)
    # After the columns that every curve has, those of the losses that this run was trained by.
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
    # For who asks no more than how it ended, as of thousands of runs.
    manifest[RECORD] |= {"outcome": record.outcome, "reason": record.reason}
    manifest[METRICS] = dict.fromkeys(metrics, "sealed")
    for name, metric in metrics.items():
        file = f"{METRICS}/{name}.json"
        disk.write(disk.below(partial, METRICS, f"{name}.json"), sealed(metric, f"{place}/{file}"))
    disk.write(partial / MANIFEST, sealed(manifest, f"{place}/{MANIFEST}"))
