"""The options of metrics that an experiment states: a value taken with others is not read."""

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from pydantic import ValidationError

from llama_ablate.config.experiment import Experiment
from llama_ablate.config.registry import Entry
from llama_ablate.errors import ConfigError
from llama_ablate.results.metrics import Measurement
from llama_ablate.results.protocol import Version


class StatedMetrics:
    """The metrics of an experiment file, with their options, and those that it stated at first."""

    def __init__(self, experiment: Experiment, protocol: Callable[[], Sequence[Version]]) -> None:
        # As a file has them, where a tuple is a list.
        self._now = _by_name(json.loads(json.dumps(experiment.measure)))
        self._protocol = protocol

    @cached_property
    def _first(self) -> Mapping[str, Entry]:
        """What the file stated before the first run; nothing where that is not known."""
        first = next(iter(self._protocol()), None)
        if first and first.whole:
            with contextlib.suppress(ValidationError, ConfigError):  # of a grammar that has changed
                return _by_name(Experiment.model_validate(first.stated).measure)
        return {}

    def other(self, name: str, measured: Measurement) -> str:
        """Say how a metric was taken, where that is not as the file states; empty where it is.

        A measurement of an older version does not say its options: it has those of the file before
        the first run.
        """
        now = self._now.get(name, "")
        was = now and (measured.entry or self._first.get(name, now))
        if was == now:
            return ""
        return f"it was taken as '{_text(was)}', and the file now states '{_text(now)}'"

    def read(self, metrics: Mapping[str, Measurement]) -> dict[str, Measurement]:
        """Return metrics by name; of one taken with other options, why it has no values."""
        read = dict(metrics)
        for name, measured in metrics.items():
            if why := self.other(name, measured):
                error = f"{why}; `llama-ablate measure DIR {name}` takes it again"
                read[name] = Measurement(error=error, entry=measured.entry)
        return read


def _by_name(entries: Iterable[Entry]) -> dict[str, Entry]:
    return {_text(entry).partition(" ")[0]: entry for entry in entries}


def _text(entry: Entry) -> str:
    """Return an entry in one line, whatever a record that is read holds."""
    named = {"name": entry} if isinstance(entry, str) else entry
    options = (f"{key}={value}" for key, value in named.items() if key != "name")
    return " ".join([str(named.get("name")), *options])
