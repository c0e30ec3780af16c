"""What the runs say of factors, of steps along a path, of tables side by side, of the controls."""

import itertools
import math
from typing import Any, Literal

import pandas as pd

from llama_ablate.evidence import contrasts, paired_effect
from llama_ablate.evidence.intervals import holm
from llama_ablate.report import frames
from llama_ablate.report.steadied import UNSTABLE
from llama_ablate.results import Store

Control = Literal["aa", "positive"]


def reported_losses(store: Store) -> dict[str, dict[int, float]]:
    """Return the reported loss by variant's id and seed, of what was tuned as it should be."""
    return frames.losses(store, frames.ranked(frames.runs(store)))


def factors(store: Store) -> pd.DataFrame:
    """Return main effects and two-way interactions of a factorial design with two-level factors.

    Columns: `factor, levels, difference_nats, low_nats, high_nats, p_holm`. Empty for other
    designs, and until every variant has finished a seed that all have.
    """
    columns = ["factor", "levels", "difference_nats", "low_nats", "high_nats", "p_holm"]
    variants = [v for v in store.plan["variants"] if not v.get("role")]
    names = list(variants[0].get("levels") or {})
    two = all({v["levels"][name] for v in variants} == {0, 1} for name in names)
    found = reported_losses(store)
    values = {v["id"]: found[v["id"]] for v in variants}
    seeds = set.intersection(*(set(of) for of in values.values()))
    if not names or not two or not seeds:
        return pd.DataFrame(columns=columns)
    levels = {v["id"]: [v["levels"][name] for name in names] for v in variants}
    train = store.plan["experiment"]["train"]
    written = {name: _levels(variants, name, train) for name in names}
    losses = {id_: [of[seed] for seed in sorted(seeds)] for id_, of in values.items()}
    rows = [
        (
            " x ".join(c.factors),
            "; ".join(written[f] for f in c.factors),
            c.effect.mean,
            c.effect.low,
            c.effect.high,
            c.p_holm,
        )
        for c in contrasts(levels, names, losses)
    ]
    return pd.DataFrame(rows, columns=columns)


def _levels(variants: list[dict[str, Any]], name: str, train: dict[str, Any]) -> str:
    """Write a factor's two values: what level 0 was, and what level 1."""
    if name.startswith("train."):
        key = name.removeprefix("train.")
        own = train[key]
        shown = {v["levels"][name]: v["train"].get(key, own) for v in variants}
    else:
        shown = {v["levels"][name]: v["model"][name] for v in variants}
    names = [s["name"] if isinstance(s, dict) else str(s) for s in (shown[0], shown[1])]
    if names[0] == names[1]:
        names = [str(shown[0]), str(shown[1])]
    return " -> ".join(names)


def steps(store: Store) -> pd.DataFrame:
    """Return what each step of a path did, and what all steps up to it did together.

    Columns: `step, marginal_nats, marginal_low, marginal_high, p_holm, cumulative_nats,
    cumulative_low, cumulative_high`. Empty for other designs. Marginal is against the step before,
    over the seeds that both finished; Holm's correction is over the steps.
    """
    plan = store.plan
    if plan["experiment"]["variants"].get("design") != "path":
        return pd.DataFrame()
    losses = reported_losses(store)
    line = [v for v in plan["variants"] if not v.get("role")]
    rows = []
    for before, now in itertools.pairwise(line):
        step, total = (_effect(losses[now["id"]], losses[of["id"]]) for of in (before, line[0]))
        rows.append(
            {
                "step": now["label"],
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


def _effect(of: dict[int, float], against: dict[int, float]) -> Any:
    seeds = [seed for seed in of if seed in against]
    return paired_effect([of[s] for s in seeds], [against[s] for s in seeds])


def winners(store: Store) -> pd.DataFrame:
    """Return one row for each table of an experiment that has several: who wins there.

    Columns: `table, winner, difference_nats, low_nats, high_nats, verdict, flips`. The winner has
    the lowest mean loss of all variants that are no controls; `flips` says that it is not the first
    table's winner, and `verdict` whether it is told apart from the baseline at all.
    """
    if len(store.tables) == 1:
        return pd.DataFrame()
    rows: list[dict[str, Any]] = []
    for table in store.tables:
        frame = frames.comparison(table)
        full = frame["n"] == frame.loc[frame["baseline"], "n"].max()
        fair = (frame["role"] == "") & frame["difference_nats"].notna() & full
        frame = frame[fair & ~frame["verdict"].isin(UNSTABLE)]
        if frame.empty:
            continue
        best = frame.sort_values("loss_nats").iloc[0]
        rows.append(
            {
                "table": table.plan["table"],
                "winner": best["label"],
                "difference_nats": best["difference_nats"],
                "low_nats": best["low_nats"],
                "high_nats": best["high_nats"],
                "verdict": best["verdict"],
                "flips": bool(rows) and best["label"] != rows[0]["winner"],
            }
        )
    return pd.DataFrame(rows)


def controls(store: Store) -> dict[Control, tuple[bool, str]]:
    """Return for each kind of control that was asked for whether it holds, and why.

    An A/A arm holds where the verdict tells it from the baseline neither way (and one that changes
    nothing where it is equal bit for bit); the positive control where it is worse, diverged or
    collapsed.
    """
    found: dict[Control, tuple[bool, str]] = {}
    by_label = {v["label"]: v for v in store.plan["variants"]}
    for row in frames.rows(frames.comparison(store)):
        if not row.role:
            continue
        same = str(by_label[row.label].get("reseed")) == "none"
        if row.verdict == "failed":
            holds, why = False, "failed"
        elif math.isnan(row.difference_nats) and row.verdict not in UNSTABLE:
            holds, why = False, "has not finished"
        elif row.role == "positive":
            holds, why = row.verdict in ("worse", *UNSTABLE), f"is {row.verdict}"
        elif same:
            holds = row.difference_nats == row.low_nats == row.high_nats == 0
            why = "is equal bit for bit" if holds else "differs, though nothing was changed"
        else:
            holds = row.verdict in ("inconclusive", "equivalent")
            why = "is not told apart" if holds else f"is {row.verdict}, by chance or by a fault"
        before = found.get(row.role, (True, ""))
        said = "; ".join(part for part in (before[1], f"{row.label} {why}") if part)
        found[row.role] = (before[0] and holds, said)
    return found


def believed(store: Store) -> tuple[bool, str]:
    """Return whether all controls of a table hold, and what they say."""
    found = controls(store)
    return all(holds for holds, _ in found.values()), "; ".join(said for _, said in found.values())
