"""Packed results: one experiment as a few small files.

<pack>/
pack.json         plan, protocol, metrics of variants, and how each run ended; the size and SHA-256
                  of every other file of the pack; sealed
runs.jsonl.gz     one run a line: its record with its metrics, and its learning curve by column
experiment.yaml   the experiment file as the user wrote it
report.md  effects*.png

Weights are left out. A pack is read by the commands that read a folder of results; none adds to it.
"""

import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.fields import Count, Id, MetricName, typed
from llama_ablate.files.strict_json import parse, read_json
from llama_ablate.results import protocol
from llama_ablate.results.layout import PACK, Layout
from llama_ablate.results.live import Live
from llama_ablate.results.plan_document import PlanDocument, validated
from llama_ablate.results.protocol import Version
from llama_ablate.results.record import Curve, Measurement, Outcome, Record

RUNS = "runs.jsonl.gz"
#: A line of a run has kilobytes, and is packed in a fifth of them: what is far beyond is an attack.
_LINE, _PACKED, _LEAST = 16 << 20, 100, 64 << 20


class Sum(NamedTuple):
    """Size and SHA-256 of a file."""

    bytes: Count
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


#: A figure in a report.
_FIGURE = re.compile(r"\]\((effects[\w-]*\.png)\)")
# With {0,199} in the pattern, which repeats all letters there are, its compilation takes 60 ms.
_FILES = TypeAdapter(dict[Annotated[str, Field(pattern=r"^\w[\w.-]*$", max_length=200)], Sum])
_ENDINGS = TypeAdapter(dict[Id, tuple[Outcome, str]])
_VARIANTS = TypeAdapter(dict[Id, dict[MetricName, Measurement]])


class PackedRun:
    """A finished run in a pack."""

    path = None
    lacks_weights = False

    def __init__(self, pack: "Pack", run: str) -> None:
        self._pack, self._run = pack, run
        self.foreign: list[Path] = []

    def record(self) -> Record:
        """Return the run's record with its metrics."""
        return self._pack.runs[self._run][0]

    def outcome(self) -> tuple[Outcome, str]:
        """Return the outcome and its reason."""
        return self._pack.endings[self._run]

    def curve(self) -> list[dict[str, float]]:
        """Return the learning curve, one row a point; NaN where a number was not taken."""
        return self._pack.runs[self._run][1].points


