"""Tuning: the tuning point of each variant, and the trial runs that chose the point.

A tuning point is a combination of tuned values, such as a learning rate. Points are chosen by the
validation loss and reported on test text. Without tuning, validation and test text are reported as
one split.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from llama_ablate.config.experiment import Experiment
from llama_ablate.config.labels import entry_text
from llama_ablate.evidence import simultaneous, written
from llama_ablate.evidence.student import not_negative
from llama_ablate.evidence.trends import sensitivity
from llama_ablate.findings.rows import Row, cell, column, grouped
from llama_ablate.findings.values import UNSTABLE, RunRow, has_number, mean_number
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import HELD_OUT, NATS, PlannedTable, PlannedVariant

#: Remark on a comparison of two optimizers at the learning rate of one of them.
ONE_RATE = "one rate for all: not tuned"
#: Name of a run's number for the learning-rate sensitivity of its variant and seed.
SENSITIVITY = "lr_sensitivity_nats"
#: Tuned values of a run without tuning, as JSON.
NOT_TUNED = "{}"
#: Smallest grid with an interior, so that a best value at its end is reported as an edge.
MIN_GRID = 3
SPLITS = (HELD_OUT, "test", "validation")  # the first measured split is reported


def reported_split(runs: Sequence[RunRow]) -> str:
    """Return the reported split: all held-out text, or test text if tuning used validation text."""
    return first_split(s for s in SPLITS if has_number(runs, f"{s}_loss_nats")) or "test"


def first_split(measured: Iterable[object]) -> str:
    """Return the split to report among the splits with a measurement; "" for none."""
    return min((str(s) for s in measured if s in SPLITS), key=SPLITS.index, default="")


def point(tuned: Mapping[str, object]) -> str:
    """Format a tuning point, as in `lr 0.001`."""
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {entry_text(value)}"
        for key, value in tuned.items()
    )


def mark_trials(runs: Sequence[RunRow], repeated: Mapping[str, str]) -> list[RunRow]:
    """Mark runs as trials if their tuning point is not their variant's reported point.

    `repeated` maps each variant that uses another variant's tuning point to the id of the other
    variant.
    """
    if all(run.tuned == NOT_TUNED for run in runs):
        return [*runs]
    best = best_points(runs, repeated)
    runs_with_points = [replace(run, point=point(json.loads(run.tuned))) for run in runs]
    return [
        replace(run, use="trial")
        if run.use == "reported" and run.tuned != best.get(run.variant, run.tuned)
        else run
        for run in runs_with_points
    ]


def best_points(runs: Sequence[RunRow], repeated: Mapping[str, str]) -> dict[str, str]:
    """Return each variant's best tuning point, as JSON, by id; {} without tuning.

    The best point has the fewest runs that diverged or collapsed and, among equals, the lowest mean
    validation loss. A point with unfinished runs is chosen only if no point of the variant is
    complete.
    """
    trials = grouped(trial_runs(runs), lambda run: run.variant)
    best = {variant: _best(runs) for variant, runs in trials.items()}
    return best | {id_: best[other] for id_, other in repeated.items() if other in best}


def trial_runs(runs: Sequence[RunRow]) -> Sequence[RunRow]:
    """Return the runs that choose the tuning points; [] without tuning.

    If the experiment has a race, these are the runs of the race; otherwise all runs.
    """
    if not several(runs):
        return []
    return [run for run in runs if run.use == "race"] or runs


def several(runs: Sequence[RunRow]) -> bool:
    """Return whether the runs have more than one tuning point."""
    return len({run.tuned for run in runs}) > 1


def _best(runs: Sequence[RunRow]) -> str:
    points = grouped(runs, lambda run: run.tuned)
    return min(points, key=lambda tuned: _mean(points[tuned]))


def _mean(runs: Sequence[RunRow]) -> tuple[bool, int, float]:
    """Return a tuning point's sort key, given its runs; the best point sorts first.

    The key consists of incompleteness, the number of runs that are not `ok`, and the mean loss.
    """
    ok = [run for run in runs if run.outcome == "ok"]
    usable = ok or runs  # collapsed runs may have a measured loss
    loss = mean_number(usable, "validation_loss_nats")
    complete = all(run.outcome in FINAL for run in runs)
    return not complete, len(runs) - len(ok), math.inf if math.isnan(loss) else loss


def unfinished(runs: Sequence[RunRow]) -> set[str]:
    """Return the ids of variants with unfinished trials.

    Without tuning the set is empty, since an unfinished run is then merely pending. With a race,
    only runs of the race are trials.
    """
    return {run.variant for run in trial_runs(runs) if run.outcome not in FINAL}


class Rate(NamedTuple):
    """Loss of a variant and seed at a learning rate.

    The loss is the lowest over the values of other tuned keys.
    """

    variant: str
    label: str
    seed: int
    lr: float
    loss: float


def rates(runs: Sequence[RunRow], name: str, cap: float) -> list[Rate]:
    """Return the loss `name` by variant, seed and learning rate, capped at `cap`.

    A run that diverged, or that collapsed without a measured loss, has the loss `cap`.
    """
    losses: dict[tuple[str, str, int, float], float] = {}
    for run in runs:
        lr, loss = json.loads(run.tuned).get("lr", math.nan), run.number(name)
        if run.outcome in UNSTABLE and math.isnan(loss):
            loss = cap
        if run.outcome in FINAL and not (math.isnan(lr) or math.isnan(loss)):
            key = (run.variant, run.label, run.seed, lr)
            losses[key] = min(losses.get(key, cap), loss)
    return [Rate(*key, loss) for key, loss in losses.items()]


def with_sensitivity(runs: Sequence[RunRow], cap: float) -> list[RunRow]:
    """Add to each run the learning-rate sensitivity of its variant and seed, in nats.

    The sensitivity is NaN for a variant with unfinished trials, and for a seed without trials.
    """
    tried = rates(trial_runs(runs), f"{reported_split(runs)}_{NATS.number}", cap)
    less = unfinished(runs)
    by_seed = {
        key: sensitivity([rate.loss for rate in seed_rates])
        for key, seed_rates in grouped(tried, lambda rate: (rate.variant, rate.seed)).items()
        if key[0] not in less
    }
    return [
        replace(
            run,
            numbers={**run.numbers, SENSITIVITY: by_seed.get((run.variant, run.seed), math.nan)},
        )
        for run in runs
    ]


def one_rate(
    table: PlannedTable, experiment: Experiment, variant: PlannedVariant, against: PlannedVariant
) -> str:
    """Return `ONE_RATE` if an optimizer was tried only at another optimizer's learning rate.

    Learning rates of different optimizers are not comparable. Return "" if both variants have the
    same optimizer, if learning rates are tuned, if any variant of the table has the optimizer at
    another learning rate, and for controls.
    """

    def optimizer(of: PlannedVariant) -> object:
        entry = of.train.get("optimizer", experiment.train.optimizer)
        return entry if isinstance(entry, str) else entry["name"]

    def rate(of: PlannedVariant) -> float:
        return float(of.train.get("lr", experiment.train.lr))

    chosen = optimizer(variant)
    if chosen == optimizer(against) or variant.role or "lr" in experiment.tune:
        return ""
    tried = {
        rate(variant)
        for variant in table.variants
        if optimizer(variant) == chosen and not variant.role
    }
    return ONE_RATE if tried == {rate(against)} else ""


@dataclass(frozen=True)
class TuningRow(Row):
    """Table row for a variant's tuning: its trial runs, and its reported tuning point."""

    label: str = column("label of the variant", "variant")
    trials: int = column("runs that choose the point")
    finished: int = column("how many of them have finished")
    diverged: int = column("how many of them diverged")
    collapsed: int = column("how many of them collapsed")

    @cell("trials")
    def ended(self) -> str:
        """Write the number of finished trials, and how many trials diverged or collapsed."""
        lost = {"diverged": self.diverged, "collapsed": self.collapsed}
        words = [f"{count} {word}" for word, count in lost.items() if count]
        return ", ".join([f"{self.finished} of {self.trials}", *words])

    chosen: str = column("the point that was chosen", "best")
    edge: str = column(
        "what is tuned whose best value is the first or the last of its grid", "at the edge"
    )
    loss: float = column("mean loss of the reported runs that ended `ok`", "loss", ".4f")
    sensitivity: float = column("learning-rate sensitivity in nats")
    low: float = column("lower end of its 95% interval")
    high: float = column("upper end of it")

    @cell("LR sensitivity [95% interval]")
    def sensitive(self) -> str:
        """Write the learning-rate sensitivity; empty if the learning rate is not tuned."""
        is_known = not math.isnan(self.sensitivity)
        return written.interval(self.sensitivity, self.low, self.high, sign="") if is_known else ""


