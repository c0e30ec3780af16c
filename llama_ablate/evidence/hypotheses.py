"""What was claimed before the runs, held against what they gave."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llama_ablate.evidence.intervals import equivalence_p, holm, seeds_to_tell
from llama_ablate.evidence.pairing import Effect, paired_effect
from llama_ablate.evidence.student import above, standard_error

Direction = Literal["better", "worse", "equivalent"]
Finding = Literal["supported", "refuted", "undecided"]


@dataclass(frozen=True)
class Claim:
    """A comparison stated before the runs: the variant's loss against another's."""

    direction: Direction
    #: By how much more it must be better or worse; within how much it must be equivalent. Below 0
    #: it may even fall short: "not worse by 0.01" is better by -0.01.
    margin: float


@dataclass(frozen=True)
class Tested:
    """A claim, and what the paired differences (variant minus the other) say of it."""

    finding: Finding
    effect: Effect
    #: One-sided p of what the claim says, and of its contrary, both adjusted (Holm) for the list.
    p_for: float
    p_against: float
    #: Where undecided: seeds that would show the margin with a power of 0.8; None if unknown.
    seeds_needed: int | None


def examine(claims: Sequence[tuple[Claim, Sequence[float]]], alpha: float = 0.05) -> list[Tested]:
    """Return a finding for each claim with its differences over seeds.

    `better` by a margin is supported where a one-sided t test puts the mean below -margin, and
    refuted where one puts it above; `worse` is its mirror image. `equivalent` is supported by two
    one-sided tests (Schuirmann 1987), and refuted where one puts the mean beyond the margin. Holm's
    correction runs over the list, for and against apart, so the chance of any false finding of
    either kind is at most alpha. Raises ValueError for an equivalence without a margin.
    """
    ps = [_one_sided(claim, differences) for claim, differences in claims]
    p_for, p_against = holm([p for p, _ in ps]), holm([p for _, p in ps])
    found = []
    for (claim, differences), yes, no in zip(claims, p_for, p_against, strict=True):
        finding: Finding = "supported" if yes < alpha else "refuted" if no < alpha else "undecided"
        effect = paired_effect(differences, [0.0] * len(differences))
        hardest = alpha / len(claims)  # Holm's first step, as if it were this claim's
        needed = (
            seeds_to_tell(differences, abs(claim.margin), hardest)
            if finding == "undecided"
            else None
        )
        found.append(Tested(finding, effect, yes, no, needed))
    return found


def _one_sided(claim: Claim, differences: Sequence[float]) -> tuple[float, float]:
    """Return the p of what a claim says, and of its contrary."""
    if claim.direction == "equivalent" and not claim.margin > 0:
        raise ValueError("an equivalence needs a margin above 0")
    if len(differences) < 2:
        return math.nan, math.nan
    mean = float(np.mean(differences))
    if claim.direction == "equivalent":
        beyond = _below(claim.margin - abs(mean), differences)
        return equivalence_p(differences, claim.margin), beyond
    toward = mean if claim.direction == "better" else -mean
    p = _below(toward + claim.margin, differences)
    return p, 1 - p


def _below(distance: float, differences: Sequence[float]) -> float:
    """Return the p of a one-sided t test that a quantity estimated as `distance` is below 0."""
    error = standard_error(differences)
    if error == 0:
        return 0.0 if distance < 0 else 1.0
    return above(-distance / error, len(differences) - 1)
