"""Ledger of candidates judged against the best so far, with the error budget that they spent.

`<ledger>/ledger.jsonl` is an event a line, sealed by a chain: the SHA-256 of a line is that of the
one before it and of its own text. `<ledger>/runs/` holds the experiments that its events are from,
`<ledger>/plugins/` the code that candidates brought, as the events have it: a copy is a pack.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from llama_ablate.config.schema import Experiment, Terms
from llama_ablate.errors import ConfigError
from llama_ablate.evidence.sequential import spending
from llama_ablate.files import disk
from llama_ablate.files.strict_json import parse, to_line
from llama_ablate.judge.levels import e_lond, family_wise, lord, p_of_e, weights

FILE = "ledger.jsonl"
Verdict = Literal["accepted", "rejected", "inconclusive", "invalid"]
_SEAL = ',"sha256":"{}"}}'
_OF_TABLE = 0.05
_MOST_LEVEL = 0.025  # one-sided, as a test alone has
_APART = 1 << 10  # seeds of one step: more than a gate may have
_SHARED, _OF_BEST = 1 << 30, 3 << 29  # the first that candidates share, and of taking apart
Word = TypeVar("Word", bound="_Event")


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True)


def _without_unknown(experiment: dict[str, Any]) -> dict[str, Any]:
    """Return a stored experiment without the empty keys of older versions."""
    known = Experiment.model_fields
    return {key: value for key, value in experiment.items() if key in known or value is not None}


class Opened(_Event):
    """First event of a ledger: its terms."""

    event: Literal["opened"] = "opened"
    format: Literal[1] = 1
    experiment: Annotated[dict[str, Any], BeforeValidator(_without_unknown)]
    terms: Terms
    #: Fingerprints of the texts of both gates, as tokens.
    texts: tuple[str, str]


class Begun(_Event):
    """A candidate that began, with the level that was granted to it."""

    event: Literal["begun"] = "begun"
    number: int
    label: str
    changes: dict[str, Any]
    #: The code of its plug-in, by its SHA-256.
    plugins: dict[str, str] = Field(default_factory=dict)
    #: The first of its seeds: drawn when it begins, so that nobody can rehearse its gates.
    first: int = 0
    #: How often the best had moved.
    best: int
    level: float
    code: str

    @property
    def left_out(self) -> str:
        """The label of the best without it."""
        return f"without {self.number} {self.label}"[:80].strip()


class GateDifference(_Event):
    """GateDifference of a candidate from the best, with the runs behind it."""

    # Events of older versions have the most seeds that would decide, too.
    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)

    unit: str
    n: int
    difference: float
    low: float
    high: float
    alpha: float
    verdict: str
    seeds_low: float
    table: str = ""
    #: Trained parameters of the candidate.
    parameters: int | None = None
    guards: dict[str, str] = Field(default_factory=dict)
    #: Losses by seed, of the candidate and of the best.
    losses: dict[str, tuple[float, float]] = Field(default_factory=dict)


class Gated(_Event):
    """Result of a gate."""

    event: Literal["gated"] = "gated"
    number: int
    gate: Literal[1, 2]
    found: list[GateDifference]


class Decided(_Event):
    """Decision on a candidate."""

    event: Literal["ended"] = "ended"
    number: int
    verdict: Verdict
    why: str


class TakenApart(_Event):
    """Contribution of each accepted change to the best, by leaving it out."""

    event: Literal["taken apart"] = "taken apart"
    best: int
    found: dict[str, GateDifference]


Event = Annotated[Opened | Begun | Gated | Decided | TakenApart, Field(discriminator="event")]
_EVENT: TypeAdapter[Any] = TypeAdapter(Event)


@dataclass(frozen=True)
class Ledger:
    """The events of a ledger, in order."""

    root: Path
    events: tuple[Any, ...]
    #: As they stand in the file.
    lines: tuple[str, ...] = ()

    @classmethod
    def open(cls, root: Path) -> "Ledger":
        """Read a ledger. Raises ConfigError without a ledger, and for a changed line."""
        file = root / FILE
        if not file.is_file():
            raise ConfigError(f"'{root}' holds no ledger: --new FILE opens one")
        events, before = [], ""
        lines = disk.read(file).decode("utf-8", "replace").removesuffix("\n").split("\n")
        for number, line in enumerate(lines, 1):
            text, _, seal = line.rpartition(',"sha256":"')
            before = _digest(before, text)
            if seal != f'{before}"}}':
                raise ConfigError(f"{file}:{number}: edited or damaged, not what was written there")
            try:
                events.append(_EVENT.validate_python(parse(f"{text}}}".encode(), file)))
            except ValidationError as error:
                raise ConfigError(f"{file}:{number}: not an event of this version") from error
        if not events or not isinstance(events[0], Opened):
            raise ConfigError(f"{file}: damaged, its first event opens no ledger")
        return cls(root, tuple(events), tuple(lines))

    @classmethod
    def create(cls, root: Path, opened: Opened) -> "Ledger":
        """Open a new ledger in a folder. Raises ConfigError where one is there."""
        disk.make(root)
        with disk.locked(root):
            if (root / FILE).exists():
                raise ConfigError(f"'{root}' holds a ledger already: it is opened once")
            return cls(root, ()).written_with(opened)

    def add(self, make: Callable[["Ledger"], Word] | Word) -> tuple["Ledger", Word]:
        """Add an event, given or made from the current ledger, unless the ledger contains it.

        Nobody else adds meanwhile. Returns the ledger with it.
        """
        with disk.locked(self.root):
            now = Ledger.open(self.root)
            event = make if isinstance(make, _Event) else make(now)
            return now if event in now.events else now.written_with(event), event

    def written_with(self, event: _Event) -> "Ledger":
        """Write the ledger with one event more, and return it."""
        text = to_line(event.model_dump(mode="json")).removesuffix("}")
        before = self.lines[-1][-66:-2] if self.lines else ""
        lines = (*self.lines, text + _SEAL.format(_digest(before, text)))
        # Written whole and renamed: no reader sees a part of a line.
        disk.replace(self.root / FILE, "".join(f"{line}\n" for line in lines).encode())
        return Ledger(self.root, (*self.events, event), lines)

    @property
    def opened(self) -> Opened:
        """First event of the ledger."""
        first: Opened = self.events[0]
        return first

    @property
    def terms(self) -> Terms:
        """Terms for its candidates."""
        return self.opened.terms

    def of(self, kind: type[Word]) -> list[Word]:
        """Return its events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    @cached_property
    def ended(self) -> Mapping[int, Decided]:
        """Decisions by number of the candidate."""
        return {event.number: event for event in self.of(Decided)}

    @cached_property
    def shown(self) -> Mapping[int, GateDifference]:
        """Result of each candidate's last gate at the ledger's own size, by number."""
        return {event.number: event.found[0] for event in self.of(Gated)}

    @cached_property
    def path(self) -> list[Begun]:
        """The candidates that moved the best, in order: accepted against the best of their time."""
        begun = {event.number: event for event in self.of(Begun)}
        path: list[Begun] = []
        for event in self.of(Decided):
            if event.verdict == "accepted" and begun[event.number].best == len(path):
                path.append(begun[event.number])
        return path

    def best(self, version: int | None = None, without: Begun | None = None) -> dict[str, Any]:
        """Return the changes of a version of the best; of the present version by default."""
        best = merged(*(one.changes for one in self.path[:version] if one is not without))
        return {key: value for key, value in best.items() if key != "draws"}

    def plugins(self, *brought: Begun) -> list[Path]:
        """Return the plug-ins of some candidates, as files with their code."""
        found = {}
        for name, code in (item for one in brought for item in one.plugins.items()):
            found[name] = place = disk.below(self.root, "plugins", f"{name}.py")
            if not place.is_file() or disk.read(place) != code.encode():
                disk.make(place.parent)
                disk.replace(place, code.encode())
        return list(found.values())

    @property
    def fresh(self) -> int:
        """The first of seeds that no candidate has."""
        taken = {begun.first for begun in self.of(Begun)}
        while (first := 2 * _APART * secrets.randbelow(_SHARED // (2 * _APART))) in taken:
            pass
        return first

    @property
    def level(self) -> float:
        """The one-sided level of the next candidate; 0 where no candidates are left.

        What has begun and is not decided counts as not accepted.
        """
        terms, tests, accepted = self.terms, 0, []
        for event in self.events:
            tests += isinstance(event, Begun)
            if isinstance(event, Decided) and event.verdict == "accepted":
                accepted.append(tests)
        if tests == terms.candidates:
            return 0.0
        shares, error = weights(terms.candidates), terms.error
        level = {
            "lord": lambda: lord(tests + 1, accepted, shares, error, error / 2),
            "family-wise": lambda: family_wise(tests + 1, shares, error),
            "e-lond": lambda: p_of_e(e_lond(tests + 1, accepted, shares, error)),
        }[terms.rule]()
        return min(level, _MOST_LEVEL)

    @contextmanager
    def working_on(self, begun: Begun) -> Iterator[Path]:
        """Hold a candidate, and yield the folder of its experiments.

        Raises ConfigError where another process judges it.
        """
        folder = self.root / "runs" / f"{begun.number:04d}"
        disk.make(folder)
        with ExitStack() as held:
            try:
                held.enter_context(disk.locked(folder, wait=False))
            except BlockingIOError:
                raise ConfigError(f"candidate {begun.number} is being judged elsewhere") from None
            yield folder

    def gate(self, begun: Begun, gate: Literal[1, 2]) -> dict[str, Any]:
        """Return the experiment of a gate: the candidate, paired with the best of its time."""
        terms, best = self.terms, self.best(begun.best)
        first = begun.first + (gate - 1) * _APART
        shared = _SHARED + begun.best * _APART if terms.rule == "e-lond" else first
        arms = [("best", best), (begun.label, merged(best, begun.changes))]
        if gate == 1:
            both = 2 * begun.level / _OF_TABLE  # sides, as shares of what a table may spend
            spend = [both * share for share in spending(terms.looks)]
            seeds: Any = {"looks": terms.looks, "spend": spend}
            return self._experiment(arms, {**seeds, "first": shared}, "gate 1")
        values = self._experiment(arms, list(range(first, first + terms.confirm)), "gate 2")
        return values | {"data": terms.second.model_dump(mode="json")} | sizes_of(terms, values)

    def apart(self, left_out: Sequence[Begun]) -> dict[str, Any]:
        """Return the experiment that leaves each of some accepted changes out of the best."""
        arms = [("best", self.best())]
        arms += [(out.left_out, self.best(without=out)) for out in left_out]
        times = len(self.of(TakenApart))
        seeds = [_OF_BEST + times * _APART + i for i in range(self.terms.confirm)]
        return self._experiment(arms, seeds, f"apart {times + 1}")

    def _experiment(
        self, arms: Sequence[tuple[str, dict[str, Any]]], seeds: object, name: str
    ) -> dict[str, Any]:
        variants = {**self.opened.experiment["variants"], "design": "list", "baseline": "best"}
        variants["entries"] = [{"label": label, **changes} for label, changes in arms]
        return {
            **self.opened.experiment,
            "name": name,
            "variants": variants,
            "seeds": seeds,
            "controls": {"aa": []},
        }


def sizes_of(terms: Terms, experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section `sizes` of gate two, where a second size is asked for."""
    if terms.size is None:
        return {}
    own = {key: experiment["model"][key] for key in terms.size.changes}
    return {"sizes": {"models": [own, terms.size.changes]}}


def merged(*changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge changes in order; a new component drops earlier changes of its options.

    Draws of its own are a candidate's, and never the best's.
    """
    found: dict[str, Any] = {}
    for later in changes:
        kept = (k for k in found if {k, k.partition(".")[0]}.isdisjoint({"draws", *later}))
        found = {key: found[key] for key in kept} | dict(later)
    return found


def _digest(before: str, text: str) -> str:
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()
