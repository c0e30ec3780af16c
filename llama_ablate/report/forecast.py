"""A plan as a table: what would be trained, how large it is, and how long it would take."""

import statistics
from collections.abc import Collection
from typing import Any

import pandas as pd

from llama_ablate.errors import ConfigError
from llama_ablate.evidence.intervals import detectable, seeds_for
from llama_ablate.report import frames, tables, warned
from llama_ablate.results import Store

_BYTES = 4  # of a parameter: weights are kept in float32
_RECORD = 32 << 10  # a record, its curve and measures, with room to spare
_KEPT = {"none": "no weights kept", "best": "those of the best", "all": "all"}


def forecast(plan: dict[str, Any], compute: dict[str, Any], workers: int) -> dict[str, Any]:
    """Add the predicted time to a plan: its FLOPs at the rate that a probe step reached here.

    The probe is a training step of one layer; real runs also evaluate and save, so this is the
    order of magnitude, not a promise.
    """
    tables = [plan, *plan.get("others", [])]
    context, batch = plan["experiment"]["model"]["context"], plan["experiment"]["train"]["batch"]
    flops: dict[str, float] = {}
    for table in tables:
        cost = {v["id"]: 3 * v["flops_per_token"] for v in table["variants"]}
        for r in table["runs"]:
            flops[r["id"]] = cost[r["variant"]] * r["steps"] * batch * context
    seconds = sum(flops.values()) / compute["flops_per_s"] / max(1, min(workers, len(flops)))
    return {
        "name": plan["experiment"]["name"],
        "question": plan["question"],
        "runs": len(flops),
        "seeds": len({run["seed"] for run in plan["runs"]}),
        "training_flops": sum(flops.values()),
        "predicted_s": seconds,
        "workers": workers,
        "disk_bytes": disk_bytes(plan, workers),
        "compute": compute,
        "tables": [
            {
                key: table[key]
                for key in (
                    "table",
                    "match",
                    "budget",
                    "data",
                    "steps",
                    "tokens_per_run",
                    "variants",
                )
            }
            for table in tables
        ],
        **{key: plan[key] for key in ("data", "match", "steps", "tokens_per_run", "variants")},
    }


def disk_bytes(plan: dict[str, Any], workers: int, done: Collection[str] = ()) -> dict[str, int]:
    """Return the most bytes that the runs not yet done will take, by what weights are kept.

    A checkpoint holds weights, two moments, and where the end is averaged a sum of weights; a run
    at work has two checkpoints and writes a third.
    """
    weights: dict[str, int] = {}
    held: dict[str, int] = {}
    runs: dict[str, str] = {}
    best: set[tuple[int, str]] = set()  # of every variant, in every table
    for number, table in enumerate([plan, *plan.get("others", [])]):
        weights |= {v["id"]: _BYTES * v["parameters"] for v in table["variants"]}
        for v in table["variants"]:
            train = plan["experiment"]["train"] | v.get("train", {})
            held[v["id"]] = 4 if train.get("average", 1) > 1 else 3
        here = {r["id"]: r["variant"] for r in table["runs"] if r["id"] not in done}
        runs |= here
        best |= {(number, variant) for variant in here.values()}
    largest = sorted((3 * held[v] * weights[v] for v in runs.values()), reverse=True)
    working = sum(largest[:workers]) + _RECORD * len(runs)
    return {
        "none": working,
        "best": working + sum(weights[variant] for _table, variant in best),
        "all": working + sum(weights[variant] for variant in runs.values()),
    }


