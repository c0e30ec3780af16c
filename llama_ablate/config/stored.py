"""Sections of an experiment that a plan or a protocol stores, read by today's schema."""

import copy
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import ValidationError

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
            refusal = error.errors()[0]
        where = error_path(values, refusal)
        if refusal["type"] == "missing":
            where = where[:-1]
        if where[:1] and where[0] in _WHOLE_ENTRIES:
            where = where[:2]
        try:
            refused.append(Refusal(where, _pop(values, where)))
        except LookupError:
            what = f"no {kind.__name__.lower()} is stored there"
            raise ConfigError(f"{what}: {refusal['msg']}") from None


def _pop(values: Any, where: Where) -> Any:
    """Remove the value at a path and return it. Raises LookupError where there is none."""
    if not where:
        raise LookupError
    for key in where[:-1]:
        values = values[key]
    return values.pop(where[-1])
