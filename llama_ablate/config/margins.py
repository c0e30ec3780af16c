"""Parse margins, a number and a unit: "0.01 nats", "5%", "0.1 points"."""

import math
import re

_STATED = re.compile(r"((?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?) ?(nats|%|points)", re.ASCII)


def read(stated: object) -> tuple[float, str]:
    """Return size and unit; (0, "") for anything else."""
    match = _STATED.fullmatch(stated) if isinstance(stated, str) else None
    if match is None or math.isinf(size := float(match[1])):
        return 0.0, ""
    return size, match[2]


def nats(stated: object) -> float | None:
    """Return a margin in nats; None for anything else, and for one that is not above 0."""
    size, unit = read(stated)
    return size if size and unit == "nats" else None
