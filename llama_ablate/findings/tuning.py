"""Tuning: the point at which each variant is reported, and what it took to choose it.

Points are chosen on the validation loss and reported on test text. Where none are chosen,
validation and test text are one split.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from llama_ablate.config.experiment import Experiment
from llama_ablate.config.registry import entry_text
from llama_ablate.evidence import paired_effect, written
from llama_ablate.evidence.sensitivity import sensitivity
from llama_ablate.evidence.student import not_negative
from llama_ablate.findings.outcomes import UNSTABLE
from llama_ablate.findings.rows import Row, cell, column
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import HELD_OUT, NATS, PlannedTable, PlannedVariant

#: The remark on a comparison of two optimizers at the learning rate of one of them.
ONE_RATE = "one rate for all: not tuned"
SPLITS = (HELD_OUT, "test", "validation")  # the first that was measured is the one reported


def reported_split(runs: pd.DataFrame) -> str:
    """Return the split that is reported: all held-out text, or test where there is one."""
    return first_split(s for s in SPLITS if f"{s}_loss_nats" in runs.columns) or "test"


def first_split(measured: Iterable[object]) -> str:
    """Return that split which is reported, of those on which a number was measured; "" for none."""
    return min((str(s) for s in measured if s in SPLITS), key=SPLITS.index, default="")


def point(tuned: dict[str, Any]) -> str:
    """Write a point of what is tuned, as its column in the tables."""
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {entry_text(value)}"
        for key, value in tuned.items()
    )


def choose(runs: pd.DataFrame, repeated: Mapping[str, str]) -> "pd.Series[bool]":
    """Return for each run whether it is at the point that its variant is reported at.

    `repeated` are variants that are at another's point, by their ids and its.

    A variant's point is the one of the fewest runs that diverged or collapsed, and of those the one
    whose mean validation loss over the other seeds of its trials is lowest. A point whose runs have
    not all finished is passed over while any other is complete.
    """
    if not several(runs):
        return pd.Series(data=True, index=runs.index)
    trials = trial_runs(runs).groupby("variant", sort=False)
    best = {variant: _best(own) for variant, own in trials}
    best |= {variant: best[other] for variant, other in repeated.items()}
    return runs["tuned"] == runs["variant"].map(best)


def trial_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that choose the points: those of the race, or without one all; or none."""
    if not several(runs):
        return runs.iloc[:0]
    return runs[runs["race"]] if runs["race"].any() else runs


def several(runs: pd.DataFrame) -> bool:
    """Return whether anything was tuned."""
    return len(set(runs["tuned"])) > 1


def _best(runs: pd.DataFrame) -> str:
    means = {str(tuned): _mean(own) for tuned, own in runs.groupby("tuned", sort=False)}
    return min(means, key=means.__getitem__)


def _mean(runs: pd.DataFrame) -> tuple[bool, int, float]:
    """Order points: complete before incomplete, the fewest lost runs first, then by loss."""
    complete = bool(runs["outcome"].isin(FINAL).all())
    ok, column = runs[runs["outcome"] == "ok"], "validation_loss_nats"
    known = ok if len(ok) else runs  # that collapsed, and were measured
    loss = float(known[column].mean()) if column in known else math.nan
    return not complete, len(runs) - len(ok), math.inf if math.isnan(loss) else loss


def unfinished(runs: pd.DataFrame) -> list[str]:
    """Return the variants, by id, that have not been tried at every point with every seed.

    Where nothing is tuned there is one point, and what has not finished is merely pending. Where a
    race chooses the points it is its seeds that count.
    """
    trials = trial_runs(runs)
    done = trials["outcome"].isin(FINAL).groupby(trials["variant"]).all()
    return [str(variant) for variant, all_done in done.items() if not all_done]


def rates(runs: pd.DataFrame, column: str, cap: float) -> pd.DataFrame:
    """Return a loss by variant, seed and learning rate, best over what else is tuned.

    Columns: `variant, label, seed, lr, loss`. A run that diverged, or collapsed without a loss
    that was measured, has the cap, as has a loss beyond it.
    """
    runs = runs[runs["outcome"].isin(FINAL)].copy()
    runs["lr"] = [json.loads(tuned).get("lr", math.nan) for tuned in runs["tuned"]]
    losses = runs[column] if column in runs else pd.Series(math.nan, index=runs.index)
    lost = runs["outcome"].isin(UNSTABLE) & losses.isna()
    runs["loss"] = losses.mask(lost, cap).clip(upper=cap)
    runs = runs[runs["lr"].notna() & runs["loss"].notna()]
    keys = ["variant", "label", "seed", "lr"]
    return runs.groupby(keys, sort=False)["loss"].min().reset_index()


def sensitivities(by_rate: pd.DataFrame) -> dict[tuple[str, int], float]:
    """Return the learning-rate sensitivity in nats by variant and seed, from what `rates` gives."""
    losses: dict[tuple[str, int], list[float]] = {}
    columns = (by_rate[name] for name in ("variant", "seed", "loss"))
    for variant, seed, loss in zip(*columns, strict=True):
        losses.setdefault((str(variant), int(seed)), []).append(float(loss))
    return {key: sensitivity(values) for key, values in losses.items()}


