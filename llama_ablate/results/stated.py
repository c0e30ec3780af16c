"""The options of metrics that an experiment states: a value taken with others is not read."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from llama_ablate.config.experiment import Experiment
from llama_ablate.config.registry import Entry, entry_text
from llama_ablate.config.spec import digest
from llama_ablate.results.metrics import Measurement
from llama_ablate.results.protocol import Version


class StatedMetrics:
    """The metrics of an experiment file, with their options, and those that it stated at first."""

    def __init__(self, experiment: Experiment, protocol: Callable[[], Sequence[Version]]) -> None:
        self._now, self._protocol = _by_name(experiment.measure), protocol

    @cached_property
    def _first(self) -> Mapping[str, Entry]:
        """What the file stated before the first run; nothing where that is not known."""
        first = next(iter(self._protocol()), None)
        if first is None or not first.whole:
            return {}
        return _by_name(first.stated.get("measure", Experiment.model_fields["measure"].default))

    def read(self, metrics: Mapping[str, Measurement]) -> dict[str, Measurement]:
        """Return metrics by name; of one that was taken with other options, why it has no values.

        A measurement of an older version does not say its options: it has those of the file before
        the first run.
        """
        return {name: self._read(name, measured) for name, measured in metrics.items()}

    def _read(self, name: str, measured: Measurement) -> Measurement:
        now = self._now.get(name, "")
        was = now and (measured.entry or self._first.get(name, now))
        if was == now or digest(was) == digest(now):  # a list of a file may be a tuple here
            return measured
        why = (
            f"it was taken as '{entry_text(was)}', and the file now states '{entry_text(now)}'; "
            f"`llama-ablate measure DIR {name}` takes it again"
        )
        return Measurement(error=why, entry=was)


def _by_name(entries: Iterable[Entry]) -> dict[str, Entry]:
    return {entry if isinstance(entry, str) else entry["name"]: entry for entry in entries}
