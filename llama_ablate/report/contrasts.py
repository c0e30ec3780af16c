"""Effects of factors in a factorial design, and of the steps along a path."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from llama_ablate.config.registry import entry_text
from llama_ablate.config.sections import Train
from llama_ablate.evidence import Effect, contrasts, paired_effect
from llama_ablate.evidence.intervals import holm
from llama_ablate.report.frames import TableFrames
from llama_ablate.results.plan import PlannedVariant

_FACTORS = ("factor", "levels", "difference_nats", "low_nats", "high_nats", "p_holm")


def factors(table: TableFrames) -> pd.DataFrame:
    """Return main effects and two-way interactions of a factorial design with two-level factors.

    Columns: `factor, levels, difference_nats, low_nats, high_nats, p_holm`. Empty for other
    designs, and until every variant has finished a seed that all have.
    """
    variants = [variant for variant in table.plan.variants if not variant.role]
    names = list(variants[0].levels)
    two = all({v.levels[name] for v in variants} == {0, 1} for name in names)
    seeds = sorted(set.intersection(*(set(table.losses[v.id]) for v in variants)))
    if not names or not two or not seeds:
        return pd.DataFrame(columns=list(_FACTORS))
    levels = {v.id: [v.levels[name] for name in names] for v in variants}
    losses = {v.id: [table.losses[v.id][seed] for seed in seeds] for v in variants}
    written = {name: _levels(variants, name, table.experiment.train) for name in names}
    rows = [
        (
            " x ".join(contrast.factors),
            "; ".join(written[factor] for factor in contrast.factors),
            contrast.effect.mean,
            contrast.effect.low,
            contrast.effect.high,
            contrast.p_holm,
        )
        for contrast in contrasts(levels, names, losses)
    ]
    return pd.DataFrame(rows, columns=list(_FACTORS))


def _levels(variants: Sequence[PlannedVariant], name: str, train: Train) -> str:
    """Write a factor's two values: that of level 0, and that of level 1."""
    key = name.removeprefix("train.")
    values: dict[int, Any] = {
        v.levels[name]: v.model[name] if key == name else v.train.get(key, getattr(train, key))
        for v in variants
    }
    texts = [entry_text(values[level], options=False) for level in (0, 1)]
    if texts[0] == texts[1]:
        texts = [entry_text(values[level]) for level in (0, 1)]
    return " -> ".join(texts)


def steps(table: TableFrames) -> pd.DataFrame:
    """Return the effect of each step of a path, and of all steps up to it together.

    Columns: `step, marginal_nats, marginal_low, marginal_high, p_holm, cumulative_nats,
    cumulative_low, cumulative_high`. Empty for other designs. Marginal is against the step before,
    over the seeds that both finished; Holm's correction is over the steps.
    """
    if table.experiment.variants.design != "path":
        return pd.DataFrame()
    path = [variant for variant in table.plan.variants if not variant.role]
    rows = []
    for before, now in itertools.pairwise(path):
        own = table.losses[now.id]
        step, total = (_effect(own, table.losses[other.id]) for other in (before, path[0]))
        rows.append(
            {
                "step": now.label,
                "marginal_nats": step.mean,
                "marginal_low": step.low,
                "marginal_high": step.high,
                "p_holm": step.p,
                "cumulative_nats": total.mean,
                "cumulative_low": total.low,
                "cumulative_high": total.high,
            }
        )
    frame = pd.DataFrame(rows)
    if len(frame):
        frame["p_holm"] = holm(list(frame["p_holm"]))
    return frame


def _effect(losses: Mapping[int, float], against: Mapping[int, float]) -> Effect:
    seeds = [seed for seed in losses if seed in against]
    return paired_effect([losses[s] for s in seeds], [against[s] for s in seeds])