class Pack:
    """The packed results in a folder. What is read is verified; damage raises ConfigError."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        self._file = self.layout.pack

    @classmethod
    def open(cls, root: Path) -> "Pack":
        """Return the pack in a folder. Raises ConfigError where its packing was stopped."""
        if (Layout(root).packing / PACK).exists():
            raise ConfigError(
                f"'{root}' was being packed again when that was stopped: "
                f"llama-ablate pack {quote(str(root))} finishes it"
            )
        return cls(root)

    @staticmethod
    def is_at(root: Path) -> bool:
        """Return whether a folder holds packed results."""
        return Layout(root).pack.exists()

    @cached_property
    def plan(self) -> PlanDocument:
        """What was planned. Raises FormatError for a pack of another format."""
        return validated(self._mapping("plan"), self._file)

    @property
    def protocol(self) -> list[Version]:
        """What the file stated before the first run had finished, and every change since."""
        stored = self._document
        stated = {"versions": stored["protocol"]} if "protocol" in stored else stored
        return protocol.stated_in(stated, self._file)

    @cached_property
    def files(self) -> Mapping[str, Sum]:
        """Size and SHA-256 of every other file of the pack, by name.

        Of one in format 3 the runs' alone, and not their size.
        """
        if "files" in self._document:
            return listed(self._document, self._file)
        return typed(_FILES, {RUNS: (0, self._mapping("runs").get("sha256"))}, self._file)

    @property
    def changed(self) -> list[Path]:
        """Files beside the data, such as the report, that are not as they were written."""
        pages = self.files.keys() - {RUNS} - self.unchanged
        return [self.layout.root / name for name in sorted(pages)]

    @cached_property
    def unchanged(self) -> set[str]:
        """Files of the pack that are as they were written.

        One in format 3 lists its data alone: of its pages those count that its report shows.
        """
        same = {name for name, own in self.files.items() if self._is(name, own)}
        if "files" in self._document:
            return same
        report, shown = self.layout.root / "report.md", list[str]()
        if report.is_file():
            shown = _FIGURE.findall(disk.read(report).decode("utf-8", "replace"))
        return same | {"experiment.yaml", "report.md", *shown}

    def _is(self, name: str, own: Sum) -> bool:
        """Return whether a file is as it was written; one of another size is not read."""
        file = self.layout.root / name
        try:
            with disk.opened(file) as opened:
                size = os.fstat(opened.fileno()).st_size
                known = own.bytes if "files" in self._document else size
                same = hashlib.file_digest(opened, "sha256").hexdigest() if size == known else ""
        except FileNotFoundError:
            return False
        return same == own.sha256

    @cached_property
    def endings(self) -> Mapping[str, tuple[Outcome, str]]:
        """The outcome of each finished run and its reason, by id."""
        self._verify_runs()
        if "ended" in self._document:
            return typed(_ENDINGS, self._document["ended"], self._file)
        return {run: (record.outcome, record.reason) for run, (record, _) in self.runs.items()}

    def finished(self) -> Mapping[str, PackedRun]:
        """Return the finished runs by id."""
        return {run: PackedRun(self, run) for run in self.endings}

    @cached_property
    def runs(self) -> dict[str, tuple[Record, Curve]]:
        """The record and the learning curve of each finished run, by id."""
        file = self.layout.root / RUNS
        found: dict[str, tuple[Record, Curve]] = {}
        for line in self._lines(file):
            values = parse(line, file)
            columns = values.pop("curve", None)
            record = Record.from_dict(values, file)
            if not isinstance(columns, dict) or record.id not in self.plan.runs.keys() - found:
                raise ConfigError(f"{file}: damaged, '{record.id}' is no run with a learning curve")
            found[record.id] = record, Curve.of(columns, _rows(columns), file)
        if "ended" in self._document and found.keys() != self.endings.keys():
            raise ConfigError(f"{file}: damaged, these are not the runs that {self._file} names")
        return found

    def _verify_runs(self) -> None:
        file = self.layout.root / RUNS
        if not file.exists():
            raise ConfigError(f"{self.layout.root}: damaged, it lacks {RUNS}")
        if RUNS not in self.files or not self._is(RUNS, self.files[RUNS]):
            raise ConfigError(f"{file}: damaged, not what was written there")

    def _lines(self, file: Path) -> Iterator[bytes]:
        """Yield the lines of the runs' file: verified first, and no more than its size allows."""
        self._verify_runs()
        left = max(_LEAST, _PACKED * file.stat().st_size)
        try:
            with disk.opened(file) as packed, gzip.open(packed) as lines:
                while line := lines.readline(_LINE + 1):
                    left -= len(line)
                    if len(line) > _LINE or left < 0:
                        raise ConfigError(f"{file}: it unpacks to far more than runs take")
                    yield line
        except (EOFError, OSError, zlib.error) as error:
            raise ConfigError(f"{file}: damaged, it cannot be unpacked ({error})") from None

    def metrics_of(self, variants: Iterable[str]) -> dict[str, dict[str, Measurement]]:
        """Return the metrics of variants, by variant and name."""
        stored = typed(_VARIANTS, self._document.get("variants"), self._file)
        return {variant: stored.get(variant, {}) for variant in variants}

    def is_leased(self, _run: str) -> bool:
        """Return whether somebody is at work on a run: never on a packed one."""
        return False

    def live(self, _runs: Iterable[str]) -> dict[str, Live]:
        """Return how far runs are: none of a pack is at work."""
        return {}

    def lock_report(self) -> AbstractContextManager[object]:
        """Return a context in which one process at a time writes the report: a lock of the folder.

        Raises ConfigError for a link.
        """
        self.layout.refuse_links()
        return disk.locked(self.layout.root)

    def _mapping(self, key: str) -> dict[str, Any]:
        value = self._document.get(key)
        if not isinstance(value, dict):
            raise ConfigError(f"{self._file}: damaged, it has no '{key}'")
        return value

    @cached_property
    def _document(self) -> dict[str, Any]:
        return read_json(self._file, PACK)


def listed(document: Mapping[str, Any], file: Path) -> dict[str, Sum]:
    """Return the files that a pack's document lists. Raises ConfigError where they are no names."""
    return typed(_FILES, document.get("files"), file)


def _rows(columns: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    yield from zip(*columns.values(), strict=True)
