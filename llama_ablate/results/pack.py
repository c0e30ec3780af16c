"""Packed results: one experiment as a few small files.

<pack>/
pack.json         plan, protocol, metrics of variants; SHA-256 of the runs' file; sealed
runs.jsonl.gz     one run a line: its record with its metrics, and its learning curve by column
experiment.yaml   the experiment file as the user wrote it
report.md  effects*.png

Weights are left out. A pack is read by the commands that read a folder of results; none adds to it.
"""

import gzip
import hashlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import parse, read_json
from llama_ablate.results import plans, protocol
from llama_ablate.results.layout import Layout
from llama_ablate.results.live import Live
from llama_ablate.results.metrics import Measurement
from llama_ablate.results.plan import PlanDocument
from llama_ablate.results.protocol import Version
from llama_ablate.results.record import Record

RUNS = "runs.jsonl.gz"


class PackedRun:
    """A finished run in a pack."""

    path = None
    lacks_weights = False

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.foreign: list[Path] = []

    def record(self) -> Record:
        """Return the run's record with its metrics."""
        return Record.from_dict({k: v for k, v in self._values.items() if k != "curve"})

    def outcome(self) -> tuple[str, str]:
        """Return the outcome and its reason."""
        return self._values["outcome"], self._values["reason"]

    def curve(self) -> list[dict[str, float]]:
        """Return the learning curve, one row a point; NaN where a number was not taken."""
        columns = self._values["curve"]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class Pack:
    """The packed results in a folder. What is read is verified; damage raises ConfigError."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout(root)
        self._file = self.layout.pack

    @staticmethod
    def is_at(root: Path) -> bool:
        """Return whether a folder holds packed results."""
        return Layout(root).pack.is_file()

    @cached_property
    def plan(self) -> PlanDocument:
        """What was planned. Raises FormatError for a pack of another format."""
        return plans.validate(self._document.get("plan"), self._file)

    @property
    def protocol(self) -> list[Version]:
        """What the file stated before the first run had finished, and every change since.

        A pack from before there was a protocol has the hypotheses alone.
        """
        try:
            if "protocol" not in self._document:
                return protocol.of_hypotheses(self._document["hypotheses"])
            return [Version.model_validate(entry) for entry in self._document["protocol"]]
        except ValidationError as error:
            why = str(error).splitlines()[0]
            raise ConfigError(f"{self._file}: damaged, it holds no protocol ({why})") from None

    def finished(self) -> Mapping[str, PackedRun]:
        """Return the finished runs by id."""
        file = self.layout.root / RUNS
        try:
            content = file.read_bytes()
        except FileNotFoundError:
            raise ConfigError(f"{self.layout.root}: damaged, it lacks {RUNS}") from None
        if hashlib.sha256(content).hexdigest() != self._document["runs"]["sha256"]:
            raise ConfigError(f"{file}: damaged, not what was written there")
        lines = (parse(line, file) for line in gzip.decompress(content).splitlines())
        return {values["id"]: PackedRun(values) for values in lines}

    def metrics_of(self, variants: Iterable[str]) -> dict[str, dict[str, Measurement]]:
        """Return the metrics of variants, by variant and name."""
        stored = self._document["variants"]
        return {
            variant: {k: Measurement.from_dict(v) for k, v in stored.get(variant, {}).items()}
            for variant in variants
        }

    def is_leased(self, _run: str) -> bool:
        """Return whether somebody is at work on a run: never on a packed one."""
        return False

    def live(self, _runs: Iterable[str]) -> dict[str, Live]:
        """Return how far runs are: none of a pack is at work."""
        return {}

    def lock_report(self) -> AbstractContextManager[object]:
        """Raise ConfigError for a link; nobody waits for a lease, as a pack has none."""
        for path in disk.links_below(self.layout.root):
            if self.layout.track in path.parents:
                continue
            raise ConfigError(f"'{path}' is a link: results are kept in real folders and files")
        return nullcontext()

    @cached_property
    def _document(self) -> dict[str, Any]:
        return dict(read_json(self._file, self._file.name))
