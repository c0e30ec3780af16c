"""Expected half width of a plan's intervals, and the seeds that they need, in closed form."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llama_ablate.evidence.factorial import weights
from llama_ablate.evidence.intervals import ALPHA, PRIOR_DF, join_errors
from llama_ablate.evidence.sequential import spending
from llama_ablate.evidence.text_error import LEAST_DF
from llama_ablate.findings.stages import find_differences
from llama_ablate.findings.table import Table
from llama_ablate.results.plan_document import PlanDocument

#: Assumed standard deviation over seeds of a paired difference without a pilot, in nats: the value
#: over 33 experiments of this repository with 0.1M to 10M parameters, accurate to a factor of two.
USUAL_SD = 0.017
MORE_TEXT = 4  # factor of held-out text whose half width is stated: it halves the text's error
_MAX_SEEDS = 500  # largest number of seeds to suggest


@dataclass(frozen=True)
class Noise:
    """Noise of a paired difference, in nats per token or bits per byte."""

    #: Standard deviation of the differences over seeds.
    seeds: float
    #: Standard error from the held-out text, with its degrees of freedom.
    text: float = 0.0
    text_df: float = math.inf


@dataclass(frozen=True)
class Rows:
    """Rows of a table before it is measured; all are assumed to be equally noisy.

    In a factorial design the rows are effects: `cells` is the number of cells, and `spread` the
    noise of an effect divided by the noise of a difference. `share` is the share of the error level
    that the last look spends.
    """

    count: int
    noise: Noise
    cells: int = 2
    spread: float = 1.0
    share: float = 1.0

    def half_width(self, seeds: int) -> float:
        """Return the expected half width of a row's interval; NaN for a single seed."""
        if seeds < 2:
            return math.nan
        own_df = (self.cells - 1.0) * (seeds - 1.0)
        df = own_df + (PRIOR_DF if self.cells == 2 and self.count > 1 else 0.0)
        error, noise = self.noise.seeds * self.spread / math.sqrt(seeds), self.noise
        level = ALPHA * self.share / self.count
        return float(join_errors(error, df, noise.text, noise.text_df, own_df + 1, level))

    def fewest_seeds(self, margin: float) -> int | None:
        """Return the smallest number of seeds for less than a margin; None if none is found."""
        counts = range(2, _MAX_SEEDS)
        return next((seeds for seeds in counts if self.half_width(seeds) < margin), None)


def find_noise(pilot: Table) -> Noise | None:
    """Return the mean noise of the rows of finished results.

    Return None if no variant differs from the baseline over two or more seeds.
    """
    compared = [v.id for v in pilot.plan.variants if not (v.baseline or v.role)]
    rows = find_differences(pilot).loc[compared]
    rows = rows[rows["n"].gt(1) & rows["seed_se"].gt(0)]
    if rows.empty:
        return None
    seeds = math.sqrt((rows["seed_se"] ** 2 * rows["n"]).mean())
    text = math.sqrt((rows["text_se"] ** 2).mean())
    return Noise(seeds, text, float(rows["text_df"].clip(lower=LEAST_DF).median()))


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

    The range of the half width is a factor of two in either direction. With a pilot's noise, also
    the held-out text's share of the squared half width, and the half width with more such text.
    """
    rows, seeds = rows_of(plan, noise), len(plan.experiment.seed_list)
    width = rows.half_width(seeds)
    values: dict[str, Any] = {
        "half_width": width,
        "half_low": width / 2,
        "half_high": width * 2,
        "is_enough": width < margin,
        "seeds_needed": rows.fewest_seeds(margin),
    }
    if noise and noise.text and seeds > 1:
        without_text = replace(rows, noise=Noise(noise.seeds)).half_width(seeds)
        more = replace(noise, text=noise.text / math.sqrt(MORE_TEXT))
        values["text_share"] = 1 - (without_text / width) ** 2
        values["half_width_with_more_text"] = replace(rows, noise=more).half_width(seeds)
    return values
