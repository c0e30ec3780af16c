"""Ledger of candidates judged against the best so far, with its error budget.

`<ledger>/ledger.jsonl` has one event per line, sealed by a hash chain: each line ends with the
SHA-256 of the previous line's hash and the line's own text. `<ledger>/runs/` holds the experiments
behind the events. `<ledger>/plugins/` holds the plug-in code of candidates, which is also part of
the events. A copy of the folder is self-contained.
"""

import hashlib
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from llama_ablate.config.schema import Experiment, Terms
from llama_ablate.errors import ConfigError
from llama_ablate.evidence import Verdict as Outcome
from llama_ablate.evidence.sequential import spending
from llama_ablate.files import disk
from llama_ablate.files.strict_json import parse, to_line
from llama_ablate.judge.levels import family_wise, lord, split_level, weights

FILE = "ledger.jsonl"
Verdict = Literal["accepted", "rejected", "inconclusive", "invalid"]
_SEAL = ',"sha256":"{}"}}'
_TABLE_ERROR = 0.05
_MAX_NUMBER = 1e6
_MAX_LEVEL = 0.025  # one-sided level of a single test
_GATE_SEEDS = 1 << 10  # distance between the first seeds of two gates
#: Upper limit of candidates' seeds, and the first seed of experiments that leave changes out.
_MAX_SEED, _LEAVE_OUT_SEED = 1 << 30, 3 << 29
#: Keys of the experiment that the ledger's page shows.
_NEEDED_KEYS = (
    *("name", "question", "margin", "variants", "model.dim", "model.layers", "model.context"),
    *("data.corpus", "train.tokens", "train.steps"),
)
Word = TypeVar("Word", bound="_Event")


def _check_size(value: float) -> float:
    if abs(value) > _MAX_NUMBER:  # no page could draw it; NaN means not measured
        raise ValueError(f"{value:g} is no difference of losses")
    return value


Number = Annotated[float, AfterValidator(_check_size)]


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", from_attributes=True)


def _check_stated(experiment: dict[str, Any]) -> dict[str, Any]:
    """Return a stored experiment without the empty keys of older versions.

    Raises ValueError if the experiment lacks a key that every ledger states, or if its number of
    training tokens or steps is not a whole number.
    """
    for key in _NEEDED_KEYS:
        section: Any = experiment
        for part in key.split("."):
            if not isinstance(section, dict) or part not in section:
                raise ValueError(f"lacks experiment.{key}")
            section = section[part]
    for key in ("tokens", "steps"):
        if not isinstance(experiment["train"][key], int | None):
            raise ValueError(f"experiment.train.{key} is no whole number")  # noqa: TRY004  as pydantic
    keys = Experiment.model_fields
    return {key: value for key, value in experiment.items() if key in keys or value is not None}


def _check_hashes(plugins: dict[str, str]) -> dict[str, str]:
    for name, code in plugins.items():
        if name != hashlib.sha256(code.encode()).hexdigest():
            raise ValueError(f"'{name[:80]}' is not the hash of its code")
    return plugins


class Opened(_Event):
    """Event that opens a ledger, with its experiment and its terms."""

    event: Literal["opened"] = "opened"
    #: In format 1 the level of a candidate was for gate one alone, and gate two tested at 2.5%.
    format: Literal[1, 2] = 2
    experiment: Annotated[dict[str, Any], AfterValidator(_check_stated)]
    terms: Terms
    #: Fingerprints of the tokenized texts of both gates.
    texts: tuple[str, str]


class Begun(_Event):
    """Event that begins a candidate, with the one-sided error level that both gates share."""

    event: Literal["begun"] = "begun"
    number: int
    label: str
    changes: dict[str, Any]
    #: Code of the candidate's plug-in, by its SHA-256.
    plugins: Annotated[dict[str, str], AfterValidator(_check_hashes)] = Field(default_factory=dict)
    #: First seed of the candidate, drawn when it begins, so that nobody can rehearse its gates.
    first: int = Field(0, ge=0)
    #: Version of the best that it began against: the number of accepted changes in it.
    best: int
    level: float
    code: str

    @property
    def left_out(self) -> str:
        """Label of the best variant without this candidate's changes."""
        return f"without {self.number} {self.label}"[:80].strip()


