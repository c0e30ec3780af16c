"""Tuning: the tuning point of each variant, and the trial runs that chose the point.

A tuning point is a combination of tuned values, such as a learning rate. Points are chosen by the
validation loss and reported on test text. Without tuning, validation and test text are reported as
one split.
"""

import json
import math
from collections.abc import Mapping, Sequence

import pandas as pd

from llama_ablate.config.experiment import Experiment
from llama_ablate.config.labels import entry_text
from llama_ablate.evidence.intervals import simultaneous
from llama_ablate.evidence.student import not_negative
from llama_ablate.evidence.trends import sensitivity
from llama_ablate.findings.columns import make_frame
from llama_ablate.findings.outcomes import UNSTABLE
from llama_ablate.findings.table import SPLITS, Table, first_split
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import NATS, PlannedTable, PlannedVariant

#: Remark on a comparison of two optimizers at the learning rate of one of them.
ONE_RATE = "one rate for all: not tuned"
#: Name of a run's number for the learning-rate sensitivity of its variant and seed.
SENSITIVITY = "lr_sensitivity_nats"
#: Tuned values of a run without tuning, as JSON.
NOT_TUNED = "{}"
_VALIDATION = "validation_loss_nats"


def name_point(tuned: Mapping[str, object]) -> str:
    """Format a tuning point, as in `lr 0.001`."""
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {entry_text(value)}"
        for key, value in tuned.items()
    )


def mark_trials(runs: pd.DataFrame, repeated: Mapping[str, str]) -> pd.DataFrame:
    """Mark runs as trials if their tuning point is not their variant's reported point.

    `repeated` maps each variant that uses another variant's tuning point to the id of the other
    variant.
    """
    if runs["tuned"].eq(NOT_TUNED).all():
        return runs
    best = runs["variant"].map(best_points(runs, repeated)).fillna(runs["tuned"])
    is_trial = runs["use"].eq("reported") & runs["tuned"].ne(best)
    names = {tuned: name_point(json.loads(tuned)) for tuned in runs["tuned"].unique()}
    return runs.assign(point=runs["tuned"].map(names), use=runs["use"].mask(is_trial, "trial"))


