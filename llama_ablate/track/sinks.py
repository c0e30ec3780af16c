"""Interface and registry of sinks, which send runs to experiment trackers."""

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
    """Planned run with the names and the config that trackers show."""

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
        return dict(_flat("", self.config))

    @classmethod
    def of(cls, plan: PlanDocument, run: PlannedRun) -> "TrackedRun":
        """Build the names and the config of a run from its plan."""
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
    """Sender of one run to a tracker; after an error, a new sender is made.

    An optional class attribute `viewer` says how to view the runs that were sent; `{folder}` in the
    text is replaced by the folder of the sink's files.
    """

    #: The module that has to be installed; "" for none.
    package: str

    def open(self, run: TrackedRun) -> int:
        """Begin or resume a run in the tracker; return its last step, or -1.

        A run is resumed if the tracker has a run with the same id.
        """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send a point of the learning curve: finite numbers by column."""

    def finish(self, outcome: str, metrics: Mapping[str, float]) -> None:
        """Send the outcome and the metrics, and close the run.

        The outcome `cancelled` means that the run has not ended, and may be opened again.
        """


#: Registry of sinks; `folder` is the folder for a sink's files of an experiment.
SINKS = Registry("sink", sizes=["folder"], interface=Sink)


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
