"""Pydantic's findings, said the project's way: one sentence, what was given, what is allowed."""

import types
import typing
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from llama_ablate.errors import ConfigError, Where, nearest


class Section(BaseModel):
    """A part of a file or a component's options: unknown keys and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    @classmethod
    def check(cls, values: object, where: Where = ()) -> Self:
        """Return the validated section, or raise ConfigError for the first thing that is wrong."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            # An unknown key often *causes* the missing one (a typo in it), so it is told first.
            found = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
            location = tuple(key for key in found["loc"] if not _is_type_tag(key))
            if found["type"] in ("missing", "extra_forbidden"):
                location = found["loc"]
            raise ConfigError(_sentence(cls, found), (*where, *location)) from None


def _is_type_tag(key: str | int) -> bool:
    # Inside a union pydantic adds the member's name to the path: ('seeds', 'list[int]', 0).
    return isinstance(key, str) and (
        "[" in key or key in ("int", "float", "str", "bool", "dict", "list", "none")
    )


def _sentence(model: type[BaseModel], found: ErrorDetails) -> str:
    kind, loc, given = found["type"], found["loc"], found["input"]
    if kind == "extra_forbidden":
        return f"unknown key '{loc[-1]}'{nearest(loc[-1], _keys_at(model, loc[:-1]))}"
    if kind == "missing":
        return f"the key '{loc[-1]}' is needed here"
    if kind == "literal_error":
        expected = found["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        return f"{shown(given)} is not allowed here{nearest(given, expected.split(', '))}"
    if kind == "value_error":
        return str(found["ctx"]["error"])
    message = found["msg"].removeprefix("Input ")
    if kind.startswith("model_type"):
        message = "should be a mapping (key: value)"
    return f"{shown(given)} ({_kind(given)}) is not accepted: it {message}"


def shown(given: object) -> str:
    """Quote a value for a message, cut to a length that fits on a line."""
    text = repr(given)
    return text if len(text) <= 60 else text[:57] + "..."


def _kind(given: object) -> str:
    names = {dict: "mapping", list: "list", str: "text", type(None): "nothing"}
    return names.get(type(given), type(given).__name__)


def _keys_at(model: Any, loc: tuple[str | int, ...]) -> list[str]:
    """List the keys that the section at `loc` knows."""
    for key in loc:
        fields = getattr(model, "model_fields", {})
        if key in fields:
            model = _section_of(fields[key].annotation)
    return list(getattr(model, "model_fields", {}))


def _section_of(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next((a for a in typing.get_args(annotation) if a is not type(None)), None)
    return annotation
