"""The registry of sinks, and a run as they are given it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from llama_ablate.config.registry import Registry
from llama_ablate.errors import ConfigError, require
from llama_ablate.files.strict_json import to_line
from llama_ablate.results.plan_document import PlanDocument, PlannedRun


@dataclass(frozen=True)
class TrackedRun:
    """Planned run under its name in trackers, with its config."""

    #: Identifies the run: it is the same whenever the run is sent.
    id: str
    #: The experiment's name.
    project: str
    #: The variant's label.
    group: str
    #: Label and seed; of several tables also the table, of tuned points their values.
    name: str
    #: Spec, train config, seeds, ids, text and sizes as plain, nested values.
    config: Mapping[str, Any]

    @property
    def flat(self) -> dict[str, str | int | float | bool]:
        """The config with dotted keys; lists as JSON."""
        return dict(_flat("", self.config))

    @classmethod
    def of(cls, plan: PlanDocument, run: PlannedRun) -> "TrackedRun":
        """Name a run of a plan."""
        table = plan.table_of(run.id)
        variant = table.variant(run.variant)
        text = table.text_of(variant)
        config = {
            "experiment": plan.experiment.name,
            "table": table.name,
            "run": run.id,
            "variant": variant.id,
            "label": variant.label,
            "baseline": variant.baseline,
            "seed": run.seed,
            "init_seed": run.init_seed,
            "order_seed": run.order_seed,
            "tuned": run.tuned,
            "steps": run.steps,
            "tokens": table.tokens_per_run,
            "parameters": variant.parameters,
            "non_embedding": variant.non_embedding,
            "text": {"corpus": text.corpus, "fingerprint": text.fingerprint, "vocab": text.vocab},
            "model": variant.model,
            "train": run.train_config(plan.experiment.train).model_dump(mode="json"),
        }
        return cls(run.id, plan.experiment.name, variant.label, plan.run_name(run), config)


class Sink(Protocol):
    """Sender of one run to a tracker; after an error the run is sent again later.

    A class attribute `viewer`, if there is one, says how to look at what was sent; `{folder}` in it
    stands for the folder of the sink's files.
    """

    #: The module that has to be installed; "" for none.
    package: str

    def open(self, run: TrackedRun) -> int:
        """Begin a run, or resume the run with its id; return its last step, or -1."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send a point of the learning curve: finite numbers by column."""

    def finish(self, outcome: str, metrics: Mapping[str, float]) -> None:
        """Send the outcome and the metrics, and close the run.

        `cancelled` is a run that has not ended: it may be opened again.
        """


#: `folder` is where a sink may keep files of an experiment.
SINKS = Registry("sink", sizes=["folder"], interface=Sink)


def checked(names: Sequence[str], flag: str) -> list[str]:
    """Return the sinks of a command line, each once.

    Raises ConfigError for an unknown one, and for one whose package is not installed.
    """
    for name in names:
        try:
            SINKS.resolve(name)
        except ConfigError as error:
            raise ConfigError(f"{flag} {name}: {error.message}") from None
        if package := getattr(SINKS.get(name), "package", ""):
            require(package, f"{flag} {name}")
    return list(dict.fromkeys(names))


def make(name: str, folder: Path) -> Sink:
    """Return a new sink, for one run. Raises ConfigError for an unknown name."""
    sink: Sink = SINKS.build(SINKS.resolve(name), folder=folder)
    return sink


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str | int | float | bool]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{key}.", value)
        else:
            plain = isinstance(value, str | int | float | bool)
            yield f"{prefix}{key}", value if plain else to_line(value)
