"""The folder of one finished run: which files are its own, and whether they are as written."""

import csv
import hashlib
import io
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import parse, read_json, sealed
from llama_ablate.results.leases import Lease
from llama_ablate.results.metrics import Measurement
from llama_ablate.results.record import Record

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
#: Says that the weights were dropped on purpose. Empty.
DROPPED = "weights.dropped"
METRICS = "metrics"
_NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


class RunFolder:
    """A finished run on disk. Its manifest decides which files are the run's; others are foreign.

    What it reads is verified, and is a ConfigError where it is not as it was written.
    """

    def __init__(self, path: Path, *, unsealed: bool) -> None:
        """Read the folder at a path; `unsealed` allows one of format 1, which bears no seals."""
        self.path, self._unsealed = path, unsealed

    def record(self) -> Record:
        """Return the run's record with its metrics."""
        try:
            return Record(**self._values, metrics=self.metrics)
        except TypeError:
            raise ConfigError(f"{self.path / 'record.json'}: damaged, it is no record") from None

    def outcome(self) -> tuple[str, str]:
        """Return how the run ended, and why, without its metrics."""
        return self._values["outcome"], self._values["reason"]

    def curve(self) -> list[dict[str, float]]:
        """Return the learning curve; an empty cell is a number not taken there."""
        text = self._content("curve.csv").decode("utf-8")
        return [
            {key: float(cell) if cell else math.nan for key, cell in row.items()}
            for row in csv.DictReader(io.StringIO(text))
        ]

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

    def seal(self, lease: Lease) -> None:
        """Seal what format 1 left unsealed: the metrics, and then the manifest, which lists them.

        Format 1 dropped weights without a mark.
        """
        if METRICS in self.manifest:
            return
        for name, values in self.metrics.items():
            lease.replace(*self._sealed(f"{METRICS}/{name}.json", values.to_dict()))
        if WEIGHTS in self.manifest and not (self.path / WEIGHTS).exists():
            lease.replace(self.path / DROPPED, b"")
        listed = {METRICS: dict.fromkeys(self.metrics, "sealed")}
        lease.replace(*self._sealed(MANIFEST, {**self.manifest, **listed}))

    @property
    def lacks_weights(self) -> bool:
        """Whether there were weights that are gone, though no command of ours dropped them."""
        # Format 1, whose manifests list no metrics, has no mark for weights that were dropped.
        return {WEIGHTS, METRICS} <= {*self.manifest} and not {WEIGHTS, DROPPED} & self._names

    @property
    def foreign(self) -> list[Path]:
        """What others have left in the folder: it is no part of the run."""
        own = {*self._files, MANIFEST, DROPPED, METRICS}
        named = {f"{name}.json" for name in self.manifest.get(METRICS, {})}
        added = self._metric_files - named
        added -= {f"{name}.json" for name in self.metrics} if added else set()
        names = self._names - own | {f"{METRICS}/{name}" for name in added}
        return [self.path / name for name in sorted(names)]

    @cached_property
    def manifest(self) -> dict[str, dict[str, Any]]:
        """What the run's files are: size and hash by name; from format 2 on also its metrics."""
        found = self._json(MANIFEST, unsealed=self._unsealed)
        if not isinstance(found, dict) or not all(isinstance(of, dict) for of in found.values()):
            raise ConfigError(f"{self.path / MANIFEST}: damaged, it is no manifest")
        return found

    @cached_property
    def metrics(self) -> dict[str, Measurement]:
        """The run's metrics by name. One that was added later counts where its seal stands."""
        named = self.manifest.get(METRICS)
        files = (Path(name) for name in self._metric_files)
        there = {file.stem for file in files if file.suffix == ".json" and file.name[0] != "."}
        if missing := {*(named or {})} - there:
            raise ConfigError(f"{self.path}: damaged, it lacks the metric {', '.join(missing)}")
        found = {}
        for name in sorted(there):
            try:
                stored = self._json(f"{METRICS}/{name}.json", unsealed=named is None)
                found[name] = Measurement.from_dict(stored)
            except ConfigError:
                if named is None or name in named:
                    raise
        return found

    @property
    def _files(self) -> set[str]:
        """The names of the run's files in the folder itself."""
        return {*self.manifest} - {METRICS}

    @cached_property
    def _names(self) -> set[str]:
        return {*disk.names(self.path)}

    @property
    def _metric_files(self) -> set[str]:
        folder = self.path / METRICS
        return {*disk.names(folder)} if folder.is_dir() else set()

    @cached_property
    def _values(self) -> dict[str, Any]:
        file = self.path / "record.json"
        found: dict[str, Any] = parse(self._content(file.name), file)
        run, seed = (found.get(key) for key in ("id", "seed")) if isinstance(found, dict) else "??"
        if f"--s{seed}--{run}" not in self.path.name or "outcome" not in found:
            raise ConfigError(f"{self.path}: damaged, its record is of another run")
        return found

    def _json(self, name: str, *, unsealed: bool) -> Any:
        file = self.path / name
        try:
            return read_json(file, self._place(name), unsealed=unsealed)
        except _NO_FILE:
            raise ConfigError(f"{file}: damaged, there is no such file") from None

    def _sealed(self, name: str, values: Mapping[str, object]) -> tuple[Path, bytes]:
        return self.path / name, sealed(values, self._place(name))

    def _place(self, name: str) -> str:
        return f"{self.path.parent.name}/{self.path.name}/{name}"

    def _content(self, name: str) -> bytes:
        self._check(name)
        return (self.path / name).read_bytes()

    def _check(self, name: str) -> None:
        file, said = self.path / name, self.manifest.get(name, {})
        try:
            with file.open("rb") as opened:
                digest = hashlib.file_digest(opened, "sha256").hexdigest()
        except _NO_FILE:
            raise ConfigError(f"{self.path}: damaged, it lacks {name}") from None
        if said.get("sha256") != digest:
            raise ConfigError(f"{file}: damaged, not what was written there")