def trial_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that choose the tuning points; an empty frame without tuning.

    If the experiment has a race, these are the runs of the race; otherwise all runs.
    """
    if runs["tuned"].nunique() < 2:
        return runs.iloc[:0]
    race = runs[runs["use"].eq("race")]
    return race if len(race) else runs


def best_points(runs: pd.DataFrame, repeated: Mapping[str, str]) -> dict[str, str]:
    """Return each variant's best tuning point, as JSON, by id; {} without tuning.

    The best point has the fewest runs that diverged or collapsed and, among equals, the lowest mean
    validation loss. A point with unfinished runs is chosen only if no point of the variant is
    complete.
    """
    tried = trial_runs(runs)
    if tried.empty:
        return {}
    loss = tried.get(_VALIDATION, pd.Series(math.nan, tried.index))
    ok, is_open = tried["outcome"].eq("ok"), ~tried["outcome"].isin(FINAL)
    tried = tried[["variant", "tuned"]].assign(lost=~ok, open=is_open, loss=loss)
    place = ["variant", "tuned"]
    # Collapsed runs may have a measured loss, which counts if no run of the point is ok.
    usable = ok | ~ok.groupby([tried[key] for key in place]).transform("any")
    points = tried.groupby(place, sort=False).agg(open=("open", "any"), lost=("lost", "sum"))
    points["loss"] = tried[usable].groupby(place, sort=False)["loss"].mean()
    ordered = points.fillna({"loss": math.inf}).sort_values(["open", "lost", "loss"], kind="stable")
    first = ordered.reset_index().drop_duplicates("variant")
    best: dict[str, str] = dict(zip(first["variant"], first["tuned"], strict=True))
    return best | {id_: best[other] for id_, other in repeated.items() if other in best}


def unfinished(runs: pd.DataFrame) -> set[str]:
    """Return the ids of variants with unfinished trials.

    Without tuning the set is empty, since an unfinished run is then merely pending. With a race,
    only runs of the race are trials.
    """
    tried = trial_runs(runs)
    return {*tried.loc[~tried["outcome"].isin(FINAL), "variant"]}


def rates(runs: pd.DataFrame, name: str, cap: float) -> pd.DataFrame:
    """Return the loss `name` by variant, label, seed and `lr`, the learning rate, capped at `cap`.

    The loss is the lowest over the values of other tuned keys. A run that diverged, or that
    collapsed without a measured loss, has the loss `cap`.
    """
    loss = runs.get(name, pd.Series(math.nan, runs.index))
    lost = runs["outcome"].isin(UNSTABLE) & loss.isna()
    rate = [json.loads(tuned).get("lr", math.nan) for tuned in runs["tuned"]]
    keys = ["variant", "label", "seed", "lr"]
    rated = runs[keys[:3]].assign(lr=rate, loss=loss.mask(lost, cap).clip(upper=cap))
    rated = rated[runs["outcome"].isin(FINAL)].dropna(subset=["lr", "loss"])
    return rated.groupby(keys, sort=False)["loss"].min().reset_index()


def add_sensitivity(runs: pd.DataFrame, cap: float) -> pd.DataFrame:
    """Add to each run the learning-rate sensitivity of its variant and seed, in nats.

    The sensitivity is NaN for a variant with unfinished trials, and for a seed without trials.
    """
    split = first_split(s for s in SPLITS if f"{s}_loss_nats" in runs) or "test"
    tried = rates(trial_runs(runs), f"{split}_{NATS.number}", cap)
    tried = tried[~tried["variant"].isin(unfinished(runs))]
    by_seed = tried.groupby(["variant", "seed"])["loss"].agg(lambda of: sensitivity([*of]))
    places = pd.MultiIndex.from_frame(runs[["variant", "seed"]])
    return runs.assign(**{SENSITIVITY: by_seed.reindex(places).to_numpy(float)})


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


def describe_tuning(table: Table, runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each variant: its trial runs, and its reported tuning point.

    `runs` are the table's runs that are needed or have ended. The frame is empty without tuning.
    """
    tried, chosen = trial_runs(runs), best_points(runs, table.plan.repeated)
    points = [json.loads(tuned) for tuned in tried["tuned"].unique()]
    ends = {key: _find_ends([point[key] for point in points]) for key in (points or [{}])[0]}
    is_ok = runs["use"].eq("reported") & runs["outcome"].eq("ok")
    losses = runs.get(table.loss, pd.Series(math.nan, runs.index))[is_ok]
    mean_losses = losses.groupby(runs["label"]).mean()
    rows = []
    for label, variant_trials in tried.groupby("label", sort=False):
        at = variant_trials[variant_trials["tuned"].eq(chosen[variant_trials["variant"].iloc[0]])]
        best, outcome = json.loads(at["tuned"].iloc[0]), variant_trials["outcome"]
        sensitive = at.get(SENSITIVITY, pd.Series(dtype=float)).dropna()
        interval = simultaneous(pd.DataFrame([[*sensitive]])).iloc[0]
        low, high = map(float, not_negative(interval["mean"], interval["mean"] - interval["low"]))
        rows.append(
            {
                "label": label,
                "trials": len(variant_trials),
                "finished": int(outcome.isin(FINAL).sum()),
                **{word: int(outcome.eq(word).sum()) for word in UNSTABLE},
                "chosen": at["point"].iloc[0],
                "edge": ", ".join(key for key, value in best.items() if value in ends[key]),
                "seeds": at["seed"].nunique(),
                "rival": _find_rival(variant_trials, chosen[variant_trials["variant"].iloc[0]]),
                "loss": mean_losses.get(label, math.nan),
                "sensitivity": interval["mean"],
                "low": low,
                "high": high,
            }
        )
    return make_frame(rows, "tuning")


def _find_ends(values: Sequence[object]) -> tuple[float, ...]:
    """Return the smallest and largest number of a grid; () for a single number."""
    numbers = {v for v in values if isinstance(v, int | float) and not isinstance(v, bool)}
    return (min(numbers), max(numbers)) if len(numbers) > 1 else ()


def _find_rival(runs: pd.DataFrame, best: str) -> str:
    """Return the second-best tuning point, if the trials do not tell it apart from the best one.

    The two are told apart if Student's 95% interval of the difference of their validation losses,
    paired by seed, leaves out 0; on one seed they never are. `runs` are the trials of a variant.
    """
    ok = runs[runs["outcome"].eq("ok")]
    if _VALIDATION not in ok or best not in {*ok["tuned"]}:
        return ""
    losses = ok.pivot_table(_VALIDATION, "tuned", "seed")
    others = losses.drop(index=best).mean(axis=1).dropna()
    if others.empty:
        return ""
    second = str(others.idxmin())
    difference = losses.loc[[second]].to_numpy() - losses.loc[[best]].to_numpy()
    interval = simultaneous(pd.DataFrame(difference)).iloc[0]
    return "" if interval["low"] > 0 else name_point(json.loads(second))
