"""The folders of finished runs: committed whole and once, verified when they are read."""

import contextlib
import csv
import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

from llama_ablate.config.experiment import slug
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import sealed, to_json
from llama_ablate.results.damaged import set_aside
from llama_ablate.results.leases import Lease
from llama_ablate.results.metrics import Measurement
from llama_ablate.results.record import CURVE, FINAL, Record
from llama_ablate.results.run_folder import DROPPED, MANIFEST, METRICS, WEIGHTS, RunFolder

_CHOSEN_BY = "validation_loss_nats"


class Runs:
    """`runs/` holds what is final, each run once and for good; `failed/` what was tried in vain."""

    def __init__(self, root: Path, unsealed: Callable[[], bool]) -> None:
        """`unsealed` says whether runs may lack seals, as in format 1."""
        self._root, self._unsealed = root, unsealed
        self.final, self.failed = root / "runs", root / "failed"

    def commit(
        self,
        lease: Lease,
        record: Record,
        curve: Iterable[Mapping[str, float]],
        save_weights: Callable[[disk.Writer], Any] | None,
    ) -> Path | None:
        """Put a run in its place in one rename, if the lease still holds and nobody was faster.

        Everything is written beside the target and flushed to disk before, the manifest last.
        Returns the folder; None where the lease was lost, and nothing has been left.
        """
        kind = self.final if record.outcome in FINAL else self.failed
        partial = lease.folder / f"partial-{lease.number}"
        try:
            name = lease.agreed("name", f"{slug(record.label)}--s{record.seed}--{record.id}")
            target = kind / (
                name if kind == self.final else f"{name}--{self._tries(record.id) + 1}"
            )
            disk.make(partial / METRICS)
            disk.make(kind)
            _write(partial, self._place(target), record, curve, save_weights)
            if not lease.held:
                return None
            if not disk.place(partial, target) and kind == self.failed:
                return None  # a try of somebody else's was a moment faster
        except OSError:
            if lease.held:
                raise
            return None  # whoever took it over has cleared up behind us
        finally:
            disk.remove_tree(partial)
        if kind == self.final:
            self.forget_failed(lease, record.id)
        return target

    def _tries(self, run: str) -> int:
        """Return the number of the last try of a run that is among the failed ones, or 0."""
        tries = self._of(self.failed).get(run, [])
        return int(tries[-1].name.rpartition("--")[2]) if tries else 0

    def forget_failed(self, lease: Lease, run: str) -> None:
        """Move what a run left of tries in vain to where it is removed with the run's lease."""
        for folder in self._of(self.failed).get(run, []):
            disk.move(folder, lease.folder / folder.name)

    def folders(self) -> dict[str, Path]:
        """Return the folder of every run that has one, by id: the final one, else the last try."""
        failed = {run: tries[-1] for run, tries in self._of(self.failed).items()}
        return failed | {run: found[-1] for run, found in self._of(self.final).items()}

    def final_ids(self) -> set[str]:
        """Return the runs that have a folder among the final ones."""
        return set(self._of(self.final))

    def folder(self, run: str) -> Path | None:
        """Return where a run's record lies."""
        return self.folders().get(run)

    def stands(self, folder: Path) -> bool:
        """Return whether a run's folder is whole, and where its outcome belongs."""
        try:
            return (self.verify(folder).outcome in FINAL) == (folder.parent == self.final)
        except ConfigError:
            return False

    def set_aside(self, folder: Path) -> list[Path]:
        """Take a folder that does not stand out of the way; return where it went."""
        if self.stands(folder):
            return []  # another process was dropping its weights when it was first read
        return [set_aside(self._root, folder)]

    def seal(self, lease: Lease) -> None:
        """Give the runs of format 1 their seals; damaged ones stay as they are."""
        for folder in chain(*self._of(self.final).values(), *self._of(self.failed).values()):
            with contextlib.suppress(ConfigError):
                self.at(self._moved_if_failed(folder)).seal(lease)

    def _moved_if_failed(self, folder: Path) -> Path:
        """Return where a run belongs: format 1 kept failed runs among the final ones."""
        record = self.verify(folder)
        if folder.parent == self.failed or record.outcome in FINAL:
            return folder
        place = self.failed / f"{folder.name}--{self._tries(record.id) + 1}"
        disk.make(self.failed)
        disk.move(folder, place)
        return place

    def at(self, folder: Path) -> RunFolder:
        """Open a run's folder, to read it. What it reads is a ConfigError where it is damaged."""
        return RunFolder(folder, unsealed=self._unsealed())

    def read(self, folder: Path) -> Record:
        """Return the record of a run's folder. Raises ConfigError where it is damaged."""
        return self.at(folder).record()

    def verify(self, folder: Path) -> Record:
        """Read all of a run's files, and return its record. Raises ConfigError for any damage."""
        return self.at(folder).verify()

    def curve(self, run: str) -> list[dict[str, float]]:
        """Return a run's learning curve; an empty cell is a number not taken there."""
        folder = self.folder(run)
        return self.at(folder).curve() if folder else []

    def weights(self, run: str) -> Path | None:
        """Return the file of a finished run's weights, where it has one that is as written.

        Raises ConfigError for a damaged one.
        """
        folder = self.folder(run)
        return self.at(folder).weights() if folder else None

    def why_no_weights(self, run: str) -> str:
        """Say why a finished run has no weights, and how to have them."""
        folder = self.folder(run)
        if folder and self.at(folder).lacks_weights:
            return f"they were deleted; delete '{folder}' too and run the experiment again"
        return "they were not kept (run --keep-weights)"

    def keep_best(self, tables: Sequence[Sequence[str]]) -> None:
        """Drop the weights of all of some runs that have the lowest validation loss in no table."""
        folders, best, worse = self.folders(), set(), set()
        for runs in tables:
            done = [self.read(folders[run]) for run in runs if run in folders]
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
        file = folder / METRICS / f"{name}.json"
        lease.replace(file, sealed(metric.to_dict(), self._place(file)))

    def _place(self, file: Path) -> str:
        return file.relative_to(self._root).as_posix()

    @staticmethod
    def _of(kind: Path) -> dict[str, list[Path]]:
        """Return a kind's folders by run; of several, the last try comes last."""
        try:
            names = os.listdir(kind)
        except FileNotFoundError:
            return {}
        found: dict[str, list[tuple[int, Path]]] = {}
        for name in names:
            _label, seeded, rest = name.rpartition("--s")
            _seed, _, run_and_try = rest.partition("--")
            run, _, number = run_and_try.partition("--")
            if seeded and run and (number or "0").isdecimal():
                found.setdefault(run, []).append((int(number or 0), kind / name))
        return {run: [path for _, path in sorted(tries)] for run, tries in found.items()}


