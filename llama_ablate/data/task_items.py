"""Tasks: items with a correct answer, scored by a model's likelihood of texts.

An item has one of three kinds, determined by its keys:

- multiple choice: `{"context": "...", "choices": ["...", "..."], "answer": 0}`;
- last words: `{"context": "...", "target": "..."}`, or `{"text": "..."}`, whose target is its last
  word (LAMBADA, Paperno et al. 2016, arXiv:1606.06031);
- minimal pairs: `{"sentence_good": "...", "sentence_bad": "..."}` (BLiMP, Warstadt et al. 2020,
  arXiv:1912.00582).

Accuracy is also reported for each `group` of items. Other keys are ignored.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from llama_ablate.config.spec import digest
from llama_ablate.config.validation import quote
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


def text_of(values: Mapping[str, Any], key: str, *, empty: bool = False) -> str:
    """Return the text at a key of an item. Raises ConfigError for any other value.

    Blank text is accepted only with `empty`.
    """
    value = values[key]
    if not isinstance(value, str) or (not value.strip() and not empty):
        raise ConfigError(f"'{key}' is {quote(value)}: must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"'{key}' holds half a character (a surrogate)") from None
    return value


def pair(right: str, wrong: str, *, group: str = "", place: str = "") -> Item:
    """Return the item of a minimal pair. Raises ConfigError if both sentences are equal."""
    if right == wrong:
        raise ConfigError("both sentences are the same")
    return Item("", (right, wrong), 0, group=group, place=place)


def checked_choices(choices: Any) -> tuple[str, ...]:
    """Validate an item's choices. Raises ConfigError for fewer than two, or a blank choice."""
    if not isinstance(choices, list | tuple):
        raise ConfigError(f"'choices' is {quote(choices)}: must be a list of texts")
    if len(choices) < 2:
        raise ConfigError(f"'choices' has {len(choices)}: must be two or more")
    return tuple(text_of({f"choices[{i}]": c}, f"choices[{i}]") for i, c in enumerate(choices))


def checked_answer(answer: Any, choices: Sequence[str]) -> int:
    """Return the index of the correct choice, stated as an index or its text.

    Raises ConfigError if the answer is not exactly one of the choices.
    """
    if isinstance(answer, str) and choices.count(answer) == 1:
        return choices.index(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    raise ConfigError(
        f"'answer' is {quote(answer)}: must be from 0 to {len(choices) - 1}, the place of the "
        "right one, or its text"
    )


#: Keys that an item of each kind must have.
_KEYS: Mapping[Kind, tuple[str, ...]] = {
    "multiple choice": ("choices", "answer"),
    "minimal pairs": ("sentence_good", "sentence_bad"),
    "last words": ("target",),
}


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
    names = [loaded_task.name for loaded_task in loaded]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two tasks are called '{twice[0]}'", ("task",))
    return [
        Task(loaded_task.name, loaded_task.kind, loaded_task.items[:limit])
        for loaded_task in loaded
    ]


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
    kinds: dict[Kind, str] = {}
    items = []
    for kind, item in _lines(path):
        kinds.setdefault(kind, item.place)
        if len(kinds) > 1:
            (first, at), (other, here) = kinds.items()
            message = f"{here}: an item of {other}, and {at} is one of {first}"
            raise ConfigError(f"{message}: a task has one kind", ("task",))
        items.append(item)
    if not items:
        raise ConfigError(f"the file '{path}' holds no items", ("task",))
    return Task(path.stem, next(iter(kinds)), tuple(items))


def _lines(path: Path) -> Iterator[tuple[Kind, Item]]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"the file '{path}' is not UTF-8 text (byte {error.start})"
        raise ConfigError(message, ("task",)) from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield _item(json.loads(line), f"{path}:{number}")
        except (ValueError, RecursionError) as error:
            why = error.message if isinstance(error, ConfigError) else f"not JSON: {error}"
            raise ConfigError(f"{path}:{number}: {why}", ("task",)) from None


def _item(values: Any, place: str) -> tuple[Kind, Item]:
    """Parse a line's values as an item with its kind. Raises ConfigError for invalid values."""
    if not isinstance(values, dict):
        raise ConfigError(f"an item is a mapping, not {quote(values)}")
    group = text_of(values, "group") if "group" in values else ""
    if "text" in values and "target" not in values:
        values = {**values, **_last_word(text_of(values, "text"))}
    kind = _kind(values)
    context = text_of(values, "context", empty=True) if "context" in values else ""
    if kind == "minimal pairs":
        sentences = (text_of(values, key) for key in _KEYS[kind])
        return kind, pair(*sentences, group=group, place=place)
    delimiter = " " if context and not context[-1].isspace() else ""
    if kind == "last words":
        if not context:
            raise ConfigError("last words need a 'context' before them")
        target = text_of(values, "target")
        return kind, Item(context, (target,), 0, delimiter, group, place)
    choices = checked_choices(values["choices"])
    answer = checked_answer(values["answer"], choices)
    return kind, Item(context, choices, answer, delimiter, group, place)


def _kind(values: Mapping[str, Any]) -> Kind:
    """Return the kind of an item by its keys. Raises ConfigError if keys are missing."""
    for kind, keys in _KEYS.items():
        having = [key for key in keys if key in values]
        if having and (lacking := [key for key in keys if key not in values]):
            raise ConfigError(f"an item with '{having[0]}' needs '{lacking[0]}' too")
        if having:
            return kind
    kinds = "; ".join(" and ".join(f"'{key}'" for key in keys) for keys in _KEYS.values())
    raise ConfigError(f"no item of a task, which has one of: {kinds}; 'text'")


def _last_word(text: str) -> dict[str, str]:
    """Split a text into context and last word. Raises ConfigError for a single word."""
    context, _, target = text.rstrip().rpartition(" ")
    if not context.strip():
        raise ConfigError("'text' has one word: the last words of a task need others before them")
    return {"context": context, "target": target}
