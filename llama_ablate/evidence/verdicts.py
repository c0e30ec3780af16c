"""A verdict for each row of a table, with the table's chance of a false one under control."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from llama_ablate.evidence.intervals import equivalence_p, holm, seeds_to_tell
from llama_ablate.evidence.pairing import Verdict, paired_effect


@dataclass(frozen=True)
class Ruling:
    """What the differences of one variant say, in the company of the table's other rows."""

    verdict: Verdict
    #: p of the paired t test, adjusted for the table (Holm).
    p_holm: float
    #: p of equivalence within the margin, adjusted for the table (Holm); NaN where none was stated.
    equivalence_p: float
    #: Where the verdict is inconclusive: seeds that would show the margin, or else an effect as
    #: large as the one seen, in this table, with a power of 0.8. None where that cannot be said.
    seeds_needed: int | None


def rule(
    differences: Mapping[str, Sequence[float]], *, margin: float | None = None, alpha: float = 0.05
) -> dict[str, Ruling]:
    """Return a ruling for each variant's differences from the baseline, lower being better.

    `equivalent` where two one-sided tests put the mean within `margin`; else `better` or `worse`
    where the paired t test rejects no difference; else `inconclusive`. Holm's correction runs over
    all rows, for equivalence and for difference apart. A variant that differs for certain, but by
    less than the margin, is equivalent.
    """
    effects = {
        name: paired_effect(values, [0.0] * len(values)) for name, values in differences.items()
    }
    adjusted = dict(zip(effects, holm([e.p for e in effects.values()]), strict=True))
    alike = [equivalence_p(v, margin) if margin else math.nan for v in differences.values()]
    within = dict(zip(effects, holm(alike), strict=True))
    rulings = {}
    for name, values in differences.items():
        said: Verdict = "inconclusive"
        if within[name] < alpha:
            said = "equivalent"
        elif adjusted[name] < alpha:
            said = "better" if effects[name].mean < 0 else "worse"
        # As if every row had to pass Holm's first and hardest step: never too few.
        hardest = alpha / len(differences)
        needed = seeds_to_tell(values, margin, hardest) if said == "inconclusive" else None
        rulings[name] = Ruling(said, adjusted[name], within[name], needed)
    return rulings
