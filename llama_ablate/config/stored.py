"""Sections of an experiment that a plan or a protocol stores, read by today's schema."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from llama_ablate.config.validation import Keys, error_path
from llama_ablate.errors import ConfigError, Where

#: Lists whose entries are left out whole: without one of its keys an entry states something else.
_WHOLE_ENTRIES = ("hypotheses", "guard")
Section = TypeVar("Section", bound=Keys)


class Refusal(NamedTuple):
    """A stored key or entry that today's schema refuses."""

    where: Where
    value: Any


class StoredSection(NamedTuple, Generic[Section]):
    """A stored section as far as today's schema knows it, and what it refuses."""

    section: Section
    refused: list[Refusal]


def read_stored(kind: type[Section], stored: Mapping[str, Any]) -> StoredSection[Section]:
    """Read a stored section without the keys and values that today's schema refuses.

    A file is checked strictly when a person writes it; results must stay readable after the schema
    has changed. A removed key is left out, and a removed value has the key's default. Raises
    ConfigError where no section remains.
    """
    values = copy.deepcopy(dict(stored))
    refused: list[Refusal] = []
    while True:
        try:
            return StoredSection(kind.model_validate(values), refused)
        except ValidationError as error:
            errors = error.errors(include_url=False)
        removed = [*_remove(values, {_place(values, each) for each in errors})]
        if not removed:
            what = f"no {kind.__name__.lower()} is stored there"
            raise ConfigError(f"{what}: {errors[0]['msg']}")
        refused += removed


def known_changes(kind: type[Keys], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the changes of a section's keys that today's schema knows."""
    return {key: value for key, value in changes.items() if key in kind.model_fields}


def _place(values: Any, error: ErrorDetails) -> Where:
    """Return the path of the key, or the entry, that an error is about."""
    where = error_path(values, error)
    if error["type"] == "missing":
        where = where[:-1]
    return where[:2] if where[:1] and where[0] in _WHOLE_ENTRIES else where


def _remove(values: Any, places: Iterable[Where]) -> Iterable[Refusal]:
    """Remove the values at some paths, and yield them; a part of a text is removed with it."""
    # From the last: an entry that is left out moves those behind it.
    order = sorted(places, key=lambda where: [(isinstance(k, str), k) for k in where])
    for where in reversed(order):
        section = values
        for depth, key in enumerate(where, 1):
            inner = section[key] if _has(section, key) else None
            if depth == len(where) or not isinstance(inner, dict | list):
                if _has(section, key):
                    yield Refusal(where[:depth], section.pop(key))
                break
            section = inner


def _has(section: Any, key: str | int) -> bool:
    return key in section if isinstance(section, dict) else 0 <= int(key) < len(section)
