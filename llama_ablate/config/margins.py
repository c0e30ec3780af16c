"""Parse margins, a number and a unit: "0.01 nats", "0.01 bits/byte", "5%", "0.1 points"."""

import math
import re

#: Units of a loss: nats per token, or bits per byte if variants differ in their tokenizers.
NATS, BITS = "nats", "bits/byte"
LOSS_UNITS = (NATS, BITS)
_MARGIN_PATTERN = re.compile(
    rf"((?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?) ?({'|'.join(LOSS_UNITS)}|%|points)", re.ASCII
)


def read(stated: object) -> tuple[float, str]:
    """Parse a margin to its size and unit; return (0, "") for anything else."""
    match = _MARGIN_PATTERN.fullmatch(stated) if isinstance(stated, str) else None
    if match is None or math.isinf(size := float(match[1])):
        return 0.0, ""
    return size, match[2]


def loss_margin(stated: object) -> float | None:
    """Return the size of a positive margin in a loss unit; otherwise None."""
    size, unit = read(stated)
    return size if size and unit in LOSS_UNITS else None
