"""Types of names and numbers in stored results, checked when a file is read."""

import math
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from llama_ablate.errors import ConfigError

_T = TypeVar("_T")
#: Largest measured number: the squares of larger numbers are infinite, and results of them are NaN.
LARGEST = 1e100

#: The id of a variant or a run, which is a part of the names of folders.
Id = Annotated[str, Field(pattern=r"^[0-9a-z]{1,32}$")]
#: The fingerprint of a text or of its tokens, which is the name of their folder.
Fingerprint = Annotated[str, Field(pattern=r"^[0-9a-z]{1,32}$")]
#: The name of a metric, which is also a name of files and figures.
MetricName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}$")]
#: A number of things, or a size.
Count = Annotated[int, Field(ge=0, le=10**18)]
Positive = Annotated[int, Field(gt=0, le=10**18)]


#: A short text in tables and figures: a name, a unit.
Word = Annotated[str, Field(max_length=200)]
#: A longer text in tables and figures: a label, a reason.
Text = Annotated[str, Field(max_length=10_000)]


def _entries(options: dict[str, Any]) -> dict[str, Any]:
    """Check, at any depth, that a component's `name` is text and `pattern` a list.

    Raises ValueError otherwise.
    """
    for value in options.values():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, dict):
                _entries(inner)
    for key, kind in (("name", str), ("pattern", list)):
        if not isinstance(options.get(key, kind()), kind):
            raise ValueError(f"a component's {key} is none")  # noqa: TRY004
    return options


#: Sizes, components and their options by the keys of an experiment file.
Options = Annotated[dict[str, Any], AfterValidator(_entries)]


def _bounded(value: float) -> float:
    if math.isfinite(value) and abs(value) > LARGEST:
        raise ValueError(f"a number is at most {LARGEST:g}")
    return value


def _all_bounded(values: tuple[float, ...]) -> tuple[float, ...]:
    if values:
        _bounded(max(map(abs, filter(math.isfinite, values)), default=0.0))
    return values


#: A measured number; NaN and infinities are allowed.
Number = Annotated[float, AfterValidator(_bounded)]
Numbers = Annotated[tuple[float, ...], AfterValidator(_all_bounded)]


def typed(kind: TypeAdapter[_T], stored: object, where: object) -> _T:
    """Validate a stored value as a type.

    Raises ConfigError for an invalid value, naming the file and the key.
    """
    try:
        return kind.validate_python(stored)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        place = f"{key}: " if key else ""
        raise ConfigError(f"{where}: damaged, {place}{first['msg']}") from None