class GateDifference(_Event):
    """Difference of a candidate from the best at a gate, with both losses by seed."""

    # Events of older versions also have the largest number of seeds that would decide.
    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)

    unit: str
    n: int
    difference: Number
    low: Number
    high: Number
    alpha: Number
    verdict: Outcome
    seeds_low: float
    table: str = ""
    #: Trained parameters of the candidate.
    parameters: int | None = None
    guards: dict[str, str] = Field(default_factory=dict)
    #: Losses of the candidate and of the best, by seed.
    losses: dict[str, tuple[float, float]] = Field(default_factory=dict)


class Gated(_Event):
    """Event with the result of a gate: one difference for each model size."""

    event: Literal["gated"] = "gated"
    number: int
    gate: Literal[1, 2]
    found: list[GateDifference]


class Decided(_Event):
    """Event with the decision on a candidate, and its reason."""

    event: Literal["ended"] = "ended"
    number: int
    verdict: Verdict
    why: str


class TakenApart(_Event):
    """Event with the effect of leaving each accepted change out of the best."""

    event: Literal["taken apart"] = "taken apart"
    best: int
    found: dict[str, GateDifference]


Event = Annotated[Opened | Begun | Gated | Decided | TakenApart, Field(discriminator="event")]
_EVENT: TypeAdapter[Any] = TypeAdapter(Event)


class History:
    """State of a ledger after some of its events.

    Each event is checked against the events before it.
    """

    #: Terms of the ledger, from its first event.
    terms: Terms

    def __init__(self, events: Sequence[_Event] = ()) -> None:
        self.begun: list[Begun] = []
        self.gates: dict[int, list[GateDifference]] = {}
        self.ended: dict[int, Decided] = {}
        #: Candidates that became part of the best, in order; each was accepted against the best of
        #: that time.
        self.path: list[Begun] = []
        #: For each acceptance, the number of candidates that had begun by then.
        self.accepted_at: list[int] = []
        for event in events:
            self.add(event)

    @property
    def level(self) -> float:
        """Significance level of the next candidate, one-sided; 0 if no candidates remain.

        A candidate that is not decided counts as not accepted.
        """
        terms, test = self.terms, len(self.begun) + 1
        if test > terms.candidates:
            return 0.0
        shares, error = weights(terms.candidates), terms.error
        if terms.rule == "family-wise":
            level = family_wise(test, shares, error)
        else:
            level = lord(test, self.accepted_at, shares, error, error / 2)
        return min(level, _MAX_LEVEL)

    def add(self, event: _Event) -> None:
        """Apply an event. Raises ValueError if the event cannot follow the events before it."""
        if isinstance(event, Opened):
            _require(not hasattr(self, "terms"), "opens the ledger a second time")
            self.terms = event.terms
        elif not hasattr(self, "terms"):
            raise ValueError("the first event opens no ledger")
        elif isinstance(event, Begun):
            self._begin(event)
        elif isinstance(event, TakenApart):
            moved = len(self.path)
            _require(event.best == moved, f"leaves changes out of best {event.best} of {moved}")
        elif isinstance(event, Gated | Decided):
            number, of = event.number, f"candidate {event.number}"
            _require(1 <= number <= len(self.begun), f"{of} has not begun")
            _require(number not in self.ended, f"{of} has ended before")
            passed = self.gates.setdefault(number, [])
            if isinstance(event, Gated):
                is_next = event.gate == len(passed) + 1 and event.found
                _require(is_next, f"gate {event.gate} of {of} follows {len(passed)} gates")
                passed.append(event.found[0])
            else:
                needed = {"accepted": 2, "invalid": 0}.get(event.verdict, 1)
                _require(
                    len(passed) >= needed, f"{of} is {event.verdict} after {len(passed)} gates"
                )
                self._end(event)

    def _begin(self, begun: Begun) -> None:
        of, number, moved = f"candidate {begun.number}", len(self.begun) + 1, len(self.path)
        _require(begun.number == number, f"{of} begins, and {number} is next")
        _require(0 <= begun.best <= moved, f"{of} began against best {begun.best} of {moved}")
        given = f"{of} has level {begun.level:.4g}, and the rule grants {self.level:.4g}"
        _require(math.isclose(begun.level, self.level, rel_tol=1e-9), given)
        self.begun.append(begun)

    def _end(self, event: Decided) -> None:
        self.ended[event.number] = event
        if event.verdict == "accepted":
            self.accepted_at.append(len(self.begun))
            begun = self.begun[event.number - 1]
            if begun.best == len(self.path):
                self.path.append(begun)


