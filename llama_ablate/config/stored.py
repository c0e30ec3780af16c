"""Stored sections of an experiment, from plans and protocols, read by today's schema."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from llama_ablate.config.validation import Keys, error_path
from llama_ablate.errors import ConfigError, Where

#: Lists whose refused entries are removed as a whole, since a missing key would change their
#: meaning.
_WHOLE_ENTRIES = ("hypotheses", "guard")
Section = TypeVar("Section", bound=Keys)


class Refusal(NamedTuple):
    """Stored key or entry that today's schema refuses."""

    where: Where
    value: Any


class StoredSection(NamedTuple, Generic[Section]):
    """Stored section in today's schema, with its refused keys and entries."""

    section: Section
    refused: list[Refusal]


def read_stored(kind: type[Section], stored: Mapping[str, Any]) -> StoredSection[Section]:
    """Read a stored section without the keys and values that today's schema refuses.

    An experiment file is checked strictly when a person writes it; results must stay readable after
    the schema has changed. A refused key is left out, and a refused value is replaced by the key's
    default. Raises ConfigError if no valid section remains.
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
    """Return the changes whose keys today's schema knows for a section."""
    return {key: value for key, value in changes.items() if key in kind.model_fields}


def _place(values: Any, error: ErrorDetails) -> Where:
    """Return the path of the key or list entry that caused an error."""
    where = error_path(values, error)
    if error["type"] == "missing":
        where = where[:-1]
    if error["type"] == "extra_forbidden" and error["input"] is None:
        return where  # an option that was not used changes no meaning
    return where[:2] if where[:1] and where[0] in _WHOLE_ENTRIES else where


def _remove(values: Any, places: Iterable[Where]) -> Iterable[Refusal]:
    """Remove the values at some paths from a section; yield each removed path and value.

    If a path continues below a scalar, the scalar is removed.
    """
    # The order is from the last, since a removed entry shifts the later entries of its list.
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
