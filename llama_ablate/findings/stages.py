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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llama_ablate.config.experiment import Experiment
from llama_ablate.evidence import Difference, Standing
from llama_ablate.evidence.intervals import ALPHA
from llama_ablate.evidence.sequential import State, spending, standings
from llama_ablate.findings import comparison, tuning
from llama_ablate.findings.paired_table import PairedTable
from llama_ablate.findings.values import RunRow, Use
from llama_ablate.results import FINAL


@dataclass(frozen=True)
class Stage:
    """Current stage of an experiment: the needed runs, and the maximum number of runs."""

    name: str
    runs: frozenset[str]
    most: int


def find_standings(table: PairedTable) -> dict[str, Standing[Difference]]:
    """Return the last look of each variant except the baseline, and its difference there.

    The keys are variant ids. In an experiment with a single look, a variant is judged by all runs
    that have ended.
    """
    experiment, plan = table.experiment, table.plan
    looks, seeds = experiment.looks, experiment.seed_list
    base = plan.baseline.id
    arms = [v.id for v in plan.variants if not v.baseline and v.id not in plan.repeated]
    # The repeated baseline does not continue over looks: its number of seeds is fixed.
    enough = bisect_left(looks, min(experiment.controls.repeat, looks[-1]))
    spent = experiment.spend or spending(looks)
    shares = [share * table.level / ALPHA for share in spent]
    if len(looks) == 1:
        rows = comparison.differences(table, {}, dict.fromkeys(arms, shares[0]))
        return {id_: Standing(0, 0, row, is_open=False) for id_, row in rows.items()}
    raced = _points_known(table.planned, plan.repeated)
    ended = {(r.variant, r.seed): r.ended for r in table.planned if r.use == "reported"}

    def state(arm: str, look: int) -> State:
        either = {
            end
            for side in (arm, base)
            for end in (raced[side], *(ended[side, seed] for seed in seeds[: looks[look]]))
        }
        if "pending" in either:
            return "pending"
        return "complete" if either <= {*FINAL, "too short"} else "failed"

    def judge(at: Mapping[str, int]) -> dict[str, Difference]:
        taken = {arm: seeds[: looks[at[arm]]] if arm in at else () for arm in arms}
        return comparison.differences(table, taken, {arm: shares[at[arm]] for arm in at})

    def decided(_arm: str, _look: int, row: Difference) -> bool:
        return row.judged(table.equivalence) != "inconclusive"

    stands = standings(len(looks), arms, state, judge, decided)
    rows = judge({})
    repeated = {id_: Standing(enough, enough, rows[id_], is_open=False) for id_ in plan.repeated}
    return stands | repeated


def mark(table: PairedTable) -> list[RunRow]:
    """Return the planned runs, each marked with its use in the current stage.

    The reported runs of a variant are the runs at its tuning point, up to its last look. The
    reported runs of the baseline are all its runs that another variant needs. The column `use` of
    `RunRow` explains the uses.
    """
    experiment, planned = table.experiment, table.planned
    if not experiment.is_staged:
        return [*planned]
    looks, base = experiment.looks, table.plan.baseline.id
    place = {seed: i for i, seed in enumerate(experiment.seed_list)}
    seeds_shown = {id_: looks[max(at.look, 0)] for id_, at in table.standings.items()}
    needed = {
        id_: looks[-1 if id_ in table.kept_variants else at.needs]
        for id_, at in table.standings.items()
    }
    most = {id_: looks[-1] if at.is_open else needed[id_] for id_, at in table.standings.items()}
    for of in (needed, most):
        of[base] = max(of.values(), default=looks[-1])
    seeds_shown[base] = needed[base]
    raced = _points_known(planned, table.plan.repeated)

    def use(run: RunRow) -> Use:
        if run.use == "race":
            return "race"
        at, variant = place[run.seed], run.variant
        if run.use == "reported" and raced[variant] == "ok" and at < needed.get(variant, 0):
            return "reported" if at < seeds_shown[variant] else "next"
        return "later" if run.use == "reported" and at < most.get(variant, 0) else "spare"

    return [replace(run, use=use(run)) for run in planned]


def find_stage(experiment: Experiment, runs: Sequence[RunRow]) -> Stage:
    """Find the current stage from the marked runs of all tables."""
    pending = [run for run in runs if run.is_needed and run.outcome not in FINAL]
    looks = experiment.looks
    place = {seed: i for i, seed in enumerate(experiment.seed_list)}
    if any(run.use == "race" for run in pending):
        name = "race"
    elif len(looks) == 1:
        name = "after the race"
    else:
        first = min((place[run.seed] for run in pending), default=0)
        name = f"look {bisect_right(looks, first) + 1} of {len(looks)}"
    needed = frozenset(run.id for run in runs if run.is_needed)
    return Stage(name, needed, len(needed | {run.id for run in runs if run.use == "later"}))


def _points_known(planned: Sequence[RunRow], repeated: Mapping[str, str]) -> dict[str, str]:
    """Return the tuning status of each variant: `ok` if its tuning point is known.

    The other statuses are `pending` and `failed`. `repeated` maps each variant that uses another
    variant's tuning point to the id of the other variant.
    """
    states = dict.fromkeys((run.variant for run in planned), "ok")
    for run in tuning.trial_runs(planned):
        if run.outcome == "pending":
            states[run.variant] = "pending"
        elif run.outcome not in FINAL and states[run.variant] == "ok":
            states[run.variant] = "failed"
    return states | {variant: states[other] for variant, other in repeated.items()}