def _require(holds: object, message: str) -> None:
    if not holds:
        raise ValueError(message)


@dataclass(frozen=True)
class Ledger:
    """Ledger in a folder, with its events in order."""

    root: Path
    events: tuple[Any, ...]
    #: Lines of the file, one for each event.
    lines: tuple[str, ...] = ()

    @classmethod
    def open(cls, root: Path) -> "Ledger":
        """Read a ledger. Raises ConfigError for a missing ledger, and for a changed line."""
        file = root / FILE
        if not file.is_file():
            raise ConfigError(f"'{root}' holds no ledger: --new FILE opens one")
        events, before = list[Any](), ""
        lines = disk.read(file).decode("utf-8", "replace").removesuffix("\n").split("\n")
        history = History()
        for number, line in enumerate(lines, 1):
            text, _, seal = line.rpartition(',"sha256":"')
            before = _digest(before, text)
            if seal != f'{before}"}}':
                raise ConfigError(f"{file}:{number}: edited or damaged, not what was written there")
            try:
                events.append(_EVENT.validate_python(parse(f"{text}}}".encode(), file)))
                history.add(events[-1])
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"][1:]))
                message = first["msg"].removeprefix("Value error, ").splitlines()[0]
                said = ": ".join(filter(None, (where, message)))
                raise ConfigError(f"{file}:{number}: no event of this version: {said}") from None
            except ValueError as error:
                said = str(error).removeprefix(f"{file}: ")
                raise ConfigError(f"{file}:{number}: {said}") from None
        return cls(root, tuple(events), tuple(lines))

    @classmethod
    def create(cls, root: Path, opened: Opened) -> "Ledger":
        """Open a new ledger in a folder.

        Raises ConfigError if the folder has a ledger.
        """
        disk.make(root)
        with disk.locked(root):
            if (root / FILE).exists():
                raise ConfigError(f"'{root}' holds a ledger already: it is opened once")
            return cls(root, ()).written_with(opened)

    def add(self, make: Callable[["Ledger"], Word] | Word) -> tuple["Ledger", Word]:
        """Append an event, unless the ledger contains it; return the ledger and the event.

        `make` is an event, or a function that makes an event from the current ledger. A lock keeps
        other processes from writing meanwhile. Raises ConfigError if the event cannot follow the
        ledger's events.
        """
        with disk.locked(self.root):
            now = Ledger.open(self.root)
            event = make if isinstance(make, _Event) else make(now)
            if event in now.events:
                return now, event
            try:
                History((*now.events, event))
            except ValueError as error:
                raise ConfigError(f"{self.root / FILE}: {error}") from None
            return now.written_with(event), event

    def written_with(self, event: _Event) -> "Ledger":
        """Write the ledger with an additional event, and return it."""
        text = to_line(event.model_dump(mode="json")).removesuffix("}")
        before = self.lines[-1][-66:-2] if self.lines else ""
        lines = (*self.lines, text + _SEAL.format(_digest(before, text)))
        # The file is replaced as a whole, so that no reader sees a part of a line.
        disk.replace(self.root / FILE, "".join(f"{line}\n" for line in lines).encode())
        return Ledger(self.root, (*self.events, event), lines)

    @property
    def opened(self) -> Opened:
        """First event of the ledger."""
        first: Opened = self.events[0]
        return first

    @property
    def terms(self) -> Terms:
        """Terms of the ledger: gates, error budget, and number of candidates."""
        return self.opened.terms

    def of(self, kind: type[Word]) -> list[Word]:
        """Return the ledger's events of class `kind`."""
        return [event for event in self.events if isinstance(event, kind)]

    @cached_property
    def history(self) -> History:
        """State of the ledger after all its events."""
        return History(self.events)

    @property
    def ended(self) -> Mapping[int, Decided]:
        """Decisions by number of the candidate."""
        return self.history.ended

    @property
    def last_differences(self) -> Mapping[int, GateDifference]:
        """Result of each candidate's last gate at the ledger's model size, by candidate number."""
        return {
            number: differences[-1]
            for number, differences in self.history.gates.items()
            if differences
        }

    @property
    def path(self) -> list[Begun]:
        """Candidates that became part of the best, in order."""
        return self.history.path

    @property
    def level(self) -> float:
        """Significance level of the next candidate, one-sided; 0 if no candidates remain."""
        return self.history.level

    def best(self, version: int | None = None, without: Begun | None = None) -> dict[str, Any]:
        """Return the merged changes of a version of the best, by default the latest.

        A version is a number of accepted candidates. The changes of the candidate `without` are
        left out.
        """
        best = merged(
            *(accepted.changes for accepted in self.path[:version] if accepted is not without)
        )
        return {key: value for key, value in best.items() if key != "draws"}

    def plugins(self, *brought: Begun) -> list[Path]:
        """Write the plug-ins of candidates to files, and return the files."""
        files = {}
        for name, code in (item for event in brought for item in event.plugins.items()):
            files[name] = place = disk.below(self.root, "plugins", f"{name}.py")
            if not place.is_file() or disk.read(place) != code.encode():
                disk.make(place.parent)
                disk.replace(place, code.encode())
        return list(files.values())

    def draw_seed(self) -> int:
        """Draw the first seed of a range of seeds that no other candidate uses."""
        taken, step = {begun.first for begun in self.of(Begun)}, 2 * _GATE_SEEDS
        while (first := step * secrets.randbelow(_MAX_SEED // step)) in taken:
            pass
        return first

    def folder_of(self, number: int) -> Path:
        """Return the folder of a candidate's experiments."""
        return self.root / "runs" / f"{number:04d}"

    @contextmanager
    def working_on(self, begun: Begun) -> Iterator[Path]:
        """Lock a candidate for this process, and yield the folder of its experiments.

        Raises ConfigError if another process judges the candidate.
        """
        folder = self.folder_of(begun.number)
        disk.make(folder)
        with ExitStack() as stack:
            try:
                stack.enter_context(disk.locked(folder, wait=False))
            except BlockingIOError:
                raise ConfigError(f"candidate {begun.number} is being judged elsewhere") from None
            yield folder

    def alpha(self, begun: Begun, gate: Literal[1, 2]) -> float:
        """Compute the two-sided error level of a gate's interval."""
        is_split = self.opened.format > 1
        levels = split_level(begun.level) if is_split else (begun.level, _MAX_LEVEL)
        return 2 * levels[gate - 1]

    def gate(self, begun: Begun, gate: Literal[1, 2]) -> dict[str, Any]:
        """Return the experiment of a gate, which compares a candidate with the best.

        The best is the version against which the candidate began.
        """
        terms, best = self.terms, self.best(begun.best)
        arms = [("best", best), (begun.label, merged(best, begun.changes))]
        first = begun.first + (gate - 1) * _GATE_SEEDS
        if gate == 1:
            # Two-sided level of the gate, as a share of the error level of a table.
            share = self.alpha(begun, 1) / _TABLE_ERROR
            spend = [share * look_share for look_share in spending(terms.looks)]
            seeds: Any = {"looks": terms.looks, "spend": spend, "first": first}
            return self._experiment(arms, seeds, "gate 1")
        values = self._experiment(arms, list(range(first, first + terms.confirm)), "gate 2")
        return values | {"data": terms.second.model_dump(mode="json")} | sizes_of(terms, values)

    def leave_out(self, left_out: Sequence[Begun]) -> dict[str, Any]:
        """Return the experiment that leaves each given change out of the best in turn."""
        arms = [("best", self.best())]
        arms += [(out.left_out, self.best(without=out)) for out in left_out]
        times = len(self.of(TakenApart))
        first = _LEAVE_OUT_SEED + times * _GATE_SEEDS
        seeds = list(range(first, first + self.terms.confirm))
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
    """Return the section `sizes` of gate two; {} for terms without a second size."""
    if terms.size is None:
        return {}
    base_sizes = {key: experiment["model"][key] for key in terms.size.changes}
    return {"sizes": {"models": [base_sizes, terms.size.changes]}}


def merged(*changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge changes in order; a changed component drops earlier changes of its options.

    Only the last mapping may contribute `draws`: other random draws are part of a candidate, never
    of the best.
    """
    result: dict[str, Any] = {}
    for later in changes:
        remaining = (k for k in result if {k, k.partition(".")[0]}.isdisjoint({"draws", *later}))
        result = {key: result[key] for key in remaining} | dict(later)
    return result


def _digest(before: str, text: str) -> str:
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()
