"""Sealed documents beside the runs: compute, pace, protocol, and metrics of variants."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import read_json, sealed
from llama_ablate.results import protocol
from llama_ablate.results.layout import METRICS, Layout
from llama_ablate.results.leases import Lease
from llama_ablate.results.metrics import Measurement
from llama_ablate.results.protocol import Version

_MEASURED = ("compute", "pace")
_PROTOCOL = "protocol"
_HYPOTHESES = "hypotheses"  # what earlier versions wrote in its place


class Documents:
    """`compute.json`, `pace.json`, `protocol.json`, and the metrics below `variants/`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def measured(self, name: str) -> dict[str, Any]:
        """Return a document of what is measured once for an experiment; empty without a file."""
        file = self._layout.document(name)
        return dict(self._read(file)) if file.is_file() else {}

    def keep_measured(self, lease: Lease, name: str, values: Mapping[str, Any]) -> None:
        """Write a document of what is measured once for an experiment."""
        self._write(lease, self._layout.document(name), values)

    def protocol(self) -> list[Version]:
        """Return what the file stated before the first run had finished, and every change since.

        Empty without a file. Results from before there was a protocol have their hypotheses alone.
        """
        file = self._layout.document(_PROTOCOL)
        file = file if file.is_file() else self._layout.document(_HYPOTHESES)
        try:
            stored = self._read(file) if file.is_file() else {}
        except ConfigError as error:
            raise ConfigError(
                f"{error}. What was stated before the first run cannot be made again;"
                f" to go on without it: rm {quote(str(file))}"
            ) from None
        return protocol.stated_in(stored, file)

    def keep_protocol(self, lease: Lease, versions: Sequence[Version]) -> None:
        """Write the protocol."""
        entries = [version.model_dump(mode="json") for version in versions]
        self._write(lease, self._layout.document(_PROTOCOL), {"versions": entries})

    def add_variant_metric(
        self, lease: Lease, label: str, variant: str, name: str, metric: Measurement
    ) -> None:
        """Add a per-variant metric."""
        file = self._layout.variant_metric(label, variant, name)
        disk.make(file.parent)
        self._write(lease, file, metric.to_dict())

    def variant_metrics(self, variants: Iterable[str]) -> dict[str, dict[str, Measurement]]:
        """Return the metrics of variants, by variant and name; lists the folder once.

        Raises ConfigError for a damaged one.
        """
        files = self._metrics()
        try:
            return {
                variant: {
                    file.stem: Measurement.from_dict(self._read(file), file)
                    for file in files.get(variant, [])
                }
                for variant in variants
            }
        except ConfigError as error:
            raise ConfigError(f"{error}; 'run' and 'measure' measure it again") from None

    def quarantine(self) -> list[Path]:
        """Move damaged documents that can be measured again away; return where they are now."""
        moved = []
        for file in self._measurable():
            try:
                self._read(file)
            except ConfigError:
                moved.append(self._layout.quarantine(file))
        return moved

    def _measurable(self) -> Iterator[Path]:
        documents = (self._layout.document(name) for name in _MEASURED)
        yield from (file for file in documents if file.is_file())
        yield from chain.from_iterable(self._metrics().values())

    def _metrics(self) -> dict[str, list[Path]]:
        """Return the files of metrics, by variant."""
        files: dict[str, list[Path]] = {}
        for name in sorted(disk.names(self._layout.variants)):
            folder = self._layout.variants / name / METRICS
            # What begins with a dot is a file manager's.
            files.setdefault(name.rpartition("--")[2], []).extend(sorted(folder.glob("[!.]*.json")))
        return files

    def _read(self, file: Path) -> Any:
        return read_json(file, self._layout.place(file))

    def _write(self, lease: Lease, file: Path, values: Mapping[str, object]) -> None:
        lease.replace(file, sealed(values, self._layout.place(file)))
