"""The headline of a report: what the experiment answers, in a sentence."""

import math

from llama_ablate.report import contrasts, tables
from llama_ablate.report.frames import Frames, rows

#: Verdicts in the order in which the answer names them.
_VERDICTS = (
    "better",
    "worse",
    "equivalent",
    "diverged",
    "collapsed",
    "inconclusive",
    "failed",
    "pending",
)


def headline(frames: Frames) -> str:
    """Say in a sentence what the first table shows: of a factorial design, its factors."""
    effects = contrasts.factors(frames.table)
    if len(effects):
        return contrasts.answer(effects)
    frame = frames.table.comparison
    variants = frame[frame["role"] == ""].sort_values("difference_nats")
    parts = []
    for verdict in _VERDICTS:
        named = [
            str(row.label)
            + ("" if math.isnan(row.difference_nats) else f" ({row.difference_nats:+.4f})")
            for row in rows(variants[variants["verdict"] == verdict])
        ]
        if named:
            parts.append(f"{verdict}: {tables.listed(named)}")
    shown = "; ".join(parts) or "nothing yet"
    return f"Against '{frames.table.plan.baseline.label}' (difference in nats): {shown}."