def _write(
    partial: Path,
    place: str,
    record: Record,
    curve: Iterable[Mapping[str, float]],
    save_weights: Callable[[disk.Writer], Any] | None,
) -> None:
    """Write a run's files, the manifest last; `place` is what their folder will be called."""
    text = io.StringIO(newline="")
    rows = csv.DictWriter(text, CURVE)
    rows.writeheader()
    rows.writerows(curve)
    values = asdict(replace(record, metrics={}))
    del values["metrics"]
    contents: dict[str, disk.Content] = {
        "curve.csv": text.getvalue().encode(),
        "record.json": (to_json(values) + "\n").encode(),
    }
    if save_weights:
        contents[WEIGHTS] = save_weights
    digests = {name: disk.write(partial / name, content) for name, content in contents.items()}
    manifest: dict[str, dict[str, object]] = {
        name: {"bytes": (partial / name).stat().st_size, "sha256": digest}
        for name, digest in sorted(digests.items())
    }
    manifest[METRICS] = dict.fromkeys(record.metrics, "sealed")
    for name, metric in record.metrics.items():
        file = f"{METRICS}/{name}.json"
        disk.write(partial / file, sealed(metric.to_dict(), f"{place}/{file}"))
    disk.write(partial / MANIFEST, sealed(manifest, f"{place}/{MANIFEST}"))
