"""Items of tasks: what a model is asked, and what makes a text, choices and an answer of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llama_ablate.config.spec import digest
from llama_ablate.config.validation import shown
from llama_ablate.errors import ConfigError

Kind = Literal["multiple choice", "last words", "minimal pairs"]


@dataclass(frozen=True)
class Item:
    """A context and its possible continuations, of which one is right."""

    context: str
    #: Of last words there is one: the target.
    choices: tuple[str, ...]
    answer: int
    #: What stands between the context and a choice.
    delimiter: str = ""
    #: Accuracies of groups are told apart.
    group: str = ""
    #: Its file and line, for messages.
    place: str = ""

    @property
    def continuations(self) -> tuple[str, ...]:
        """The texts that are scored after the context."""
        return tuple(self.delimiter + choice for choice in self.choices)


@dataclass(frozen=True)
class Task:
    """Items of one kind, under a name."""

    name: str
    kind: Kind
    items: tuple[Item, ...]

    @property
    def fingerprint(self) -> str:
        """A hash of the items: equal where all variants answered the same."""
        return digest([[i.context, i.choices, i.answer, i.delimiter] for i in self.items])

    @property
    def chance(self) -> float | None:
        """The accuracy of who guesses; None for last words, which can be anything."""
        if self.kind == "last words":
            return None
        return sum(1 / len(item.choices) for item in self.items) / len(self.items)


def text_of(values: Mapping[str, Any], key: str, *, empty: bool = False) -> str:
    """Return a text of an item. Raises ConfigError for what is none."""
    value = values[key]
    if not isinstance(value, str) or (not value.strip() and not empty):
        raise ConfigError(f"'{key}' is {shown(value)}: must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"'{key}' holds half a character (a surrogate)") from None
    return value


def pair(right: str, wrong: str, *, group: str = "", place: str = "") -> Item:
    """Return a minimal pair. Raises ConfigError where both sentences are the same."""
    if right == wrong:
        raise ConfigError("both sentences are the same")
    return Item("", (right, wrong), 0, group=group, place=place)


def checked_choices(choices: Any) -> tuple[str, ...]:
    """Return the choices of an item. Raises ConfigError for fewer than two, and empty ones."""
    if not isinstance(choices, list | tuple):
        raise ConfigError(f"'choices' is {shown(choices)}: must be a list of texts")
    if len(choices) < 2:
        raise ConfigError(f"'choices' has {len(choices)}: must be two or more")
    return tuple(text_of({f"choices[{i}]": c}, f"choices[{i}]") for i, c in enumerate(choices))


def checked_answer(answer: Any, choices: Sequence[str]) -> int:
    """Return which choice is right: its place, counted from 0, or its text.

    Raises ConfigError where none is.
    """
    if isinstance(answer, str) and choices.count(answer) == 1:
        return choices.index(answer)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    raise ConfigError(
        f"'answer' is {shown(answer)}: must be from 0 to {len(choices) - 1}, the place of the "
        "right one, or its text"
    )
