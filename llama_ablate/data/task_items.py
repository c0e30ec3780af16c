"""Tasks: items with a correct answer, scored by a model's likelihood of texts.

An item has one of three kinds, determined by its keys:

- multiple choice: `{"context": "...", "choices": ["...", "..."], "answer": 0}`;
- last words: `{"context": "...", "target": "..."}`, or `{"text": "..."}`, whose target is its last
  word (LAMBADA, Paperno et al. 2016, arXiv:1606.06031);
- minimal pairs: `{"sentence_good": "...", "sentence_bad": "..."}` (BLiMP, Warstadt et al. 2020,
  arXiv:1912.00582).

Accuracy is also reported for each `group` of items. Other keys are ignored.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from llama_ablate.config.spec import digest
from llama_ablate.data import readers
from llama_ablate.errors import ConfigError, nearest

Kind = Literal["multiple choice", "last words", "minimal pairs"]


@dataclass(frozen=True)
class Item:
    """Item of a task: a context with its possible continuations, one of them correct."""

    context: str
    #: For an item of the kind "last words", a single choice: the target.
    choices: tuple[str, ...]
    answer: int
    #: Text between the context and a choice.
    delimiter: str = ""
    #: Group of items for which accuracy is reported separately.
    group: str = ""
    #: File and line of the item, for error messages.
    place: str = ""

    @property
    def continuations(self) -> tuple[str, ...]:
        """Texts to score as continuations of the context."""
        return tuple(self.delimiter + choice for choice in self.choices)


@dataclass(frozen=True)
class Task:
    """Named list of items of one kind."""

    name: str
    kind: Kind
    items: tuple[Item, ...]

    @property
    def fingerprint(self) -> str:
        """Hash of the items: equal for variants that were scored on the same items."""
        return digest([[i.context, i.choices, i.answer, i.delimiter] for i in self.items])

    @property
    def chance(self) -> float | None:
        """Chance accuracy; None for last words, which can be any word."""
        if self.kind == "last words":
            return None
        return sum(1 / len(item.choices) for item in self.items) / len(self.items)


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("it is blank")
    return text


_Filled = Annotated[str, AfterValidator(_filled)]


class _Line(BaseModel):
    """Keys of a line of a task's file, checked one by one."""

    model_config = ConfigDict(strict=True)

    group: str = ""
    context: str = ""
    choices: Annotated[list[_Filled], Field(min_length=2)] = []
    answer: int | str | None = None
    sentence_good: _Filled | None = None
    sentence_bad: _Filled | None = None
    text: _Filled = ""
    target: _Filled = ""

    def item(self, place: str) -> tuple[Kind, Item]:
        """Return the line's item and its kind. Raises ConfigError if keys do not fit together."""
        good, bad = self.sentence_good, self.sentence_bad
        context, target = self.context, self.target
        if self.text and not target:
            context, _, target = self.text.rstrip().rpartition(" ")
        delimiter = " " if context and not context[-1].isspace() else ""
        if self.choices and self.answer is not None:
            answer = self._answer(self.answer)
            choices = tuple(self.choices)
            return "multiple choice", Item(context, choices, answer, delimiter, self.group, place)
        if good and bad:
            if good == bad:
                raise ConfigError("both sentences are the same")
            return "minimal pairs", Item("", (good, bad), 0, group=self.group, place=place)
        if not target:
            raise ConfigError(
                "no item of a task, which has one of: 'choices' and 'answer'; 'sentence_good' and "
                "'sentence_bad'; 'target'; 'text'"
            )
        if not context.strip():
            raise ConfigError("last words need others before them: a 'context', or a longer 'text'")
        return "last words", Item(context, (target,), 0, delimiter, self.group, place)

    def _answer(self, answer: int | str) -> int:
        if isinstance(answer, str) and self.choices.count(answer) == 1:
            return self.choices.index(answer)
        if isinstance(answer, int) and 0 <= answer < len(self.choices):
            return answer
        raise ConfigError(
            f"'answer' is {answer!r:.60}: must be from 0 to {len(self.choices) - 1}, the place of "
            "the right one, or its text"
        )


def tasks(entries: str | Sequence[str], limit: int | None = None) -> list[Task]:
    """Read tasks by name or file, at most `limit` items of each.

    Raises ConfigError for an unknown name, two tasks with the same name, and as `task` does.
    """
    listed = [entries] if isinstance(entries, str) else [*entries]
    if not listed:
        raise ConfigError("[] is empty: name one or more tasks", ("task",))
    if limit is not None and limit < 2:
        raise ConfigError(f"limit {limit}: must be 2 or more", ("limit",))
    loaded = [task(entry) for entry in listed]
    names = [each.name for each in loaded]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two tasks are called '{twice[0]}'", ("task",))
    return [replace(each, items=each.items[:limit]) for each in loaded]


def task(entry: str) -> Task:
    """Read a task: a built-in one by name, or a `.jsonl` file of items.

    Raises ConfigError, with file and line, for a file that is missing, empty or of another type
    than its name states, and for an item that is incomplete or has no correct answer.
    """
    if entry in BUILT_IN:
        return replace(_load_task(BUILT_IN[entry]), name=entry)
    path = Path(entry).expanduser()
    if path.suffix != ".jsonl":
        hint = nearest(entry, BUILT_IN)
        message = f"'{entry}' is neither a task nor a file that ends in .jsonl{hint}"
        raise ConfigError(message, ("task",))
    try:
        readers.check([path])
    except ConfigError as error:
        raise ConfigError(error.message, ("task",)) from None
    return _load_task(path)


#: Files of the built-in tasks, by name. `minimal-pairs` has pairs in the style of BLiMP (Warstadt
#: et al. 2020, arXiv:1912.00582), in words that small models know; a model that counts letters
#: solves half of them.
BUILT_IN = {"minimal-pairs": Path(__file__).parent / "minimal_pairs.jsonl"}


def _load_task(path: Path) -> Task:
    """Read the items of a file as a task. Raises ConfigError for items of different kinds."""
    first: Kind = "last words"
    items: list[Item] = []
    for number, line in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        place = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            kind, item = _Line.model_validate_json(line).item(place)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            key = ".".join(map(str, wrong["loc"]))
            reason = f"'{key}': {wrong['msg']}" if key else wrong["msg"]
            raise ConfigError(f"{place}: {reason}", ("task",)) from None
        except ConfigError as error:
            raise ConfigError(f"{place}: {error.message}", ("task",)) from None
        if items and kind != first:
            message = f"{place}: an item of {kind}, and those before are of {first}"
            raise ConfigError(message, ("task",))
        first = kind
        items.append(item)
    if not items:
        raise ConfigError(f"the file '{path}' holds no items", ("task",))
    return Task(path.stem, first, tuple(items))
