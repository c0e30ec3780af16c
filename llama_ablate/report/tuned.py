"""What was tuned: which point each variant's runs are reported at, and what it took to choose it.

Points are chosen on the validation loss and reported on the split that the tables report.
"""

import json
import math
from typing import Any

import pandas as pd

from llama_ablate.evidence import paired_effect
from llama_ablate.evidence.sensitivity import sensitivity
from llama_ablate.report.steadied import UNSTABLE
from llama_ablate.results import FINAL


def point(tuned: dict[str, Any]) -> str:
    """Write a point of what is tuned, as its column in the tables."""
    return ", ".join(
        f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in tuned.items()
    )


def choose(frame: pd.DataFrame) -> "pd.Series[bool]":
    """Return for each run whether its variant is reported at its point.

    A variant's point is the one whose mean validation loss over seeds is lowest, a run that
    diverged or collapsed counting as infinite; of runs that have not finished nothing is said, so
    until a point is complete it is passed over while any other is complete.
    """
    if not several(frame):
        return pd.Series(data=True, index=frame.index)
    best = {variant: _best(of) for variant, of in frame.groupby("variant", sort=False)}
    return frame["tuned"] == frame["variant"].map(best)


def several(frame: pd.DataFrame) -> bool:
    """Return whether anything was tuned."""
    return len(set(frame["tuned"])) > 1


def _best(of: pd.DataFrame) -> str:
    means = {str(p): _mean(part) for p, part in of.groupby("tuned", sort=False)}
    return min(means, key=means.__getitem__)


def _mean(part: pd.DataFrame) -> tuple[bool, bool, float]:
    """Order points: complete before incomplete, all runs ok before not all, then by loss."""
    complete = bool(part["outcome"].isin(FINAL).all())
    column = "validation_loss_nats"
    whole = bool((part["outcome"] == "ok").all()) and column in part
    loss = float(part[column].mean()) if whole else math.inf
    return not complete, not whole, loss


def unfinished(frame: pd.DataFrame) -> list[str]:
    """Return the variants, by id, that have not been tried at every point with every seed.

    Where nothing is tuned there is one point, and what has not finished is merely not there yet.
    """
    if not several(frame):
        return []
    done = frame["outcome"].isin(FINAL).groupby(frame["variant"]).all()
    return [str(variant) for variant, all_done in done.items() if not all_done]


def rates(frame: pd.DataFrame, split: str, cap: float) -> pd.DataFrame:
    """Return the reported loss by variant, seed and learning rate, best over what else is tuned.

    Columns: `variant, label, seed, lr, loss_nats`. A run that diverged, or collapsed without a loss
    that was measured, has the cap, as has a loss beyond it.
    """
    frame = frame[frame["outcome"].isin(FINAL)].copy()
    frame["lr"] = [json.loads(tuned).get("lr", math.nan) for tuned in frame["tuned"]]
    column = f"{split}_loss_nats"
    losses = frame[column] if column in frame else pd.Series(math.nan, index=frame.index)
    lost = frame["outcome"].isin(UNSTABLE) & losses.isna()
    frame["loss_nats"] = losses.mask(lost, cap).clip(upper=cap)
    frame = frame[frame["lr"].notna() & frame["loss_nats"].notna()]
    keys = ["variant", "label", "seed", "lr"]
    return frame.groupby(keys, sort=False)["loss_nats"].min().reset_index()


def sensitivities(found: pd.DataFrame) -> dict[tuple[str, int], float]:
    """Return the learning-rate sensitivity in nats of each variant and seed."""
    losses: dict[tuple[str, int], list[float]] = {}
    for variant, seed, loss in zip(
        found["variant"], found["seed"], found["loss_nats"], strict=True
    ):
        losses.setdefault((str(variant), int(seed)), []).append(float(loss))
    return {key: sensitivity(values) for key, values in losses.items()}


def ledger(frame: pd.DataFrame, split: str) -> pd.DataFrame:
    """Return one row for each variant: trials, the chosen point, whether it lies at an edge.

    Columns: `label, trials, finished, diverged, collapsed, chosen, edge, loss_nats,
    sensitivity_nats, low_nats, high_nats`. `edge` names the keys whose best value is the first or
    last of the grid.
    """
    if not several(frame):
        return pd.DataFrame()
    grid: dict[str, list[Any]] = {}
    for tuned in frame["tuned"]:
        for key, value in json.loads(tuned).items():
            grid.setdefault(key, [])
            grid[key] += [value] if value not in grid[key] else []
    ends = {key: _ends(values) for key, values in grid.items()}
    rows: list[dict[str, Any]] = []
    for label, of in frame.groupby("label", sort=False):
        chosen = of[of["chosen"]]
        best = json.loads(chosen["tuned"].iloc[0])
        edge = [key for key, value in best.items() if value in ends[key]]
        sensitive = chosen.get("lr_sensitivity_nats", pd.Series(dtype=float)).dropna()
        effect = paired_effect(list(sensitive), [0.0] * len(sensitive))
        column = f"{split}_loss_nats"
        rows.append(
            {
                "label": label,
                "trials": len(of),
                "finished": int(of["outcome"].isin(FINAL).sum()),
                **{outcome: int((of["outcome"] == outcome).sum()) for outcome in UNSTABLE},
                "chosen": chosen["point"].iloc[0],
                "edge": ", ".join(edge),
                "loss_nats": float(chosen[column].mean()) if column in chosen else math.nan,
                "sensitivity_nats": effect.mean,
                "low_nats": effect.low,
                "high_nats": effect.high,
            }
        )
    return pd.DataFrame(rows)


def _ends(values: list[Any]) -> tuple[Any, ...]:
    """Return the first and last of a grid of numbers; what is no number has no edge."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return (min(numbers), max(numbers)) if len(numbers) > 2 else ()
