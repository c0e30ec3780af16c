"""Protocol of an experiment: its file before the first run, and later changes."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from llama_ablate.config.experiment import Experiment
from llama_ablate.config.registry import Entry
from llama_ablate.config.stored import read_stored
from llama_ablate.errors import ConfigError
from llama_ablate.results.plan_document import PlanDocument, StoredPart
from llama_ablate.results.record import Measurement, Record
from llama_ablate.terminal import plural

#: Keys that change no verdict: names, and the list of metrics in addition to the losses.
_WITHOUT_EFFECT = ("name", "question", "base", "measure")
#: Keys of a hypothesis that cite its source and do not affect the test.
_SOURCE_KEYS = ("source", "said")
HYPOTHESIS = "hypothesis"
#: Lists of variants, which have a line for each entry, so that a change names the one added.
_LISTS = ("variants.axes.", "variants.entries")


class Replaced(StoredPart):
    """Protocol entry for a control that a later file version dropped, with its runs' outcomes."""

    label: str
    #: Outcomes of its finished runs.
    outcomes: list[str]
    #: Mean loss minus the baseline's, over runs that both finished; None without a shared run.
    difference_nats: float | None = None


class Redone(StoredPart):
    """Protocol entry for a variant whose finished runs were retrained on request."""

    label: str
    #: Outcomes of these runs before the retraining.
    outcomes: list[str]


class Version(StoredPart):
    """Version of an experiment file: the keys that differ from the defaults."""

    #: Number of runs that had finished before this version.
    after_runs: int = 0
    stated: dict[str, Any]
    replaced: list[Replaced] = Field(default_factory=list)
    #: Variants that were retrained on request at that moment.
    redone: list[Redone] = Field(default_factory=list)

    @cached_property
    def experiment(self) -> Experiment:
        """Experiment of this version, limited to keys that today's schema knows."""
        return read_stored(Experiment, self.stated).section

    @cached_property
    def lines(self) -> list[str]:
        """Stated values as `key: value` lines, without keys that change no verdict."""
        return list(_lines_of(self.stated))

    def states(self, experiment: Experiment) -> bool:
        """Return whether this version states an experiment, comparing only today's schema keys."""
        return version(self.experiment, 0).lines == version(experiment, 0).lines


@dataclass(frozen=True)
class ProtocolChange:
    """Change of a file after runs had finished, as lines of a diff."""

    #: Each line begins with `-` if it was dropped, with `+` if it was added.
    lines: tuple[str, ...]
    version: Version

    @property
    def when(self) -> str:
        """Time of the change: `after 3 runs had finished`."""
        runs = self.version.after_runs
        return f"after {runs} {plural(runs, 'run')} had finished"


def version(experiment: Experiment, after_runs: int, replaced: Sequence[Replaced] = ()) -> Version:
    """Return the protocol version of an experiment."""
    values = experiment.model_dump(mode="json", exclude_defaults=True)
    return Version(after_runs=after_runs, stated=values, replaced=list(replaced))


_VERSIONS = TypeAdapter(list[Version])


def read_versions(stored: Mapping[str, Any], file: Path) -> list[Version]:
    """Return the versions in a sealed document; none for an empty document.

    Raises ConfigError for a document without versions, or with a version that is no experiment.
    """
    if not stored:
        return []
    try:
        versions = _VERSIONS.validate_python(stored.get("versions"))
        for each in versions:
            each.experiment  # noqa: B018  read now, so that the error names the file
    except (ValidationError, ConfigError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"'{file}': it is no protocol of an experiment ({why})") from None
    return versions


def extended(
    versions: Sequence[Version], experiment: Experiment, after_runs: int, replaced: list[Replaced]
) -> list[Version]:
    """Return a protocol extended by the experiment, unless the last version states it."""
    if versions and versions[-1].states(experiment):
        return list(versions)
    return [*versions, version(experiment, after_runs, replaced)]


def replaced(
    before: PlanDocument, now: PlanDocument, records: Mapping[str, Record]
) -> list[Replaced]:
    """Return the controls that a new plan drops, with their outcomes.

    `records` maps the ids of finished runs to their records. A difference is the mean over pairs
    of runs with the same seed at the same tuning point.
    """
    variants_kept = {variant.id for table in now.tables for variant in table.variants}
    gone = []
    for table in before.tables:
        ended: dict[str, dict[tuple[int, str], Record]] = {v.id: {} for v in table.variants}
        for run in table.runs:
            if run.id in records:
                ended[run.variant][run.seed, str(run.tuned)] = records[run.id]
        base = ended[table.baseline.id]
        for variant in table.variants:
            if not variant.role or variant.id in variants_kept:
                continue
            ended_runs = ended[variant.id]
            shared = [
                _loss(ended_runs[at]) - _loss(base[at]) for at in ended_runs.keys() & base.keys()
            ]
            finite = [value for value in shared if math.isfinite(value)]
            mean = fmean(finite) if finite else None
            outcomes = [record.outcome for record in ended_runs.values()]
            gone.append(Replaced(label=variant.label, outcomes=outcomes, difference_nats=mean))
    return gone


