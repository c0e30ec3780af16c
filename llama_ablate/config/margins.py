"""A margin as files and commands state it, number and unit: "0.01 nats", "5%", "0.1 points"."""

import math
import re

_STATED = re.compile(r"((?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?) ?(nats|%|points)", re.ASCII)


def read(stated: object) -> tuple[float, str]:
    """Return size and unit; (0, "") of what is no margin."""
    found = _STATED.fullmatch(stated) if isinstance(stated, str) else None
    if found is None or math.isinf(size := float(found[1])):
        return 0.0, ""
    return size, found[2]


def nats(stated: object) -> float | None:
    """Return a margin of the loss; None of what is none, or is not above 0."""
    size, unit = read(stated)
    return size if size and unit == "nats" else None
