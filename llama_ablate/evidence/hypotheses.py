"""One-sided t tests of hypotheses stated before the runs, with Holm's correction over the list."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llama_ablate.evidence.intervals import equivalence_p, holm, seeds_to_tell
from llama_ablate.evidence.pairing import Effect, paired_effect
from llama_ablate.evidence.student import above, standard_error

Direction = Literal["better", "worse", "equivalent"]
Result = Literal["supported", "refuted", "undecided"]


@dataclass(frozen=True)
class Hypothesis:
    """A comparison stated before the runs: the variant's loss against another's."""

    direction: Direction
    #: By how much more it must be better or worse; within how much it must be equivalent. A
    #: negative margin allows for falling short: "not worse by 0.01" is better by -0.01.
    margin: float


@dataclass(frozen=True)
class HypothesisResult:
    """The test result of a hypothesis, from paired differences (variant minus the other)."""

    result: Result
    effect: Effect
    #: One-sided p of the hypothesis and of its contrary, both adjusted (Holm) for the list.
    p_for: float
    p_against: float
    #: Where undecided: seeds that would show the margin with a power of 0.8; None if unknown.
    seeds_needed: int | None


def evaluate(
    hypotheses: Sequence[tuple[Hypothesis, Sequence[float]]], alpha: float = 0.05
) -> list[HypothesisResult]:
    """Return the test result of each hypothesis with its differences over seeds.

    `better` by a margin is supported where a one-sided t test puts the mean below -margin, and
    refuted where one puts it above; `worse` is its mirror image. `equivalent` is supported by two
    one-sided tests (Schuirmann 1987), and refuted where one puts the mean beyond the margin. Holm's
    correction runs over the list, for and against apart, so the chance of any false result of
    either kind is at most alpha. Raises ValueError for an equivalence without a margin.
    """
    ps = [_one_sided(hypothesis, differences) for hypothesis, differences in hypotheses]
    adjusted = zip(holm([p for p, _ in ps]), holm([p for _, p in ps]), strict=True)
    results = []
    for (hypothesis, differences), (p_for, p_against) in zip(hypotheses, adjusted, strict=True):
        result: Result = "undecided"
        if p_for < alpha:
            result = "supported"
        elif p_against < alpha:
            result = "refuted"
        effect = paired_effect(differences, [0.0] * len(differences))
        needed = None
        if result == "undecided":  # at Holm's first step, as if it were this hypothesis's
            needed = seeds_to_tell(differences, abs(hypothesis.margin), alpha / len(hypotheses))
        results.append(HypothesisResult(result, effect, p_for, p_against, needed))
    return results


def _one_sided(hypothesis: Hypothesis, differences: Sequence[float]) -> tuple[float, float]:
    """Return the p of a hypothesis and of its contrary."""
    if hypothesis.direction == "equivalent" and not hypothesis.margin > 0:
        raise ValueError("an equivalence needs a margin above 0")
    if len(differences) < 2:
        return math.nan, math.nan
    mean = float(np.mean(differences))
    if hypothesis.direction == "equivalent":
        beyond = _below(hypothesis.margin - abs(mean), differences)
        return equivalence_p(differences, hypothesis.margin), beyond
    toward = mean if hypothesis.direction == "better" else -mean
    p = _below(toward + hypothesis.margin, differences)
    return p, 1 - p


def _below(distance: float, differences: Sequence[float]) -> float:
    """Return the p of a one-sided t test that a quantity estimated as `distance` is below 0."""
    error = standard_error(differences)
    if error == 0:
        return 0.0 if distance < 0 else 1.0
    return above(-distance / error, len(differences) - 1)
