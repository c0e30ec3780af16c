"""Verdicts of a table's rows: paired t tests and equivalence tests with Holm's correction."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llama_ablate.evidence.intervals import equivalence_p, holm, seeds_to_tell
from llama_ablate.evidence.pairing import paired_effect

#: What the losses of a variant show; or, where they cannot, how its runs ended.
Verdict = Literal[
    "better",
    "worse",
    "equivalent",
    "inconclusive",
    "diverged",
    "collapsed",
    "failed",
    "pending",
    "baseline",
]


@dataclass(frozen=True)
class RowVerdict:
    """The verdict on one variant's differences, tested together with the table's other rows."""

    verdict: Verdict
    #: p of the paired t test, adjusted for the table (Holm).
    p_holm: float
    #: p of equivalence within the margin, adjusted for the table (Holm); NaN where none was stated.
    equivalence_p: float
    #: Where the verdict is inconclusive: seeds that would show the margin, or else an effect as
    #: large as the one seen, in this table, with a power of 0.8. None where that cannot be said.
    seeds_needed: int | None


def verdicts(
    differences: Mapping[str, Sequence[float]], *, margin: float | None = None, alpha: float = 0.05
) -> dict[str, RowVerdict]:
    """Return a verdict for each variant's differences from the baseline, lower being better.

    `equivalent` where two one-sided tests put the mean within `margin`; else `better` or `worse`
    where the paired t test rejects no difference; else `inconclusive`. Holm's correction runs over
    all rows, for equivalence and for difference apart. A variant that differs for certain, but by
    less than the margin, is equivalent.
    """
    effects = [paired_effect(values, [0.0] * len(values)) for values in differences.values()]
    unequal = holm([effect.p for effect in effects])
    alike = holm([equivalence_p(v, margin) if margin else math.nan for v in differences.values()])
    rows = {}
    for (name, values), effect, p, p_alike in zip(
        differences.items(), effects, unequal, alike, strict=True
    ):
        verdict: Verdict = "inconclusive"
        if p_alike < alpha:
            verdict = "equivalent"
        elif p < alpha:
            verdict = "better" if effect.mean < 0 else "worse"
        needed = None
        if verdict == "inconclusive":  # at Holm's first and hardest step: never too few
            needed = seeds_to_tell(values, margin, alpha / len(differences))
        rows[name] = RowVerdict(verdict, p, p_alike, needed)
    return rows
