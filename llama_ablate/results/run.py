"""Folder of a finished run: its files are written once, and verified whenever they are read.

`record.json` is sealed. It holds the record with the metrics of its training, and the SHA-256 of
the curve and the weights. A metric that is measured later is a sealed file in `metrics/`.
"""

import contextlib
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.fields import LARGEST
from llama_ablate.files.strict_json import is_sealed, parse, sealed
from llama_ablate.results.archive import Files
from llama_ablate.results.record import CURVE, FINAL, Points, Record

#: The folder of the runs with a final outcome.
RUNS = "runs"
RECORD = "record.json"
WEIGHTS = "weights.safetensors"
#: Empty file that marks weights as dropped on purpose.
DROPPED = "weights.dropped"
_CURVE = "curve.csv"
#: Outcome and reason in the JSON of a record that this program has sealed.
_ENDING = re.compile(rb'\n "outcome": "(\w+)",\n "reason": ("(?:[^"\\]|\\.)*"),\n')
#: Folder of metrics that were measured later.
METRICS = "metrics"
#: In folders of format 4: names and digests of the files, and all metrics in files of their own.
_MANIFEST = "manifest.json"


def write_run(
    partial: Path, place: str, record: Record, curve: Points, save_weights: disk.Save | None
) -> None:
    """Write a run's files, the record last; `place` is the final path of their folder."""
    text = io.StringIO(newline="")
    points = list(curve)
    # The columns shared by all curves come first, then the columns of this run's extra losses.
    further = dict.fromkeys(key for point in points for key in point if key not in CURVE)
    rows = csv.DictWriter(text, [*CURVE, *further])
    rows.writeheader()
    rows.writerows(points)
    files = {_CURVE: disk.write(partial / _CURVE, text.getvalue().encode())}
    if save_weights:
        files[WEIGHTS] = disk.write(partial / WEIGHTS, save_weights)
    values = {**record.to_dict(), "files": files}
    disk.write(partial / RECORD, sealed(values, f"{place}/{RECORD}"))


class RunFolder:
    """Folder of a finished run; files absent from its record are foreign.

    Every file is verified when it is read; a damaged file raises ConfigError.
    """

    def __init__(self, path: Path, files: Files = disk) -> None:
        self.path, self._reader = path, files

    def record(self) -> Record:
        """Return the run's record with its metrics."""
        values = self._values()
        values["metrics"] = {**values["metrics"], **self._later}
        return Record.from_dict(values, self.path / RECORD)

    def outcome(self) -> tuple[str, str]:
        """Return the outcome and its reason, without parsing thousands of metrics."""
        raw = self._read(RECORD)
        match = _ENDING.search(raw) if is_sealed(raw, self._place(RECORD)) else None
        if match is None:
            record = self.record()
            return record.outcome, record.reason
        outcome, reason = match.groups()
        return outcome.decode(), json.loads(reason) if len(reason) > len('""') else ""

    def curve(self) -> list[dict[str, float]]:
        """Return the points of the learning curve; an empty cell becomes NaN."""
        return _parse_curve(self._content(_CURVE), self.path / _CURVE)

    def weights(self) -> Path | None:
        """Return the path of the run's verified weights; None without weights."""
        file = self.path / WEIGHTS
        if not file.is_file():
            return None
        with disk.opened(file) as opened:  # it may be larger than memory
            self._compare(WEIGHTS, hashlib.file_digest(opened, "sha256").hexdigest())
        return file

    def drop_weights(self) -> None:
        """Delete the run's weights, and mark them as dropped on purpose."""
        with contextlib.suppress(FileExistsError):  # another command drops them too
            disk.write(self.path / DROPPED, b"")
            disk.sync(self.path)
        disk.remove(self.path / WEIGHTS)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the run's verified files by name, with its weights marked as dropped."""
        self.verify()
        values = self._values()
        yield RECORD, sealed(values, self._place(RECORD))
        yield _CURVE, self._content(_CURVE)
        for name, metric in self._later.items():
            if values["metrics"].get(name) != metric:
                file = f"{METRICS}/{name}.json"
                yield file, sealed(metric, self._place(file))
        if WEIGHTS in self._digests:
            yield DROPPED, b""

    def verify(self) -> Record:
        """Read all of the run's files, and return its record."""
        self._content(_CURVE)
        if WEIGHTS in self._digests:
            self.weights()
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
        names = {*self._reader.names(self.path)}
        return WEIGHTS in self._digests and not {WEIGHTS, DROPPED} & names

    @property
    def foreign(self) -> list[Path]:
        """Foreign files in the folder, written by other programs or people."""
        names = {RECORD, DROPPED, _MANIFEST, METRICS, *self._digests}
        return [self.path / name for name in sorted({*self._reader.names(self.path)} - names)]

    @cached_property
    def _digests(self) -> dict[str, str]:
        """SHA-256 of the other files, as the record states them."""
        return dict(self._values()["files"])

    def _values(self) -> dict[str, Any]:
        """Read the values of the record, with its metrics and the digests of the other files."""
        raw = self._read(RECORD)
        if b'\n "sha256": "' not in raw[-99:] and self._reader.is_file(self.path / _MANIFEST):
            values = self._read_format_4(raw)
        else:
            values = parse(raw, f"{self.path}/{RECORD}", self._place(RECORD))
        kinds = {"files": dict, "metrics": dict}
        if wrong := [key for key, kind in kinds.items() if not isinstance(values.get(key), kind)]:
            raise ConfigError(f"{self.path / RECORD}: damaged, it states no {wrong[0]}")
        return values

    def _read_format_4(self, raw: bytes) -> dict[str, Any]:
        """Return the same from a folder of format 4, in which a manifest names the metrics."""
        manifest = self._sealed(_MANIFEST)
        named = manifest.pop(METRICS, None)
        entries = [named, *manifest.values()]
        if not all(isinstance(entry, dict) for entry in entries):
            raise ConfigError(f"{self.path / _MANIFEST}: damaged, it is no manifest")
        files = {name: entry.get("sha256") for name, entry in manifest.items()}
        if files.pop(RECORD, None) != hashlib.sha256(raw).hexdigest():
            raise ConfigError(f"{self.path / RECORD}: damaged, not what was written there")
        metrics = {name: self._sealed(f"{METRICS}/{name}.json") for name in sorted(named)}
        return {**parse(raw, self.path / RECORD), "metrics": metrics, "files": files}

    @property
    def _later(self) -> dict[str, dict[str, Any]]:
        """Metrics of later measurements, by name; damaged files are left out."""
        metrics = {}
        for file in sorted(self._reader.names(self.path / METRICS)):
            if file.endswith(".json") and not file.startswith("."):
                with contextlib.suppress(ConfigError):
                    metrics[file.removesuffix(".json")] = self._sealed(f"{METRICS}/{file}")
        return metrics

    def _sealed(self, name: str) -> dict[str, Any]:
        return parse(self._read(name), f"{self.path}/{name}", self._place(name))

    def _place(self, name: str) -> str:
        return "/".join((*self.path.parts[-2:], name))

    def _read(self, name: str) -> bytes:
        file = f"{self.path}/{name}"  # joining paths would take a fifth of reading a record
        try:
            return self._reader.read(file)
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigError(f"{file}: damaged, there is no such file") from None

    def _content(self, name: str) -> bytes:
        content = self._read(name)
        self._compare(name, hashlib.sha256(content).hexdigest())
        return content

    def _compare(self, name: str, digest: str) -> None:
        if self._digests.get(name) != digest:
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
