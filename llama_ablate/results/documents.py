"""The sealed documents beside the runs: measured once, stated before, or measured of variants."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import ValidationError

from llama_ablate.config.experiment import Hypothesis, slug
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import read_json, sealed
from llama_ablate.results.damaged import set_aside
from llama_ablate.results.leases import Lease
from llama_ablate.results.metrics import Measurement

_MEASURED = ("compute", "pace")
_STATED = "hypotheses"


class Documents:
    """`compute.json`, `pace.json`, `hypotheses.json`, and `variants/` with their metrics."""

    def __init__(self, root: Path, unsealed: Callable[[], bool]) -> None:
        """`unsealed` says whether documents may lack seals, as in format 1."""
        self._root, self._unsealed = root, unsealed
        self.variants = root / "variants"

    def measured(self, name: str) -> dict[str, Any]:
        """Return what has been measured so far, by what it was measured for."""
        file = self._root / f"{name}.json"
        return dict(self._read(file)) if file.is_file() else {}

    def stated(self) -> list[Hypothesis]:
        """Return the hypotheses as they stood before the first run had finished."""
        file = self._root / f"{_STATED}.json"
        try:
            entries = self._read(file)["hypotheses"] if file.is_file() else []
            return [Hypothesis.model_validate(entry) for entry in entries]
        except (ConfigError, ValidationError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{error}. What was stated before the first run cannot be made again;"
                f" to go on without it: rm {quote(str(file))}"
            ) from None

    def keep_measured(self, lease: Lease, name: str, values: Mapping[str, Any]) -> None:
        """Write what has been measured so far."""
        self._write(lease, self._root / f"{name}.json", values)

    def keep_stated(self, lease: Lease, hypotheses: Sequence[Hypothesis]) -> None:
        """Write the hypotheses."""
        entries = [hypothesis.model_dump(mode="json") for hypothesis in hypotheses]
        self._write(lease, self._root / f"{_STATED}.json", {"hypotheses": entries})

    def add_variant_metric(
        self, lease: Lease, label: str, variant: str, name: str, metric: Measurement
    ) -> None:
        """Add a per-variant metric."""
        folder = self.variants / f"{slug(label)}--{variant}" / "metrics"
        disk.make(folder)
        self._write(lease, folder / f"{name}.json", metric.to_dict())

    def variant_metrics(self, variant: str) -> dict[str, Measurement]:
        """Return a variant's own metrics by name. Raises ConfigError for a damaged one."""
        try:
            files = self._metrics(self.of_variants().get(variant, []))
            return {file.stem: Measurement.from_dict(self._read(file)) for file in files}
        except ConfigError as error:
            raise ConfigError(f"{error}; 'run' and 'measure' measure it again") from None

    def of_variants(self) -> dict[str, list[Path]]:
        """Return the folders of what was measured of variants, by variant."""
        found: dict[str, list[Path]] = {}
        for name in disk.names(self.variants):
            found.setdefault(name.rpartition("--")[2], []).append(self.variants / name)
        return found

    def set_aside(self) -> list[Path]:
        """Take what is damaged and can be measured again out of the way; return where it went."""
        self._unsealed()  # a later version's are none of our business
        moved = []
        for file in self._can_be_made_again():
            try:
                self._read(file)
            except ConfigError:
                moved.append(set_aside(self._root, file))
        return moved

    def seal(self, lease: Lease) -> None:
        """Give documents of format 1 their seals; what is damaged stays as it is."""
        with contextlib.suppress(ConfigError):
            self.keep_stated(lease, self.stated())
        for file in self._can_be_made_again():
            with contextlib.suppress(ConfigError):
                self._write(lease, file, self._read(file))

    def _can_be_made_again(self) -> Iterator[Path]:
        yield from (f for name in _MEASURED if (f := self._root / f"{name}.json").is_file())
        yield from self._metrics([folder for of in self.of_variants().values() for folder in of])

    @staticmethod
    def _metrics(folders: Iterable[Path]) -> list[Path]:
        # What begins with a dot is a file manager's.
        return sorted(file for folder in folders for file in folder.glob("metrics/[!.]*.json"))

    def _read(self, file: Path) -> Any:
        return read_json(file, self._place(file), unsealed=self._unsealed())

    def _write(self, lease: Lease, file: Path, values: Mapping[str, object]) -> None:
        lease.replace(file, sealed(values, self._place(file)))

    def _place(self, file: Path) -> str:
        return file.relative_to(self._root).as_posix()
