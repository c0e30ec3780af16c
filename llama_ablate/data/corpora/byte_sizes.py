"""Amounts of text as people write them: a number and a unit, `200MB`."""

import re
from typing import Annotated

from pydantic import BeforeValidator

from llama_ablate.errors import ConfigError

_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_STATED = re.compile(r"(\d+(?:\.\d+)?|\.\d+) ?(kB|MB|GB|TB)", re.ASCII | re.IGNORECASE)


def size_of(stated: str | None) -> int | None:
    """Return the bytes of `200MB`; None for None.

    Raises ConfigError for what is no number above 0 with a unit: kB, MB, GB or TB, powers of 1000.
    """
    if stated is None:
        return None
    match = _STATED.fullmatch(stated) if isinstance(stated, str) else None
    unit = match and next(size for name, size in _UNITS.items() if name.lower() == match[2].lower())
    size = round(float(match[1]) * unit) if match and unit else 0
    if not size:
        raise ConfigError(
            f"'{stated!s:.60}' is no amount of text: write a number above 0 with its unit, such as "
            f"200MB; allowed units: {', '.join(_UNITS)}"
        )
    return size


def _checked(stated: str | None) -> str | None:
    size_of(stated)
    return stated


#: The type of an option that holds an amount of text.
Size = Annotated[str | None, BeforeValidator(_checked)]
