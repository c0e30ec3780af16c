"""Main effects and two-way interactions of designs in which every factor has two levels."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llama_ablate.evidence.intervals import holm
from llama_ablate.evidence.pairing import Effect, paired_effect


@dataclass(frozen=True)
class Contrast:
    """The main effect of one factor, or the interaction of two."""

    factors: tuple[str, ...]
    effect: Effect
    #: p of the effect, adjusted (Holm) for all contrasts of the design.
    p_holm: float


def contrasts(
    levels: Mapping[str, Sequence[int]],
    factors: Sequence[str],
    losses: Mapping[str, Sequence[float]],
) -> list[Contrast]:
    """Return every main effect and two-way interaction, with a t interval over seeds.

    `levels` gives each variant's level of each factor, 0 or 1; `losses` its losses, the same seeds
    in the same order for all. Within a seed a main effect is the mean at level 1 minus the mean at
    level 0; an interaction is that of the product of the two signs, half of what one factor changes
    about the other's effect (Box, Hunter & Hunter 2005, Statistics for Experimenters, chapter 5).
    Seeds are the independent repetitions, so what they share cancels. Raises ValueError where the
    levels of a contrast do not balance, or two contrasts cannot be told apart.
    """
    names = list(losses)
    values = np.array([losses[name] for name in names], float)
    signs = np.array([[2 * level - 1 for level in levels[name]] for name in names])
    columns: dict[tuple[str, ...], Any] = {(f,): signs[:, i] for i, f in enumerate(factors)}
    columns |= {
        (factors[i], factors[j]): signs[:, i] * signs[:, j]
        for i, j in itertools.combinations(range(len(factors)), 2)
    }
    for (a, x), (b, y) in itertools.combinations(columns.items(), 2):
        if abs(x @ y) == len(names):
            raise ValueError(f"{' x '.join(a)} and {' x '.join(b)} cannot be told apart")
    effects = {}
    for name, column in columns.items():
        if column.sum() != 0:
            raise ValueError(f"the levels of {' x '.join(name)} do not balance")
        high, low = values[column > 0].mean(0), values[column < 0].mean(0)
        effects[name] = paired_effect(list(high), list(low))
    adjusted = holm([effect.p for effect in effects.values()])
    return [Contrast(name, e, p) for (name, e), p in zip(effects.items(), adjusted, strict=True)]
