"""Stages of an experiment, from its finished runs: the tuning race, then the looks.

The race consists of trial runs that choose each variant's tuning point, a combination of tuned
values. A look is an interim analysis at a number of seeds that is fixed before the first run. In an
experiment with a race or looks, the results so far determine which of the planned runs are needed.
The set of needed runs is computed from the plan and the records each time and never stored, so that
commands and machines that share a folder agree. Looks stop only variants of the comparison table. A
variant that a guard, a factorial design or another hypothesis needs runs with all seeds, and the
guard, design or hypothesis is judged at the last look.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from llama_ablate.evidence.intervals import ALPHA
from llama_ablate.evidence.sequential import spending
from llama_ablate.evidence.verdicts import judge
from llama_ablate.findings import tuning
from llama_ablate.findings.columns import iterate, list_rows
from llama_ablate.findings.compare import compare
from llama_ablate.findings.table import Table, once
from llama_ablate.results import FINAL

#: Uses of runs that are needed at the present stage.
NEEDED = ("reported", "next", "trial", "race")


@dataclass(frozen=True)
class Stage:
    """Current stage of an experiment: the needed runs, and the maximum number of runs."""

    name: str
    runs: frozenset[str]
    most: int


@once
def find_differences(table: Table) -> pd.DataFrame:
    """Compare each variant's loss with the baseline's, at its last look.

    Returns the rows of `compare` by variant id, with the columns `look` (index of the variant's
    last look, -1 before the first), `needs` (index of the look for which it needs runs) and
    `is_open` (whether it will be judged again). In an experiment with a single look, a variant is
    judged by all runs that have ended.
    """
    experiment, plan = table.experiment, table.plan
    looks = experiment.looks
    arms = [v.id for v in plan.variants if not v.baseline and v.id not in plan.repeated]
    spent = experiment.spend or spending(looks)
    shares = [share * table.level / ALPHA for share in spent]
    if len(looks) == 1:
        rows = _compare_arms(table, {}, dict.fromkeys(arms, shares[0]))
        return rows.assign(look=0, needs=0, is_open=False)
    differences = _follow_looks(table, arms, shares)
    # The repeated baseline does not continue over looks: its number of seeds is fixed.
    enough = bisect_left(looks, min(experiment.controls.repeat, looks[-1]))
    repeated = differences.index.isin([*plan.repeated])
    differences.loc[repeated, ["look", "needs"]] = enough
    return differences.assign(is_open=differences["is_open"] & ~repeated)


def _compare_arms(
    table: Table, seeds: Mapping[str, Collection[int]], shares: Mapping[str, float]
) -> pd.DataFrame:
    """Compare each variant's loss with the baseline's; return rows by variant id.

    `seeds` lists the seeds to include for each variant id, by default all. `shares` holds the
    fraction of the error level that each variant's interval uses, by default 1. The intervals are
    simultaneous over all planned variants of the table. A control (a variant with a `role`) cannot
    be the best variant, and therefore forms a family of its own.
    """
    others = [variant for variant in table.plan.variants if not variant.baseline]
    families = [[v.id for v in others if not v.role], *([v.id] for v in others if v.role)]
    rows = [
        compare(table, table.loss, [(id_, table.base) for id_ in ids], seeds=seeds, shares=shares)
        for ids in families
    ]
    return pd.concat(rows).droplevel("against").loc[[variant.id for variant in others]]


def _follow_looks(table: Table, arms: Sequence[str], shares: Sequence[float]) -> pd.DataFrame:
    """Judge the variants `arms` at each complete look, and stop those that are decided.

    A look is complete if no open variant has a pending run. A variant keeps the row of the look
    that decided it, whatever is run later. A variant with a failed run is judged at no further look
    until the run is tried again.
    """
    looks, seeds = table.experiment.looks, table.experiment.seed_list
    points, planned = _find_points(table), table.planned[table.planned["use"].eq("reported")]
    ended = {(run.variant, run.seed): run.ended for run in iterate(planned)}
    places = {arm: {"look": -1, "needs": 0, "is_open": True} for arm in arms}
    behind: set[str] = set()

    def list_states(arm: str, look: int) -> set[Any]:
        """Return how the runs ended that a look needs of a variant and the baseline."""
        both, taken = (arm, table.base), seeds[: looks[look]]
        return {points[id_] for id_ in both} | {ended[id_, seed] for id_ in both for seed in taken}

    def compare_at(at: Mapping[str, int]) -> pd.DataFrame:
        """Compare the variants with the seeds of their looks; those without a look have none."""
        taken = {arm: seeds[: looks[at[arm]]] if arm in at else () for arm in arms}
        return _compare_arms(table, taken, {arm: shares[at[arm]] for arm in at})

    rows = compare_at({})
    for look in range(len(looks)):
        going = [arm for arm in arms if places[arm]["is_open"] and arm not in behind]
        states = {arm: list_states(arm, look) for arm in going}
        for arm in going:
            places[arm]["needs"] = look
        if any("pending" in of for of in states.values()):
            break
        behind |= {arm for arm, of in states.items() if not of <= {*FINAL, "too short"}}
        complete = [arm for arm in going if arm not in behind]
        at = {arm: int(place["look"]) for arm, place in places.items() if place["look"] >= 0}
        now = compare_at({**at, **dict.fromkeys(complete, look)})
        rows.loc[complete] = now.loc[complete]
        for arm, row in zip(complete, list_rows(now.loc[complete]), strict=True):
            stops = look == len(looks) - 1 or judge(row, table.equivalence) != "inconclusive"
            places[arm] = {"look": look, "needs": look + (not stops), "is_open": not stops}
    nothing = {"look": 0, "needs": 0, "is_open": False}
    each = [places.get(str(id_), nothing) for id_ in rows.index]
    return rows.assign(**{name: [place[name] for place in each] for name in nothing})


def _find_points(table: Table) -> dict[str, str]:
    """Return the tuning status of each variant: `ok` if its tuning point is known.

    The other statuses are `pending` and `failed`. A repeated variant has the status of the variant
    whose tuning point it uses.
    """
    states = dict.fromkeys(table.planned["variant"], "ok")
    tried = tuning.trial_runs(table.planned)
    for variant, outcome in zip(tried["variant"], tried["outcome"], strict=True):
        if outcome == "pending":
            states[variant] = "pending"
        elif outcome not in FINAL and states[variant] == "ok":
            states[variant] = "failed"
    repeated = {id_: states.get(other, "pending") for id_, other in table.plan.repeated.items()}
    return states | repeated


@once
def mark_runs(table: Table) -> pd.DataFrame:
    """Return the planned runs, each marked with its use in the current stage.

    The reported runs of a variant are the runs at its tuning point, up to its last look. The
    reported runs of the baseline are all its runs that another variant needs.
    """
    experiment, planned = table.experiment, table.planned
    if table.parts:
        uses = pd.concat([mark_runs(part) for part in table.parts])
        ended_first = uses.sort_values("outcome", key=lambda of: of.eq("pending"), kind="stable")
        by_run = ended_first.drop_duplicates("id").set_index("id")["use"]
        return planned.assign(use=planned["id"].map(by_run))
    if not experiment.is_staged:
        return planned
    looks, base, differences = experiment.looks, table.base, find_differences(table)
    place = {seed: i for i, seed in enumerate(experiment.seed_list)}
    kept_variants, rows = _list_kept(table), [*iterate(differences.reset_index())]
    needed = {row.variant: looks[-1 if row.variant in kept_variants else row.needs] for row in rows}
    most = {row.variant: looks[-1] if row.is_open else needed[row.variant] for row in rows}
    shown_seeds = {row.variant: looks[max(row.look, 0)] for row in rows}
    for of in (needed, most):
        of[base] = max(of.values(), default=looks[-1])
    shown_seeds[base] = needed[base]
    points = _find_points(table)

    def find_use(run: Any) -> str:
        if run.use == "race":
            return "race"
        at, variant = place[run.seed], run.variant
        if run.use == "reported" and points[variant] == "ok" and at < needed.get(variant, 0):
            return "reported" if at < shown_seeds[variant] else "next"
        return "later" if run.use == "reported" and at < most.get(variant, 0) else "spare"

    return planned.assign(use=[find_use(run) for run in iterate(planned)])


def _list_kept(table: Table) -> set[str]:
    """Return the ids of the variants that run with all seeds and never stop early."""
    variants = [variant for variant in table.plan.variants if not variant.role]
    if table.experiment.guard or table.plan.baseline.levels:
        return {variant.id for variant in variants}
    return {variant.id for variant in variants if variant.label in table.asked}


@once
def find_runs(table: Table) -> pd.DataFrame:
    """Return the planned runs that the table still needs, and runs that have ended."""
    runs = mark_runs(table)
    return runs[runs["use"].isin(NEEDED) | runs["outcome"].ne("pending")]


@once
def find_reported(table: Table) -> pd.DataFrame:
    """Return the runs that the comparison reports: up to the last look, at the tuning point."""
    runs = find_runs(table)
    return runs[runs["use"].eq("reported")]


@once
def find_ranked(table: Table) -> pd.DataFrame:
    """Return the reported runs of variants whose tuning trials have all ended."""
    runs = find_reported(table)
    return runs[~runs["variant"].isin(tuning.unfinished(table.planned))]


def find_stage(tables: Sequence[Table]) -> Stage:
    """Find the current stage of an experiment from the marked runs of all its tables."""
    experiment, runs = tables[0].experiment, pd.concat([mark_runs(table) for table in tables])
    needed = runs[runs["use"].isin(NEEDED)]
    pending = needed[~needed["outcome"].isin(FINAL)]
    looks, place = experiment.looks, {seed: i for i, seed in enumerate(experiment.seed_list)}
    if pending["use"].eq("race").any():
        name = "race"
    elif len(looks) == 1:
        name = "after the race"
    else:
        first = min((place[seed] for seed in pending["seed"]), default=0)
        name = f"look {bisect_right(looks, first) + 1} of {len(looks)}"
    ids = frozenset(needed["id"])
    later = {*runs.loc[runs["use"].eq("later"), "id"]}
    return Stage(name, ids, len(ids | later))