def _loss(record: Record) -> float:
    """Return the reported loss of a run: on the test split, otherwise on validation."""
    numbers = record.numbers
    return numbers.get("test_loss_nats", numbers.get("validation_loss_nats", math.nan))


def changes(versions: Sequence[Version], now: Experiment) -> list[ProtocolChange]:
    """Return the changes between successive versions, up to the currently planned version."""
    diffs = (
        (_diff(before.lines, after.lines), after)
        for before, after in pairwise(_until(versions, now))
    )
    return [ProtocolChange(lines, after) for lines, after in diffs if lines]


def unplanned_looks(versions: Sequence[Version], now: Experiment) -> int:
    """Count the versions that added seeds after runs had finished."""
    experiments = [each.experiment for each in _until(versions, now)]
    return sum(len(b.seed_list) > len(a.seed_list) for a, b in pairwise(experiments))


def _until(versions: Sequence[Version], now: Experiment) -> list[Version]:
    """Return the versions up to the version that states the experiment `now`.

    A report may cover an earlier plan, which later versions do not concern. If no version states
    the experiment, a version of the experiment is added.
    """
    ends = [i for i, each in enumerate(versions, 1) if each.states(now)]
    return list(versions[: ends[-1]]) if ends else [*versions, version(now, 0)]


def _diff(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """Return the lines that differ, grouped by position."""
    lines = [*unified_diff(before, after, n=0, lineterm="")][2:]  # without the file names
    return tuple(f"{line[0]} {line[1:]}" for line in lines if not line.startswith("@@"))


def _lines_of(stated: Mapping[str, Any]) -> Iterator[str]:
    """Yield the stated values as lines: one for each value, with its key path.

    A hypothesis yields a single line.
    """
    for key, value in sorted(stated.items()):
        if key == "hypotheses" and isinstance(value, list):
            yield from (f"{HYPOTHESIS}: {_inline(_tested(entry))}" for entry in value)
        elif key not in _WITHOUT_EFFECT:
            yield from _leaves(key, value)


def _tested(entry: Any) -> Any:
    """Return a hypothesis without its source and the source's statement."""
    if not isinstance(entry, Mapping):
        return entry
    return {k: v for k, v in entry.items() if v is not None and k not in _SOURCE_KEYS}


def _leaves(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for inner, below in sorted(value.items()):
            yield from _leaves(f"{key}.{inner}", below)
    elif key.startswith(_LISTS) and isinstance(value, list):
        yield from (f"{key}: {_inline(entry)}" for entry in value)
    else:
        yield f"{key}: {_inline(value)}"


def _inline(value: Any) -> str:
    """Write a value as YAML does on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("...\n").strip()


class StatedMetrics:
    """Metrics of an experiment file, with their options."""

    def __init__(self, experiment: Experiment) -> None:
        # Stored entries have passed through JSON, which turns a tuple into a list.
        self._now = _by_name(json.loads(json.dumps(experiment.measure)))

    def other(self, name: str, measured: Measurement) -> str:
        """Describe how a metric's options differ from the file's; empty if they agree."""
        now = self._now.get(name, "")
        was = now and (measured.entry or now)
        if _without_pairing(was) == _without_pairing(now):
            return ""
        return f"it was taken as '{_text(was)}', and the file now states '{_text(now)}'"

    def read(self, metrics: Mapping[str, Measurement]) -> dict[str, Measurement]:
        """Return metrics by name; an error replaces values measured with other options.

        The options are compared with the experiment file.
        """
        read = dict(metrics)
        for name, measured in metrics.items():
            if why := self.other(name, measured):
                error = f"{why}; `llama-ablate measure DIR {name}` takes it again"
                read[name] = Measurement(error=error, entry=measured.entry)
        return read


def _without_pairing(entry: Entry) -> dict[str, Any]:
    """Return a metric entry without its option `paired`.

    Protocols are compared without it: speeds match whether or not they were timed in pairs.
    """
    named = {"name": entry} if isinstance(entry, str) else entry
    return {key: value for key, value in named.items() if key != "paired"}


def _by_name(entries: Iterable[Entry]) -> dict[str, Entry]:
    return {_text(entry).partition(" ")[0]: entry for entry in entries}


def _text(entry: Entry) -> str:
    """Write a metric entry in one line; any stored value is accepted."""
    named = {"name": entry} if isinstance(entry, str) else entry
    options = (f"{key}={value}" for key, value in named.items() if key != "name")
    return " ".join([str(named.get("name")), *options])