def trials(runs: Sequence[RunRow], repeated: Mapping[str, str], loss: str) -> list[TuningRow]:
    """Return one tuning row for each variant, with its mean `loss`; [] without tuning."""
    tried, chosen = trial_runs(runs), best_points(runs, repeated)
    ended = (run for run in runs if run.is_reported and run.outcome == "ok")
    reported = grouped(ended, lambda run: run.label)
    points = [json.loads(tuned) for tuned in dict.fromkeys(run.tuned for run in tried)]
    ends = {key: _ends([point[key] for point in points]) for key in (points or [{}])[0]}
    rows = []
    for label, label_runs in grouped(tried, lambda run: run.label).items():
        at = [run for run in label_runs if run.tuned == chosen[run.variant]]
        best = json.loads(at[0].tuned)
        sensitive = [v for run in at if not math.isnan(v := run.number(SENSITIVITY))]
        effect = simultaneous({"": sensitive})[""]
        low, high = map(float, not_negative(effect.mean, effect.mean - effect.low))
        outcomes = Counter(run.outcome for run in label_runs)
        rows.append(
            TuningRow(
                label=label,
                trials=len(label_runs),
                finished=sum(outcomes[end] for end in FINAL),
                diverged=outcomes["diverged"],
                collapsed=outcomes["collapsed"],
                chosen=at[0].point,
                edge=", ".join(key for key, value in best.items() if value in ends[key]),
                loss=mean_number(reported.get(label, ()), loss),
                sensitivity=effect.mean,
                low=low,
                high=high,
            )
        )
    return rows


def _ends(values: Sequence[object]) -> tuple[float, ...]:
    """Return the smallest and largest number of a grid; () for under three numbers."""
    numbers = {v for v in values if isinstance(v, int | float) and not isinstance(v, bool)}
    return (min(numbers), max(numbers)) if len(numbers) >= MIN_GRID else ()
