"""Stages of an experiment: the race of tuned points, then look after look, from what has ended.

Where a file has a race or looks, which of the planned runs are needed depends on their results.
All of it is computed from the plan and the records each time it is needed: nothing is stored, so
commands and machines that share a folder agree.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from llama_ablate.config.experiment import Experiment
from llama_ablate.evidence import (
    Contrast,
    Ended,
    Interval,
    Standing,
    contrasts,
    judged,
    simultaneous,
)
from llama_ablate.evidence.factorial import FactorEffect, weights
from llama_ablate.evidence.sequential import State, is_settled, spending, standings
from llama_ablate.findings import comparison, heldout, tuning
from llama_ablate.findings.controls import scaled
from llama_ablate.findings.rows import RunRow
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import PlannedTable

_ALPHA = 0.05


@dataclass(frozen=True)
class Stage:
    """The runs that an experiment is known to need by now, and the most that may come."""

    name: str
    runs: frozenset[str]
    most: int


@dataclass(frozen=True)
class Quantity:
    """What a hypothesis is about that is no row of a table: it has looks of its own."""

    #: The ids of the variants whose runs it needs.
    arms: frozenset[str]
    #: Tells of a look whether it is decided there.
    judge: Callable[[int], bool]
    #: The share of its error that each look spends.
    shares: Sequence[float]


def stand(
    table: PlannedTable,
    experiment: Experiment,
    planned: Sequence[RunRow],
    margin: float | None,
    quantities: Mapping[str, Quantity],
    by_document: heldout.ByDocument,
    guarded: Callable[[int], Collection[str]] = lambda _: (),
) -> dict[str, Standing[Interval]]:
    """Return where each variant of a table but the baseline stands, by id, and each quantity.

    `guarded` tells of a look which variants, by id, have a guard that later seeds may decide: those
    go on, whatever their loss says. The cells of a grid of factors go on together, until all its
    effects are decided: were one to stop where its own loss is, the means of the others would be
    biased by that. With a single look a variant is judged by whatever has ended, and quantities
    have no looks of their own. The interval of a quantity is of no seeds.
    """
    looks, seeds = experiment.looks, experiment.seed_list
    last = len(looks) - 1
    shares = experiment.spend or spending(looks)
    arms = [variant for variant in table.variants if not variant.baseline]
    repeated = table.repeated
    first = {v.id: 0 for v in arms if v.id not in repeated}
    grid = {v.id for v in arms if v.levels}
    raced = _raced(planned, table.repeated)
    at_point = [run for run in planned if run.best and not run.race]
    ended = {(run.variant, run.seed): run.ended for run in at_point}
    loss = f"{tuning.reported_split(planned)}_{table.unit.number}"
    losses = comparison.losses_by_seed(table, at_point, loss)
    base = table.baseline.id

    def of_look(arm: str, look: int) -> list[str]:
        return [ended[arm, seed] for seed in seeds[: looks[look]]]

    def state(arm: str, look: int) -> State:
        needed = quantities[arm].arms if arm in quantities else (arm, base)
        either = {end for own in needed for end in (raced[own], *of_look(own, look))}
        if "pending" in either:
            return "pending"
        return "complete" if either <= {*FINAL, "too short"} else "failed"

    def judge(at: Mapping[str, int]) -> dict[str, Interval]:
        taken = {arm: seeds[: looks[look]] for arm, look in at.items()}
        taken |= dict.fromkeys([base, *repeated], seeds)
        known = {
            id_: {
                seed: own[seed] for seed in taken.get(id_, ()) if seed in own and raced[id_] == "ok"
            }
            for id_, own in losses.items()
        }
        pairs = comparison.pairs_by_seed(table, known)
        spent = {arm: shares[look] for arm, look in at.items()}
        text_errors = partial(heldout.text_errors, by_document, known)
        again = comparison.against_others(table, known, text_errors)
        rows = comparison.intervals(table, pairs, text_errors(base), spent, again)
        return rows | dict.fromkeys(quantities, simultaneous({"": []})[""])

    settled = partial(is_settled, looks=looks, shares=shares, margin=margin)

    @cache
    def goes_on(look: int) -> Collection[str]:
        known = comparison.only(losses, seeds[: looks[look]])
        rows = (one.interval for one in grid_effects(table, known, by_document, shares[look]))
        is_open = guarded(look) or not all(map(partial(settled, look=look), rows))
        return {*guarded(look), *grid} if is_open else ()

    def decided(arm: str, look: int, row: Interval) -> bool:
        if arm in quantities:
            return quantities[arm].judge(look)
        if arm in grid or (look < last and arm in goes_on(look)):
            return look == last or arm not in goes_on(look)
        own, of_base = (Ended.of(of_look(id_, look)) for id_ in (arm, base))
        word = judged(row, margin, own, of_base)
        is_last = look == last or own.lost or of_base.lost
        return word != "inconclusive" or (not is_last and settled(row, look))

    if last == 0:
        rows = judge(first)
        return {arm: Standing(0, 0, rows[arm], is_open=False) for arm in [*first, *repeated]}
    # The repeated baseline is no arm that goes on: it has seeds of the first look, or as stated.
    enough = bisect_left(looks, min(experiment.controls.repeat, looks[-1]))
    first |= dict.fromkeys(quantities, 0)
    stands = standings(len(looks), first, state, judge, decided)
    rows = judge({})
    return stands | {arm: Standing(enough, enough, rows[arm], is_open=False) for arm in repeated}


def grid_effects(
    table: PlannedTable, losses: comparison.Losses, by_document: heldout.ByDocument, share: float
) -> list[Contrast]:
    """Return the contrasts of a grid of factors that spend a share of the error; of others none.

    Over the seeds that two cells or more have, and the cells that have one of those. Each is
    widened by the bias that the repeated baseline leaves possible.
    """
    names, base = list(table.baseline.levels), table.baseline.id
    every = {v.id: [v.levels[name] for name in names] for v in table.variants if v.levels}
    count = Counter(seed for cell in every for seed in losses[cell])
    seeds = sorted(seed for seed, runs in count.items() if runs > 1)
    levels = {cell: own for cell, own in every.items() if losses[cell].keys() & {*seeds}}
    if not levels:
        return []
    of_effect: dict[FactorEffect, dict[int, dict[str, float]]] = {
        e: {} for e in weights(levels, names)
    }
    for seed in seeds:
        there = {cell: own for cell, own in levels.items() if seed in losses[cell]}
        for effect, weight in weights(there, names).items():
            of_effect.get(effect, {})[seed] = dict(zip(there, weight, strict=True))
    errors = {effect: heldout.text_error_of(own, by_document) for effect, own in of_effect.items()}
    found = contrasts(
        levels,
        names,
        {cell: [losses[cell].get(seed, math.nan) for seed in seeds] for cell in levels},
        text_errors={effect: error for effect, error in errors.items() if error},
        alpha=_ALPHA * share,
    )
    bias = comparison.bias_of(table, comparison.pairs_by_seed(table, losses)) or comparison.NO_BIAS
    ends = {one.effect: scaled(bias, -one.weights.get(base, 0.0)) for one in found}
    return [replace(one, interval=one.interval.widened(ends[one.effect])) for one in found]


def mark(
    table: PlannedTable,
    experiment: Experiment,
    planned: Sequence[RunRow],
    stands: Mapping[str, Standing[Interval]],
    quantities: Mapping[str, Quantity],
) -> list[RunRow]:
    """Return the planned runs with marks that say which are `chosen`, `needed` and `possible`.

    A variant is reported by its `chosen` runs: those of the look that it was judged at, at its
    tuned point; the baseline by all that any other needs. What is needed now, for a row or for a
    quantity, is `needed`, what may yet be is `possible`.
    """
    if not experiment.is_staged:
        return [run if run.best else replace(run, chosen=False) for run in planned]
    looks = experiment.looks
    place = {seed: i for i, seed in enumerate(experiment.seed_list)}
    shown: dict[str, int] = {}
    needed: dict[str, int] = {}
    most: dict[str, int] = {}
    for key, at in stands.items():
        if key not in quantities:
            shown[key] = looks[max(at.look, 0)]
        for arm in quantities[key].arms if key in quantities else (key,):
            needed[arm] = max(needed.get(arm, 0), looks[at.needs])
            most[arm] = max(most.get(arm, 0), looks[-1 if at.is_open else at.needs])
    base = table.baseline.id
    needed[base], most[base] = (max(of.values(), default=looks[-1]) for of in (needed, most))
    shown[base] = needed[base]
    raced = _raced(planned, table.repeated)

    def within(run: RunRow, seeds: Mapping[str, int]) -> bool:
        return run.best and not run.race and place[run.seed] < seeds.get(run.variant, 0)

    def is_known(run: RunRow) -> bool:
        return raced[run.variant] == "ok"

    return [
        replace(
            run,
            chosen=is_known(run) and within(run, shown),
            needed=run.race or (is_known(run) and within(run, needed)),
            possible=run.race or within(run, most),
        )
        for run in planned
    ]


def stage(experiment: Experiment, runs: Sequence[RunRow]) -> Stage:
    """Return the stage that the marked runs of an experiment's tables have come to."""
    pending = [run for run in runs if run.needed and run.outcome not in FINAL]
    looks = experiment.looks
    place = {seed: i for i, seed in enumerate(experiment.seed_list)}
    if any(run.race for run in pending):
        name = "race"
    elif len(looks) == 1:
        name = "after the race"
    else:
        first = min((place[run.seed] for run in pending), default=0)
        name = f"look {bisect_right(looks, first) + 1} of {len(looks)}"
    needed = frozenset(run.id for run in runs if run.needed)
    return Stage(name, needed, len({run.id for run in runs if run.possible}))


def _raced(planned: Sequence[RunRow], repeated: Mapping[str, str]) -> dict[str, str]:
    """Return for each variant whether its point is known: ok, pending, or failed.

    `repeated` are the variants that are at another's point, by their ids and its.
    """
    states = dict.fromkeys((run.variant for run in planned), "ok")
    for run in tuning.trial_runs(planned):
        if run.outcome == "pending":
            states[run.variant] = "pending"
        elif run.outcome not in FINAL and states[run.variant] == "ok":
            states[run.variant] = "failed"
    return states | {variant: states[other] for variant, other in repeated.items()}
