"""Interface and registry of sinks, which send runs to experiment trackers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from llama_ablate.config.registry import Registry
from llama_ablate.errors import ConfigError, require
from llama_ablate.results import Record
from llama_ablate.results.plan_document import PlanDocument
from llama_ablate.terminal import in_one_line


@dataclass(frozen=True)
class TrackedRun:
    """Planned run with the names and the config that trackers show."""

    #: The run id, the experiment's name, the variant's label, and label with seed.
    id: str
    project: str
    group: str
    name: str
    #: Seed, spec and train config as plain, nested values.
    config: Mapping[str, Any]

    @classmethod
    def of(cls, plan: PlanDocument, run_id: str) -> "TrackedRun":
        """Build the names and the config of a run from its plan."""
        run, table = plan.runs[run_id], plan.table_of(run_id)
        variant = table.variant(run.variant)
        train = run.train_config(plan.experiment.train).model_dump(mode="json")
        config = {"table": table.name, "seed": run.seed, "model": variant.model, "train": train}
        return cls(run_id, plan.experiment.name, variant.label, plan.run_name(run), config)


class Sink(Protocol):
    """Sender of one run to a tracker, which replaces what the tracker has of the run."""

    #: The module that has to be installed; "" for none.
    package: str

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send finite numbers by name: a point of the learning curve, or the final metrics."""

    def finish(self, outcome: str) -> None:
        """Send the outcome, and close the run."""


#: Registry of sinks, which begin their run when they are made.
SINKS = Registry("sink", sizes=["folder", "run"], interface=Sink)


def checked(names: Sequence[str], flag: str) -> list[str]:
    """Validate the sinks that a command-line flag names; return each name once.

    Raises ConfigError for an unknown sink, and for a sink whose package is not installed.
    """
    for name in names:
        try:
            SINKS.resolve(name)
        except ConfigError as error:
            raise ConfigError(f"{flag} {name}: {error.message}") from None
        if package := getattr(SINKS.get(name), "package", ""):
            require(package, f"{flag} {name}")
    return list(dict.fromkeys(names))


class Sinks:
    """Sinks of one run. A sink that fails is left, after a call of `fail` with name and reason."""

    def __init__(
        self, names: Sequence[str], folder: Path, run: TrackedRun, fail: Callable[[str, str], None]
    ) -> None:
        self._fail, self._sent = fail, 0
        self._open: dict[str, Any] = dict.fromkeys(names)
        self._each(lambda name, _: SINKS.build(SINKS.resolve(name), folder=folder, run=run))

    def send(self, curve: Sequence[Mapping[str, float]]) -> None:
        """Send the points of a learning curve that are new since the last call."""
        new, self._sent = curve[self._sent :], len(curve)
        for point in new:
            self._log(int(point["step"]), {k: v for k, v in point.items() if k != "step"})

    def finish(self, record: Record) -> None:
        """Send final metrics and outcome, and close the run."""
        numbers = {"train_s": record.train_s, **record.numbers}
        self._log(record.steps_done, {f"final/{name}": value for name, value in numbers.items()})
        self._each(lambda _, sink: sink.finish(record.outcome))

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        self._each(lambda _, sink: sink.log(step, finite))

    def _each(self, call: Callable[[str, Any], Any]) -> None:
        """Call a function with the name of each sink and the sink, which its result replaces."""
        for name, sink in [*self._open.items()]:
            try:
                self._open[name] = call(name, sink) or sink
            except Exception as error:  # noqa: BLE001  whatever a tracker's package raises
                del self._open[name]
                said = f"{type(error).__name__}: {error}".splitlines()[0]
                self._fail(name, in_one_line(said)[:200])
