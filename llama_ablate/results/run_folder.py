"""The folder of a finished run, whose files are verified against its manifest."""

import csv
import hashlib
import io
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import parse
from llama_ablate.results.layout import METRICS
from llama_ablate.results.metrics import Measurement
from llama_ablate.results.record import Curve, Record, ending

MANIFEST = "manifest.json"
RECORD = "record.json"
WEIGHTS = "weights.safetensors"
#: An empty file: the weights were dropped on purpose.
DROPPED = "weights.dropped"
_NO_FILE = (FileNotFoundError, NotADirectoryError)


class RunFolder:
    """A finished run on disk. Files that its manifest does not list are foreign.

    Every file is verified when it is read; a damaged one raises ConfigError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def record(self) -> Record:
        """Return the run's record with its metrics."""
        return Record.from_dict({**self._values, "metrics": self.metrics}, self.path / RECORD)

    def outcome(self) -> tuple[str, str]:
        """Return how the run ended, and why, from the manifest alone."""
        entry = self.manifest.get(RECORD, {})
        values = entry if "outcome" in entry else self._values  # of older versions: in the record
        return ending(values, self.path / MANIFEST)

    def curve(self) -> list[dict[str, float]]:
        """Return the learning curve; an empty cell is a number not taken there."""
        text = self._content("curve.csv").decode("utf-8", "replace")
        try:
            names, *rows = [*csv.reader(io.StringIO(text))] or [[]]
        except csv.Error as error:
            raise ConfigError(f"{self.path / 'curve.csv'}: damaged, no CSV ({error})") from None
        cells = ([cell or "nan" for cell in row] for row in rows)
        return Curve.of(names, cells, self.path / "curve.csv").points

    def weights(self) -> Path | None:
        """Return the file of the run's weights, where it has one."""
        if not (self.path / WEIGHTS).is_file():
            return None
        self._check(WEIGHTS)
        return self.path / WEIGHTS

    def verify(self) -> Record:
        """Read all of the run's files, and return its record."""
        for name in sorted(self._files):
            if name != WEIGHTS or (self.path / name).exists():  # weights may go, to save room
                self._check(name)
        return self.record()

    @property
    def lacks_weights(self) -> bool:
        """Whether the weights were deleted, but not by a command of ours."""
        return WEIGHTS in self.manifest and not {WEIGHTS, DROPPED} & self._names

    @property
    def foreign(self) -> list[Path]:
        """Files that others left in the folder, and that are no part of the run."""
        own = {*self._files, MANIFEST, DROPPED, METRICS}
        added = self._metric_files - {f"{name}.json" for name in self.manifest[METRICS]}
        added -= {f"{name}.json" for name in self.metrics} if added else set()
        names = self._names - own | {f"{METRICS}/{name}" for name in added}
        return [self.path / name for name in sorted(names)]

    @cached_property
    def manifest(self) -> dict[str, dict[str, Any]]:
        """Size and SHA-256 of the run's files by name, how it ended, and its metrics' names."""
        manifest = self._json(MANIFEST)
        entries = manifest.values() if isinstance(manifest, dict) else [None]
        if METRICS not in manifest or not all(isinstance(entry, dict) for entry in entries):
            raise ConfigError(f"{self.path / MANIFEST}: damaged, it is no manifest")
        return dict(manifest)

    @property
    def metrics(self) -> dict[str, Measurement]:
        """The run's metrics by name; one that was added later only where its seal is intact."""
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
        return {*disk.names(self.path)}

    @property
    def _metric_files(self) -> set[str]:
        folder = self.path / METRICS
        return {*disk.names(folder)} if METRICS in self._names and folder.is_dir() else set()

    @property
    def _values(self) -> dict[str, Any]:
        file = self.path / RECORD
        return parse(self._content(file.name), file)

    def _json(self, name: str) -> Any:
        file = f"{self.path}/{name}"  # joining paths would take a fifth of reading a manifest
        try:
            content = disk.read(file)
        except _NO_FILE:
            raise ConfigError(f"{file}: damaged, there is no such file") from None
        return parse(content, file, "/".join((*self.path.parts[-2:], name)))

    def _content(self, name: str) -> bytes:
        with self._opened(name) as opened:
            content = opened.read()
        self._compare(name, hashlib.sha256(content).hexdigest())
        return content

    def _check(self, name: str) -> None:
        with self._opened(name) as opened:  # it may be larger than memory
            self._compare(name, hashlib.file_digest(opened, "sha256").hexdigest())

    def _opened(self, name: str) -> BufferedReader:
        try:
            return disk.opened(self.path / name)
        except _NO_FILE:
            raise ConfigError(f"{self.path}: damaged, it lacks {name}") from None

    def _compare(self, name: str, digest: str) -> None:
        if self.manifest.get(name, {}).get("sha256") != digest:
            raise ConfigError(f"{self.path / name}: damaged, not what was written there")
