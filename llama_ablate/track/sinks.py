"""Interface and registry of sinks, which send runs to experiment trackers."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Protocol

from llama_ablate.config.registry import Registry
from llama_ablate.errors import ConfigError, nearest
from llama_ablate.files.strict_json import to_line
from llama_ablate.results import Record
from llama_ablate.results.plan_document import PlanDocument
from llama_ablate.terminal import in_one_line

_PATIENCE_S = 10.0  # longest wait for the sinks of a run that has ended
_MAX_REASON = 200  # characters of a tracker's error message


@dataclass(frozen=True)
class TrackedRun:
    """Run with the names and the config that trackers show."""

    #: The run id, which is the same whenever the run is sent.
    id: str
    #: The experiment's name.
    project: str
    #: The variant's label.
    group: str
    #: Label and seed; also the table if there are several, and the values of a tuned point.
    name: str
    #: Spec, train config, seeds, ids, text and sizes as plain, nested values.
    config: Mapping[str, Any]

    @property
    def flat(self) -> dict[str, str | int | float | bool]:
        """The config with dotted keys; lists are JSON text."""
        from pandas import json_normalize  # 0.5 s, which no run without trackers has to wait for

        (flat,) = json_normalize(dict(self.config)).to_dict("records")
        plain = str | int | float | bool
        return {str(k): v if isinstance(v, plain) else to_line(v) for k, v in flat.items()}

    @classmethod
    def of(cls, plan: PlanDocument, run_id: str) -> "TrackedRun":
        """Build the names and the config of a run from its plan."""
        run, table = plan.runs[run_id], plan.table_of(run_id)
        variant = table.variant(run.variant)
        config = {
            "table": table.name,
            "tokens": table.tokens_per_run,
            "text": table.text_of(variant).model_dump(include={"corpus", "fingerprint", "vocab"}),
            "train": run.train_config(plan.experiment.train).model_dump(mode="json"),
            **run.model_dump(include={"id", "variant", "seed", "tuned", "steps"}),
            **variant.model_dump(include={"label", "baseline", "parameters", "model"}),
        }
        return cls(run.id, plan.experiment.name, variant.label, plan.run_name(run), config)


class Sink(Protocol):
    """Sender of one run to a tracker; the run replaces its earlier version there.

    A sink is made and called in a thread of its own. Two class attributes are optional: `viewer`
    says how to view the runs, with `{folder}` for the folder of the sink's files; `at_end` says
    that runs are sent by one process when all have ended.
    """

    #: The module that has to be installed; "" for none.
    package: str

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send finite numbers by name: a point of the learning curve, or the final metrics."""

    def finish(self, outcome: str) -> None:
        """Send the outcome, and close the run."""


#: Registry of sinks, which begin their run when they are made.
SINKS = Registry("sink", sizes=["folder", "run"], interface=Sink)


def checked(names: Sequence[str], flag: str) -> list[str]:
    """Return the sinks that a command-line flag names, each once.

    Raises ConfigError for an unknown sink.
    """
    for name in names:
        if name not in SINKS:
            raise ConfigError(f"{flag} {name}: there is no such sink{nearest(name, SINKS)}")
    return list(dict.fromkeys(names))


class Sinks:
    """Open sinks of one run, each in a thread, so that they neither fail nor slow the run."""

    def __init__(self, names: Sequence[str], folder: Path, run: TrackedRun) -> None:
        #: Reason of the failure of each sink that failed, by name.
        self.failures: dict[str, str] = {}
        self._sent = 0
        self._queues: dict[str, SimpleQueue[Any]] = {name: SimpleQueue() for name in names}
        self._threads = {
            name: Thread(target=self._serve, args=(name, folder, run), daemon=True)
            for name in names
        }
        for thread in self._threads.values():
            thread.start()

    def send(self, curve: Sequence[Mapping[str, float]]) -> None:
        """Send the points of a learning curve that are new since the last call."""
        new, self._sent = curve[self._sent :], len(curve)
        for point in new:
            self.log(int(point["step"]), {k: v for k, v in point.items() if k != "step"})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send the finite numbers among values."""
        finite = {key: value for key, value in values.items() if math.isfinite(value)}
        self._queue_call(lambda sink: sink.log(step, finite))

    def finish(self, record: Record) -> None:
        """Send the final metrics and the outcome of a run, and close the run."""
        numbers = {"train_s": record.train_s, **record.numbers}
        self.log(record.steps_done, {f"final/{name}": value for name, value in numbers.items()})
        self.close(record.outcome)

    def close(self, outcome: str) -> None:
        """Send an outcome, and wait for the sinks: ten seconds for all of them together."""
        self._queue_call(lambda sink: sink.finish(outcome))
        self._queue_call(None)
        end = time.monotonic() + _PATIENCE_S
        for name, thread in self._threads.items():
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                self.failures[name] = f"no answer within {_PATIENCE_S:.0f} s"

    def _queue_call(self, call: Callable[[Any], object] | None) -> None:
        for queue in self._queues.values():
            queue.put(call)

    def _serve(self, name: str, folder: Path, run: TrackedRun) -> None:
        """Make a sink, and pass it the calls from its queue until it fails."""
        try:
            sink = SINKS.build(SINKS.resolve(name), folder=folder, run=run)
            while call := self._queues[name].get():
                call(sink)
        except Exception as error:  # noqa: BLE001  whatever a tracker's package raises
            words = f"{type(error).__name__}: {error}".split()
            self.failures[name] = in_one_line(" ".join(words))[:_MAX_REASON]