def size(count: float, digits: int = 3) -> str:
    """Write a number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.{digits}g} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def text(values: dict[str, Any]) -> str:
    """Return a forecast for a terminal."""
    lines = [f"{values['name']}: {values['question']}".rstrip(": ")]
    for table in values["tables"]:
        data = table["data"]
        sizes = ", ".join(f"{name} {n:,}" for name, n in data["tokens"].items())
        lines += ["", *([f"{table['table']}:", ""] if table["table"] else [])]
        lines += [
            tables.text(_cells(table)),
            "",
            f"matched: {table['match']}; budget: {table['budget']}; the baseline trains on "
            f"{table['tokens_per_run']:,} tokens ({table['steps']:,} steps)",
            f"data: {data['fingerprint']}, vocabulary {data['vocab']:,}; tokens: {sizes}",
            *warned.covered(table),
            *warned.losses_of_text(data),
        ]
    compute = values["compute"]
    return "\n".join(
        [
            *lines,
            "",
            "* baseline. FLOPs: forward, at the training context. KV bytes: 16-bit.",
            f"runs: {values['runs']}; {values['training_flops']:.3g} training FLOPs",
            f"predicted: about {_duration(values['predicted_s'])} with {values['workers']} "
            f"worker(s) on {compute['device']}, {compute['precision']}, {compute['kernel']} kernel "
            f"({compute['flops_per_s'] / 1e9:,.0f} GFLOP/s a worker, measured)",
            "disk: up to "
            + ", ".join(f"{size(n)} with {_KEPT[k]}" for k, n in values["disk_bytes"].items()),
        ]
    )


def _cells(table: dict[str, Any]) -> pd.DataFrame:
    variants = pd.DataFrame(table["variants"])
    cells = pd.DataFrame({"variant": variants["label"]})
    cells.loc[variants["baseline"], "variant"] += " *"
    for column, name in {
        "parameters": "parameters",
        "non_embedding": "non-embedding",
        "flops_per_token": "FLOPs/token",
        "kv_bytes_per_token": "KV bytes/token",
    }.items():
        cells[name] = [f"{v:,}" for v in variants[column]]
    if table["match"] != "none":
        cells["residual"] = [f"{v:+.2%}" for v in variants["residual"]]
        cells["solved"] = [solved or "own sizes" for solved in variants["solved"]]
    return cells


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 90 else f"{hours:.1f} h"


def powered(pilot: Store, effect_nats: float, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return for each variant of a pilot how many seeds show an effect, and what they cost.

    The noise is that of the pilot's paired differences; the threshold is Holm's first step for the
    plan's table, the power 0.8. Seconds are the plan's own, scaled to so many seeds for all its
    variants. Raises ConfigError where the pilot has no variant with two paired seeds.
    """
    alpha = 0.05 / max(1, sum(not v.get("role") for v in values["variants"]) - 1)
    controls = {v["label"] for v in pilot.plan["variants"] if v.get("role")}
    seeds, rows = values["seeds"], []
    for label, differences in frames.differences(pilot).items():
        if len(differences) < 2 or label in controls:
            continue
        sd = statistics.stdev(differences)
        needed = seeds_for(effect_nats, sd, alpha=alpha)
        rows.append(
            {
                "variant": label,
                "pilot_seeds": len(differences),
                "sd_nats": sd,
                "seeds_needed": needed,
                "detectable_nats": detectable(sd, seeds, alpha=alpha),
                "predicted_s": values["predicted_s"] * needed / seeds,
            }
        )
    if not rows:
        raise ConfigError(
            f"'{pilot.root}' has no variant with two seeds that its baseline "
            "has too: no noise to plan with"
        )
    return rows


def power_text(rows: list[dict[str, Any]], effect_nats: float, seeds: int) -> str:
    """Return the power plan for a terminal."""
    frame = pd.DataFrame(rows)
    cells = pd.DataFrame({"variant": frame["variant"]})
    cells["pilot seeds"] = frame["pilot_seeds"].astype(str)
    cells["sd of difference"] = [f"{v:.4f}" for v in frame["sd_nats"]]
    cells[f"seeds for {effect_nats:g} nats"] = [f"{v:,}" for v in frame["seeds_needed"]]
    cells[f"seen with {seeds} seeds"] = [tables.number(v, ".4f") for v in frame["detectable_nats"]]
    cells["time for all"] = [_duration(v) for v in frame["predicted_s"]]
    return tables.text(cells)
