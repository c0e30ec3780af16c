"""Frames of tables made by hand, without a store and without training."""

import math
from dataclasses import replace

import pandas as pd

from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.values import MeasuredValues, RunRow
from llama_ablate.findings.warnings import warnings
from tests import plans


def frames(tables, *, roles=None, levels=None, planned=None, changes=None, **experiment):
    """Frames of some tables: by name, for each label its losses by seed, the baseline's first.

    In place of a loss stands how a run ended: `diverged`, `error`, `pending`. `roles`, `levels` and
    other `changes` are of the variants by label, `planned` changes each table of the plan.
    """
    roles, levels, planned, changes = roles or {}, levels or {}, planned or {}, changes or {}
    variants = {
        label: plans.variant(
            f"v{i}",
            label,
            baseline=i == 0,
            **{
                "role": roles.get(label, ""),
                "reseed": "both" if roles.get(label) == "aa" else "",
                "levels": levels.get(label, {}),
                "model": {"dim": 8, **_components(levels.get(label, {}))},
                **changes.get(label, {}),
            },
        )
        for i, label in enumerate(dict.fromkeys(label for own in tables.values() for label in own))
    }
    of_plan = [
        plans.table(
            [variants[label] for label in own],
            [plans.run(plans.id_of(name, v.id, s), v.id, s) for v, s, _ in _runs(variants, own)],
            {"vocab": 256},
            name=name,
            **planned.get(name, {}),
        )
        for name, own in tables.items()
    ]
    seeds = {"seeds": max(len(losses) for own in tables.values() for losses in own.values())}
    plan = plans.document(*of_plan, **{**seeds, **experiment})
    made = tuple(
        _frames(table, plan.experiment, list(_runs(variants, own)))
        for table, own in zip(plan.tables, tables.values(), strict=True)
    )
    return Frames(plan, "x", made, [], "", None, {}, lambda _run: None)


def _components(levels):
    return {key: {"name": f"{key}{level}"} for key, level in levels.items() if "." not in key}


def _runs(variants, losses):
    for label, own in losses.items():
        for seed, loss in enumerate(own):
            yield variants[label], seed, loss


def _frames(table, experiment, runs):
    planned = [
        RunRow(
            id=plans.id_of(table.name, variant.id, seed),
            variant=variant.id,
            label=variant.label,
            baseline=variant.baseline,
            role=variant.role,
            seed=seed,
            outcome=loss if isinstance(loss, str) else "ok",
            steps_done=2,
            numbers={"test_loss_nats": math.nan if isinstance(loss, str) else loss},
        )
        for variant, seed, loss in runs
    ]
    machines = pd.DataFrame(index=range(sum(run.outcome != "pending" for run in planned)))
    metrics = MeasuredValues()
    return TableFrames(table, experiment, planned, metrics, [], machines, lambda _run: [], set())


def changed(runs, which, numbers=None, **changes):
    """Runs of which those that are meant have other numbers, or are otherwise changed."""
    return [
        replace(run, numbers={**run.numbers, **(numbers or {})}, **changes) if which(run) else run
        for run in runs
    ]


def sentences_of(frames):
    """The warnings of a report as sentences."""
    return [str(warning) for warning in warnings(frames)]
