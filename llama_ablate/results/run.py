"""Folder of a finished run: its files are written once, and verified whenever they are read."""

import contextlib
import csv
import hashlib
import io
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.fields import LARGEST
from llama_ablate.files.strict_json import parse, sealed, to_json
from llama_ablate.results.archive import Files
from llama_ablate.results.layout import METRICS, RUNS
from llama_ablate.results.record import CURVE, FINAL, Measurement, Points, Record, ending

_CURVE = "curve.csv"
MANIFEST = "manifest.json"
RECORD = "record.json"
WEIGHTS = "weights.safetensors"
#: Empty file that marks weights as dropped on purpose.
DROPPED = "weights.dropped"
_NO_FILE = (FileNotFoundError, NotADirectoryError)


def write_run(
    partial: Path, place: str, record: Record, curve: Points, save_weights: disk.Save | None
) -> None:
    """Write a run's files, the manifest last; `place` is the final path of their folder."""
    text = io.StringIO(newline="")
    points = list(curve)
    # The columns shared by all curves come first, then the columns of this run's extra losses.
    further = dict.fromkeys(key for point in points for key in point if key not in CURVE)
    rows = csv.DictWriter(text, [*CURVE, *further])
    rows.writeheader()
    rows.writerows(points)
    values = record.to_dict()
    metrics = values.pop("metrics")
    contents: dict[str, disk.Content] = {
        _CURVE: text.getvalue().encode(),
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
        return ending(self._read_manifest().get(RECORD, {}), f"{self.path}/{MANIFEST}")

    def curve(self) -> list[dict[str, float]]:
        """Return the points of the learning curve; an empty cell becomes NaN."""
        return _parse_curve(self._content(_CURVE), self.path / _CURVE)

    def weights(self) -> Path | None:
        """Return the path of the run's verified weights; None without weights."""
        if not (self.path / WEIGHTS).is_file():
            return None
        self._check(WEIGHTS)
        return self.path / WEIGHTS

    def drop_weights(self) -> None:
        """Delete the run's weights, and mark them as dropped on purpose."""
        with contextlib.suppress(FileExistsError):  # another command drops them too
            disk.write(self.path / DROPPED, b"")
            disk.sync(self.path)
        disk.remove(self.path / WEIGHTS)

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
    def is_intact(self) -> bool:
        """Integrity: true if all files are undamaged, in the folder for the run's outcome."""
        try:
            final = self.verify().outcome in FINAL
        except ConfigError:
            return False
        return final == (self.path.parent.name == RUNS)

    @property
    def lacks_weights(self) -> bool:
        """Loss of weights: true if the weights were deleted, but not by this program."""
        return WEIGHTS in self.manifest and not {WEIGHTS, DROPPED} & self._names

    @property
    def foreign(self) -> list[Path]:
        """Foreign files in the folder, written by other programs or people."""
        own_names = {*self._files, MANIFEST, DROPPED, METRICS}
        added = self._metric_files - {f"{name}.json" for name in self.manifest[METRICS]}
        added -= {f"{name}.json" for name in self.metrics} if added else set()
        names = self._names - own_names | {f"{METRICS}/{name}" for name in added}
        return [self.path / name for name in sorted(names)]

    @cached_property
    def manifest(self) -> dict[str, dict[str, Any]]:
        """Manifest: size and SHA-256 of each file, the outcome, and the metrics' names."""
        return self._read_manifest()

    def _read_manifest(self) -> dict[str, dict[str, Any]]:
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
        """Names of the run's files, without the files in its subfolders."""
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


def _parse_curve(content: bytes, file: Path) -> list[dict[str, float]]:
    """Return the points of a stored learning curve, each with a number for every column.

    Raises ConfigError for rows of unequal length, cells that are not numbers, missing columns, and
    numbers out of range.
    """
    import numpy as np  # commands that only count runs do not need it

    text = io.StringIO(content.decode("utf-8", "replace"), newline="")
    try:
        head, *rows = [row for row in csv.reader(text) if row] or [[*CURVE]]
        cells = np.array(rows, object).reshape(len(rows), len(head))
        values = np.where(cells == "", "nan", cells).astype(float)
    except (csv.Error, ValueError) as error:
        raise ConfigError(f"{file}: damaged, it is no learning curve ({error})") from None
    beyond = np.abs(values[np.isfinite(values)]) > LARGEST
    counts = values[:, [at for at, name in enumerate(head) if name in ("step", "tokens")]]
    if beyond.any() or {*CURVE} - {*head} or not np.isfinite(counts).all():
        raise ConfigError(f"{file}: damaged, a learning curve has other columns or numbers")
    return [dict(zip(head, point, strict=True)) for point in values.tolist()]
