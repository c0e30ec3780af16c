"""Frames of tables made by hand, without a store and without training."""

import math

import pandas as pd

from llama_ablate.findings.columns import iterate
from llama_ablate.findings.frames import Frames, mark_ends
from llama_ablate.findings.outcomes import UNSTABLE
from llama_ablate.findings.table import Table
from tests import plans
from tests.metric_rows import make_values

#: Losses of a baseline by seed, and the noise of a variant's differences.
BASE, NOISE = [2.0, 2.2, 2.1, 2.3, 2.15], [0.01, -0.01, 0.005, -0.005, 0.0]
#: Levels of the cells of a 2 x 2 design, and its section of a file.
SQUARE = {f"{n}{b}": {"norm": n, "block": b} for n in (0, 1) for b in (0, 1)}
PRODUCT = {"design": "product", "axes": {"norm": ["a", "b"], "block": ["a", "b"]}}


def move(by, noise=1.0, base=BASE):
    """Losses that lie by so much beside the baseline's, with a standard deviation of 0.008."""
    return [loss + by + noise * own for loss, own in zip(base, NOISE, strict=True)]


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
    planned = run_rows(
        {
            "id": plans.id_of(table.name, variant.id, seed),
            "variant": variant.id,
            "label": variant.label,
            "baseline": variant.baseline,
            "role": variant.role,
            "seed": seed,
            "outcome": loss if isinstance(loss, str) else "ok",
            "test_loss_nats": math.nan if isinstance(loss, str) else loss,
        }
        for variant, seed, loss in runs
    )
    machines = pd.DataFrame(index=range(int(planned["outcome"].ne("pending").sum())))
    return Table(table, experiment, planned, make_values(), NO_ATTEMPTS, machines, lambda _run: [])


NO_ATTEMPTS = pd.DataFrame(
    columns=["variant", "run", "seed", "metric", "error", "label", "table"], dtype=object
)
_PLANNED = {
    "baseline": False,
    "role": "",
    "point": "",
    "use": "reported",
    "tuned": "{}",
    "reason": "",
    "too_short": False,
    "steps_done": 2.0,
}


def run_rows(rows):
    """Planned runs as a frame, from their columns; the others are those of an ordinary run."""
    return _mark(pd.DataFrame([{**_PLANNED, **row} for row in rows]))


def _mark(runs):
    is_open = runs["outcome"].eq("pending")
    lost = {word: runs["outcome"].eq(word).astype(float).mask(is_open) for word in UNSTABLE}
    return mark_ends(runs.assign(**lost))


def changed(runs, which, numbers=None, **changes):
    """Runs of which those that are meant have other numbers, or are otherwise changed."""
    chosen, runs = [bool(which(run)) for run in iterate(runs)], runs.copy()
    for name, value in {**(numbers or {}), **changes}.items():
        runs.loc[chosen, name] = value
    return _mark(runs)


def sentences_of(frames):
    """The warnings of a report as sentences."""
    from llama_ablate.findings.warnings import warnings

    return [str(warning) for warning in warnings(frames)]
