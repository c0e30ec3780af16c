"""The protocol of an experiment: what its file stated before the first run, and later changes."""

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from llama_ablate.config.experiment import Experiment, Hypothesis
from llama_ablate.config.registry import Entry
from llama_ablate.errors import ConfigError
from llama_ablate.results.plan_document import PlanDocument, StoredPart
from llama_ablate.results.record import Measurement, Record
from llama_ablate.terminal import plural

#: What no verdict depends on: names, and which numbers are measured beside the losses.
_FREE = {"name", "question", "base", "measure"}
#: What a hypothesis says of its source, which is no part of the test.
_ABOUT = {"source", "said"}


class Replaced(StoredPart):
    """A control that a later version of the file no longer has, and how it had ended."""

    label: str
    #: How its finished runs ended.
    outcomes: list[str]
    #: Its mean loss minus the baseline's, over the runs that both finished; None without one.
    difference_nats: float | None = None


class Redone(StoredPart):
    """A variant whose finished runs were trained again on request."""

    label: str
    #: How those runs had ended.
    outcomes: list[str]


def _with_hypotheses(stated: dict[str, Any]) -> dict[str, Any]:
    entries = stated.get("hypotheses", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("hypotheses are a list of what each states")
    return stated


_Stated = Annotated[dict[str, Any], AfterValidator(_with_hypotheses)]


class Version(StoredPart):
    """What an experiment file stated from a moment on: the keys that differ from the defaults."""

    #: How many runs had finished before; None where that was not noted.
    after_runs: int | None = 0
    stated: _Stated
    #: Whether it is all that the file stated, or the hypotheses alone.
    whole: bool = True
    replaced: list[Replaced] = Field(default_factory=list)
    #: What was asked to be trained again at that moment.
    redone: list[Redone] = Field(default_factory=list)


@dataclass(frozen=True)
class ProtocolChange:
    """A key of the file that was changed after runs had finished."""

    key: str
    before: Any
    after: Any
    version: Version

    @property
    def when(self) -> str:
        """When it was changed: `after 3 runs had finished`."""
        runs = self.version.after_runs
        number = "" if runs is None else f"{runs} "
        return f"after {number}{plural(runs or 0, 'run')} had finished"


def version(
    experiment: Experiment, after_runs: int | None, replaced: Sequence[Replaced] = ()
) -> Version:
    """Return what an experiment states."""
    stated = experiment.model_dump(mode="json", exclude_defaults=True)
    return Version(after_runs=after_runs, stated=stated, replaced=list(replaced))


_VERSIONS = TypeAdapter(list[Version])
_HYPOTHESES = TypeAdapter(list[Hypothesis])


def stated_in(stored: Mapping[str, Any], file: Path) -> list[Version]:
    """Return the versions that a sealed document holds; none where it holds nothing.

    One from before there was a protocol has the hypotheses alone. Raises ConfigError for a document
    that another version of the program wrote.
    """
    if not {"versions", "hypotheses"} & stored.keys():
        return []
    try:
        if "versions" in stored:
            return _VERSIONS.validate_python(stored["versions"])
        hypotheses = _HYPOTHESES.validate_python(stored["hypotheses"])
    except (ValidationError, ConfigError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"'{file}': another version of the program wrote it ({why})") from None
    of_file = [entry.model_dump(mode="json") for entry in hypotheses]
    return [Version(stated={"hypotheses": of_file}, whole=False)]


def extended(
    versions: Sequence[Version], experiment: Experiment, after_runs: int, replaced: list[Replaced]
) -> list[Version]:
    """Return a protocol with what is stated now, where that is not what was stated last."""
    now = version(experiment, after_runs, replaced)
    if versions and versions[-1].whole and not any(_differences(versions[-1], now)):
        return list(versions)
    return [*versions, now]


def replaced(
    before: PlanDocument, now: PlanDocument, records: Mapping[str, Record]
) -> list[Replaced]:
    """Return the controls of a plan that another leaves out, and how they had ended.

    `records` are those of finished runs by id. A difference is over the runs of the same seed at
    the same point.
    """
    kept = {variant.id for table in now.tables for variant in table.variants}
    gone = []
    for table in before.tables:
        ended: dict[str, dict[tuple[int, str], Record]] = {v.id: {} for v in table.variants}
        for run in table.runs:
            if run.id in records:
                ended[run.variant][run.seed, str(run.tuned)] = records[run.id]
        base = ended[table.baseline.id]
        for variant in table.variants:
            if not variant.role or variant.id in kept:
                continue
            own = ended[variant.id]
            shared = [_loss(own[at]) - _loss(base[at]) for at in own.keys() & base.keys()]
            finite = [value for value in shared if math.isfinite(value)]
            mean = fmean(finite) if finite else None
            outcomes = [record.outcome for record in own.values()]
            gone.append(Replaced(label=variant.label, outcomes=outcomes, difference_nats=mean))
    return gone


def _loss(record: Record) -> float:
    """Return the loss that is reported of a run: on the test split where there is one."""
    numbers = record.numbers
    return numbers.get("test_loss_nats", numbers.get("validation_loss_nats", math.nan))


def changes(versions: Sequence[Version], now: Experiment) -> list[ProtocolChange]:
    """Return what was changed from version to version, as far as the one that is planned now."""
    return [
        ProtocolChange(key, before, after, later)
        for earlier, later in pairwise(_until(versions, now))
        for key, before, after in _differences(earlier, later)
    ]


def unplanned_looks(versions: Sequence[Version], now: Experiment) -> int:
    """Return how many times seeds were added once runs had finished."""
    stated = filter(None, map(_experiment, _until(versions, now)))
    return sum(len(b.seed_list) > len(a.seed_list) for a, b in pairwise(stated))


def _experiment(version: Version) -> Experiment | None:
    """Return the experiment that a version states; None of hypotheses alone, or another grammar."""
    if version.whole:
        with contextlib.suppress(ValidationError, ConfigError):
            return Experiment.model_validate(version.stated)
    return None


def _until(versions: Sequence[Version], now: Experiment) -> list[Version]:
    """Return the versions as far as the one that is planned now: a report may be of an earlier."""
    current = version(now, None)
    ends = [i for i, one in enumerate(versions, 1) if not any(_differences(one, current))]
    return list(versions[: ends[-1]]) if ends else [*versions, current]


def _differences(one: Version, other: Version) -> Iterator[tuple[str, Any, Any]]:
    """Yield each key that two versions state differently, with both values."""
    a, b = (dict(_leaves(_filled(stated))) for stated in (one, other))
    if not (one.whole and other.whole):
        a, b = (
            {k: v for k, v in leaves.items() if k.startswith("hypothesis ")} for leaves in (a, b)
        )
    for key in dict.fromkeys([*a, *b]):
        if a.get(key) != b.get(key):
            yield key, a.get(key), b.get(key)


def _filled(version: Version) -> Mapping[str, Any]:
    """Return all that a version states, with the defaults of what it leaves out."""
    values: Mapping[str, Any] = version.stated
    if experiment := _experiment(version):
        # The repeated baseline is there by default, and was not in earlier versions.
        drawn = [reseed for reseed in experiment.controls.aa if reseed != "none"]
        controls = experiment.controls.model_copy(update={"aa": drawn})
        values = experiment.model_copy(update={"controls": controls}).model_dump(mode="json")
    return {key: value for key, value in values.items() if key not in _FREE}


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value below a mapping by its path; a list of plain values is one.

    A hypothesis is known by what it states, not by its place in the list.
    """
    if key == "hypotheses":
        for entry in value:
            stated = [f"{k} {v}" for k, v in entry.items() if v is not None and k not in _ABOUT]
            yield f"hypothesis '{', '.join(stated)}'", "stated"
        return
    if isinstance(value, Mapping):
        inner = [(f"{key}.{k}" if key else str(k), v) for k, v in value.items()]
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        inner = [(f"{key}[{i}]", v) for i, v in enumerate(value)]
    else:
        yield key, value
        return
    for path, below in inner:
        if path.rpartition(".")[2] not in _ABOUT:
            yield from _leaves(below, path)


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
        experiment = first and _experiment(first)
        return _by_name(experiment.measure) if experiment else {}

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