def sensitivity_of_runs(runs: pd.DataFrame, cap: float) -> list[float]:
    """Return for each run the learning-rate sensitivity of its variant and seed.

    NaN for a variant that was not tried at every point, and for a seed that is none of its trials.
    """
    by_seed = sensitivities(rates(trial_runs(runs), f"{reported_split(runs)}_{NATS.number}", cap))
    by_seed = {key: v for key, v in by_seed.items() if key[0] not in set(unfinished(runs))}
    keys = zip(runs["variant"], runs["seed"], strict=True)
    return [by_seed.get((str(variant), int(seed)), math.nan) for variant, seed in keys]


def one_rate(
    table: PlannedTable, experiment: Experiment, variant: PlannedVariant, against: PlannedVariant
) -> str:
    """Return `ONE_RATE` where a variant's optimizer is tried at the rate of another's alone.

    A learning rate means another thing to each optimizer. Empty where rates are tuned, where the
    table has the variant's optimizer at any other rate, and for controls.
    """

    def optimizer(of: PlannedVariant) -> Any:
        entry = of.train.get("optimizer", experiment.train.optimizer)
        return entry if isinstance(entry, str) else entry["name"]

    def rate(of: PlannedVariant) -> float:
        return float(of.train.get("lr", experiment.train.lr))

    alike = [one for one in table.variants if optimizer(one) == optimizer(variant)]
    tried = {rate(one) for one in alike if not one.role}
    apart = optimizer(variant) != optimizer(against) and tried == {rate(against)}
    return ONE_RATE if apart and not variant.role and "lr" not in experiment.tune else ""


@dataclass(frozen=True)
class TuningRow(Row):
    """The trials of a variant, and the point at which it is reported."""

    label: str = column("label of the variant", "variant")
    trials: int = column("runs that choose the point")
    finished: int = column("how many of them have finished")
    diverged: int = column("how many of them diverged")
    collapsed: int = column("how many of them collapsed")

    @cell("trials")
    def ended(self) -> str:
        """Write how many trials have finished, and how many of them were lost."""
        lost = {"diverged": self.diverged, "collapsed": self.collapsed}
        words = [f"{count} {word}" for word, count in lost.items() if count]
        return ", ".join([f"{self.finished} of {self.trials}", *words])

    chosen: str = column("the point that was chosen", "best")
    edge: str = column(
        "what is tuned whose best value is the first or the last of its grid", "at the edge"
    )
    loss: float = column("mean loss of the reported runs", "loss", ".4f")
    sensitivity: float = column("learning-rate sensitivity in nats")
    low: float = column("lower end of its 95% interval")
    high: float = column("upper end of it")

    @cell("LR sensitivity [95% interval]")
    def sensitive(self) -> str:
        """Write the learning-rate sensitivity; nothing where no rate was tuned."""
        known = not math.isnan(self.sensitivity)
        return written.interval(self.sensitivity, self.low, self.high, sign="") if known else ""


def trials(runs: pd.DataFrame, loss: str) -> list[TuningRow]:
    """Return one row for each variant; the loss is the number `loss` of the reported runs.

    None where nothing was tuned.
    """
    if not several(runs):
        return []
    tried = trial_runs(runs)
    points = [json.loads(tuned) for tuned in dict.fromkeys(tried["tuned"])]
    ends = {key: _ends([point[key] for point in points]) for key in points[0]}
    rows = []
    for label, own in tried.groupby("label", sort=False):
        at_best = own[own["best"]]
        best = json.loads(at_best["tuned"].iloc[0])
        reported = runs[(runs["label"] == label) & runs["chosen"]]
        sensitive = at_best.get("lr_sensitivity_nats", pd.Series(dtype=float)).dropna()
        effect = paired_effect(list(sensitive), [0.0] * len(sensitive))
        low, high = map(float, not_negative(effect.mean, effect.mean - effect.low))
        outcomes = Counter(own["outcome"])
        rows.append(
            TuningRow(
                label=str(label),
                trials=len(own),
                finished=sum(outcomes[end] for end in FINAL),
                diverged=outcomes["diverged"],
                collapsed=outcomes["collapsed"],
                chosen=at_best["point"].iloc[0],
                edge=", ".join(key for key, value in best.items() if value in ends[key]),
                loss=float(reported[loss].mean()) if loss in reported else math.nan,
                sensitivity=effect.mean,
                low=low,
                high=high,
            )
        )
    return rows


def _ends(values: list[Any]) -> tuple[Any, ...]:
    """Return the first and last of a grid of three numbers or more; anything else has no edge."""
    numbers = {v for v in values if isinstance(v, int | float) and not isinstance(v, bool)}
    return (min(numbers), max(numbers)) if len(numbers) > 2 else ()
