"""Precision that a plan's rows can be expected to have, from a pilot's noise or a usual one."""

import math
from typing import Any

import numpy as np

from llama_ablate.evidence.factorial import weights
from llama_ablate.evidence.power import USUAL_SD, WANTED, Noise, Rows, fewest_seeds
from llama_ablate.evidence.sequential import spending
from llama_ablate.evidence.text_error import LEAST_DF
from llama_ablate.findings.frames import TableFrames
from llama_ablate.results.plan_document import PlanDocument


def noise_of(pilot: TableFrames) -> Noise | None:
    """Return the mean noise of the rows of finished results.

    Return None if no variant differs from the baseline over two or more seeds.
    """
    compared = (v for v in pilot.plan.variants if not (v.baseline or v.role))
    rows = [pilot.intervals[variant.id] for variant in compared]
    noisy = [row for row in rows if row.n > 1 and row.seed_se > 0]
    if not noisy:
        return None
    seeds = math.sqrt(np.mean([row.seed_se**2 * row.n for row in noisy]))
    text = math.sqrt(np.mean([row.text_se**2 for row in noisy]))
    return Noise(seeds, text, float(np.median([max(row.text_df, LEAST_DF) for row in noisy])))


def rows_of(plan: PlanDocument, noise: Noise | None) -> Rows:
    """Return the rows of a plan's first table with a noise, by default the usual one."""
    table, looks = plan.tables[0], plan.experiment.looks
    own_noise = noise or Noise(USUAL_SD)
    variants = [variant for variant in table.variants if not variant.role]
    if factors := list(table.baseline.levels):
        levels = {variant.id: list(variant.levels.values()) for variant in variants}
        squares = [float((w**2).sum()) for w in weights(levels, factors).values()]
        sd = math.sqrt(float(np.median(squares)) / 2)
        return Rows(len(squares), own_noise, len(levels), sd)
    share = (plan.experiment.spend or spending(looks))[-1]
    return Rows(max(len(variants) - 1, 1), own_noise, share=share)


def expect(plan: PlanDocument, noise: Noise | None, margin: float) -> dict[str, Any]:
    """Compute the expected half width of a row's interval, and the seeds for less than a margin.

    The range of the half width is a factor of two in either direction.
    """
    rows = rows_of(plan, noise)
    width = rows.half_width(len(plan.experiment.seed_list))
    return {
        "half_width": width,
        "half_low": width / 2,
        "half_high": width * 2,
        "is_enough": width < margin,
        "seeds_needed": fewest_seeds(lambda seeds: rows.half_width(seeds) < margin),
    }


def promise(plan: PlanDocument, noise: Noise, effect: float) -> dict[str, Any]:
    """Compute the power to detect a true effect, and the seeds for a power of 0.8."""
    rows, seeds = rows_of(plan, noise), len(plan.experiment.seed_list)
    return {
        "effect": effect,
        "half_width": rows.half_width(seeds),
        "power": rows.power(effect, seeds) if seeds > 1 else 0.0,
        "seeds_needed": fewest_seeds(lambda count: rows.power(effect, count) >= WANTED),
    }
