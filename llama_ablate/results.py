"""What is on disk: the only code that knows file names. Records are committed whole, or not at all.

<results>/<experiment>/
experiment.yaml  plan.json  engine.json  pace.json  hypotheses.json
runs/<label>--s<seed>--<id>/    record.json curve.csv weights.safetensors manifest.json measures/
variants/<label>--<id>/         measures/<metric>.json
working/<id>.checkpoint         of runs that have not finished
report/
"""

import csv
import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from llama_ablate.errors import ConfigError, nearest
from llama_ablate.experiment import slug
from llama_ablate.strict_json import read_json, write_json, write_text

Outcome = Literal["ok", "diverged", "oom", "timeout", "error", "cancelled"]
#: Outcomes that say something about the variant; the others are tried again by the next `run`.
FINAL = ("ok", "diverged")
CURVE = ("step", "tokens", "lr", "train_loss_nats", "grad_norm", "validation_loss_nats", "train_s")


@dataclass(frozen=True)
class Record:
    """What a finished run leaves behind, apart from its curve, weights and measures."""

    id: str
    label: str
    variant: str
    seed: int
    outcome: Outcome
    reason: str
    steps_done: int
    tokens_done: int
    train_s: float
    peak_memory_bytes: int
    model: dict[str, Any]
    train: dict[str, Any]
    data: str
    engine: dict[str, Any]
    environment: dict[str, Any]
    measures: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the run went to its end."""
        return self.outcome == "ok"

    @property
    def numbers(self) -> dict[str, float]:
        """All measured numbers of the run, by name."""
        return {key: value for measure in self.measures.values() for key, value in measure.items()}


class Store:
    """The folder of one experiment's results."""

    def __init__(self, root: Path, table: int = 0) -> None:
        self.root = root
        self._table = table
        self.plan_file = root / "plan.json"
        self.report = root / "report"
        self._runs = root / "runs"
        self._variants = root / "variants"
        self._working = root / "working"

    @classmethod
    def open(cls, root: Path) -> "Store":
        """Open existing results. Raises ConfigError where there are none."""
        if not (root / "plan.json").is_file():
            there = sorted(p.parent.name for p in root.glob("*/plan.json"))
            others = there or sorted(p.parent.name for p in root.parent.glob("*/plan.json"))
            hint = nearest(root.name, others) if others else ""
            raise ConfigError(f"'{root}' holds no results (no plan.json){hint}")
        return cls(root)

    def prepare(self) -> None:
        """Make the folders. Raises ConfigError where that cannot be done."""
        try:
            for folder in (self._runs, self._variants, self._working):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None

    def create(self, plan: Mapping[str, Any], experiment_text: str) -> None:
        """Make the folder and write the plan. Raises ConfigError where that cannot be done."""
        self.prepare()
        try:
            write_text(self.root / "experiment.yaml", experiment_text)
            if not self._committed():  # from the first finished run on, what was stated stands
                stated = plan.get("experiment", {}).get("hypotheses", [])
                write_json(self.root / "hypotheses.json", stated)
            write_json(self.plan_file, plan)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> ConfigError:
        why = error.strerror or error
        return ConfigError(f"the results folder '{self.root}' cannot be written: {why}")

    @property
    def plan(self) -> dict[str, Any]:
        """What was planned for this table, as plain values."""
        found = self._whole_plan
        return found if self._table == 0 else {**found, **found["others"][self._table - 1]}

    @property
    def _whole_plan(self) -> dict[str, Any]:
        found = read_json(self.plan_file)
        if not isinstance(found, dict) or "runs" not in found:
            raise ConfigError(f"'{self.plan_file}' is damaged: it holds no plan")
        return found

    @property
    def tables(self) -> list["Store"]:
        """The same results, seen as each of the experiment's tables: a text, a size, a budget."""
        others = self._whole_plan.get("others", [])
        return [Store(self.root, table) for table in range(1 + len(others))]

    def table_of(self, run: str) -> "Store":
        """Return the first table that has a run."""
        return next(t for t in self.tables if any(r["id"] == run for r in t.plan["runs"]))

    @property
    def stated(self) -> list[dict[str, Any]]:
        """The hypotheses as they stood before the first run had finished."""
        file = self.root / "hypotheses.json"
        return list(read_json(file)) if file.is_file() else []

    @property
    def experiment_text(self) -> str:
        """The experiment file as the user wrote it."""
        return (self.root / "experiment.yaml").read_text("utf-8")

    @property
    def engine(self) -> dict[str, Any] | None:
        """How the planned runs compute, once that has been measured."""
        found: dict[str, Any] | None = self.plan.get("engine")
        return found

    def kept(self, name: str, key: str, measure: Callable[[], Any]) -> Any:
        """Return what was measured once for a key and then kept, in `<name>.json`."""
        file = self.root / f"{name}.json"
        known: dict[str, Any] = read_json(file) if file.is_file() else {}
        if key not in known:
            known[key] = measure()
            write_json(file, known)
        return known[key]

    def checkpoint(self, run: str) -> Path:
        """Where an unfinished run keeps its state."""
        return self._working / f"{run}.checkpoint"

    def log(self, name: str) -> Path:
        """Where a process writes what it prints."""
        return self._working / f"{name}.log"

    def commit(
        self,
        record: Record,
        curve: Iterable[Mapping[str, float]],
        save_weights: Callable[[Path], None] | None,
    ) -> Path:
        """Put a finished run in its place in one rename; the first final record stays.

        Everything is written beside the target and flushed to disk before. A record that is not
        final (`oom`, `error` ...) gives way to a new one.
        """
        self._runs.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=self._runs))
        try:
            partial.chmod(0o755)
            (partial / "measures").mkdir()
            with (partial / "curve.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, CURVE)
                writer.writeheader()
                writer.writerows(curve)
            values = asdict(record)
            for name, measured in values.pop("measures").items():
                write_json(partial / "measures" / f"{name}.json", measured)
            write_json(partial / "record.json", values)
            if save_weights:
                save_weights(partial / "weights.safetensors")
            write_json(partial / "manifest.json", _manifest(partial))
            for path in [*partial.rglob("*"), partial]:
                _sync(path)
            target = self._runs / f"{slug(record.label)}--s{record.seed}--{record.id}"
            standing = self.folder(record.id)
            if standing:
                if self._read_record(standing).outcome in FINAL:
                    return standing
                shutil.rmtree(standing)
            partial.rename(target)
            _sync(self._runs)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        if record.outcome in FINAL:
            self.checkpoint(record.id).unlink(missing_ok=True)
        return target

    def record(self, run: str) -> Record | None:
        """Return a run's record, or None where it has not finished."""
        folder = self.folder(run)
        return self._read_record(folder) if folder else None

    def records(self) -> list[Record]:
        """Return the records of the planned runs, in the plan's order, as far as they finished."""
        folders = {path.name.rsplit("--", 1)[1]: path for path in self._committed()}
        return [
            self._read_record(folders[run["id"]])
            for run in self.plan["runs"]
            if run["id"] in folders
        ]

    def curve(self, run: str) -> list[dict[str, float]]:
        """Return a finished run's learning curve; an empty cell is a number not taken there."""
        folder = self.folder(run)
        if folder is None:
            return []
        with (folder / "curve.csv").open(newline="") as file:
            return [
                {key: float(text) if text else math.nan for key, text in row.items()}
                for row in csv.DictReader(file)
            ]

    def weights(self, run: str) -> Path | None:
        """Return the file of a finished run's weights, where it has one."""
        folder = self.folder(run)
        file = folder / "weights.safetensors" if folder else None
        return file if file and file.is_file() else None

    def add_run_measure(self, run: str, name: str, values: Mapping[str, float]) -> None:
        """Add a measure to a finished run."""
        folder = self.folder(run)
        assert folder is not None, run
        write_json(folder / "measures" / f"{name}.json", values)

    def add_variant_measure(self, label: str, variant: str, name: str, values: object) -> None:
        """Add a per-variant measure: {values, samples, engine}."""
        folder = self._variants / f"{slug(label)}--{variant}" / "measures"
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{name}.json", values)

    def variant_measures(self, variant: str) -> dict[str, dict[str, Any]]:
        """Return a variant's own measures, by metric."""
        files = sorted(self._variants.glob(f"*--{variant}/measures/*.json"))
        return {file.stem: dict(read_json(file)) for file in files}

    def _committed(self) -> list[Path]:
        return [path for path in self._runs.glob("*--s*--*") if path.is_dir()]

    def folder(self, run: str) -> Path | None:
        """Return where a finished run lies."""
        return next(iter(self._runs.glob(f"*--{run}")), None)

    def _read_record(self, folder: Path) -> Record:
        measures = {
            file.stem: dict(read_json(file)) for file in sorted(folder.glob("measures/*.json"))
        }
        return Record(**read_json(folder / "record.json"), measures=measures)


def _manifest(folder: Path) -> dict[str, dict[str, object]]:
    """Sizes and SHA-256 of what a run wrote; measures may be added later and are not in it."""
    files = sorted(p for p in folder.iterdir() if p.is_file())
    return {
        p.name: {"bytes": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
        for p in files
    }


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
