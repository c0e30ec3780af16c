"""Validate sections of files, with errors of one line.

An error states the refused value, the allowed values and the nearest match.
"""

import re
import types
import typing
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from llama_ablate.errors import ConfigError, Where, nearest

#: Plain words for the type names in pydantic's messages.
_PLAIN = {
    "boolean": "true or false",
    "dictionary": "a mapping (key: value)",
    "integer": "a whole number",
    "list": "a list, in [ ]",
    "number": "a number",
    "string": "text",
}


class Keys(BaseModel):
    """Base class of sections of a file, and of a component's options.

    Unknown keys and wrong types are errors.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def check(cls, values: object, where: Where = ()) -> Self:
        """Validate values as this section. Raises ConfigError for the first error.

        `where` is the section's path in the file.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            errors = [(error_path(values, wrong), wrong) for wrong in error.errors()]
            # An unknown key is often a misspelt required one, so it comes first.
            first, _ = min(errors, key=lambda pair: pair[1]["type"] != "extra_forbidden")
            # Of a union's members, take the one that validated furthest.
            within = [pair for pair in errors if pair[0][: len(first)] == first]
            path, wrong = max(within, key=lambda pair: len(pair[0]))
            words = [
                f", or be {other['ctx']['expected']}"
                for at_path, other in within
                if other["type"] == "literal_error" and at_path == path and other is not wrong
            ]
            message = _sentence(cls, wrong) + "".join(words[:1])
            raise ConfigError(message, (*where, *path)) from None


def error_path(values: Any, error: ErrorDetails) -> Where:
    """Return the path of keys to an error, without the type names that pydantic adds in unions."""
    path: list[str | int] = []
    for key in error["loc"]:
        try:
            values = values[key]
        except (LookupError, TypeError):
            continue
        path.append(key)
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    cause = error.get("ctx", {}).get("error")
    return (*path, *cause.where) if isinstance(cause, ConfigError) else tuple(path)


def _sentence(model: type[BaseModel], error: ErrorDetails) -> str:
    kind, loc, value = error["type"], error["loc"], error["input"]
    if kind == "extra_forbidden":
        keys, below = _keys_at(model, loc[:-1])
        hint = nearest(loc[-1], keys, below) if keys else "; it takes no keys"
        return f"unknown key '{loc[-1]}'{hint}"
    if kind == "missing":
        short = "is too short: one value more is needed"
        return short if isinstance(loc[-1], int) else f"the key '{loc[-1]}' is needed here"
    if kind == "literal_error":
        expected = error["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        return f"{quote(value)} is not allowed here{nearest(value, expected.split(', '))}"
    if kind == "value_error":
        return str(error["ctx"]["error"])
    message = re.sub(r"^(Input|[A-Z][a-z]+(?= should)) ", "", error["msg"])
    message = message.replace(" after validation", "").replace("an instance of Sequence", "a list")
    message = re.sub(r"a valid (\w+)", lambda match: _PLAIN.get(match[1], match[0]), message)
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        message += f"; write {int(value):_}"
    if kind.startswith("model_type"):
        message = "should be a mapping (key: value)"
    return f"{quote(value)} ({_kind(value)}) is not accepted: it {message}"


def quote(value: object) -> str:
    """Quote a value for a message, cut to a length that fits on a line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(value: object) -> str:
    names = {dict: "mapping", list: "list", str: "text", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)


def _keys_at(model: Any, loc: tuple[str | int, ...]) -> tuple[list[str], list[str]]:
    """List the keys of the section at `loc`, and the dotted keys of its subsections."""
    for key in loc:
        fields = _fields(model)
        if key in fields:
            model = _section_of(fields[key].annotation)
    below = [
        f"{name}.{key}"
        for name, field in _fields(model).items()
        if typing.get_origin(field.annotation) is not list
        for key in _fields(_section_of(field.annotation))
    ]
    return list(_fields(model)), below


def _fields(model: Any) -> dict[str, Any]:
    return getattr(model, "model_fields", {})


def _section_of(annotation: Any) -> Any:
    """Return the section inside `Section | None`, `int | Section` or `list[Section]`."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, list):
        members = typing.get_args(annotation)
        return next((member for member in members if hasattr(member, "model_fields")), None)
    return annotation
