"""Stored results as data frames: one row a run, a curve point, or a variant."""

import math
import re
from collections import Counter
from typing import Any

import pandas as pd

from llama_ablate.evidence import paired_effect, rule, summary
from llama_ablate.results import Store

SPLITS = ("test", "validation")  # the first that was measured is the one reported


def runs(store: Store) -> pd.DataFrame:
    """Return one row for each planned run: label, seed, outcome, and every measured number.

    A run without a record has the outcome `pending`.
    """
    labels = {v["id"]: v["label"] for v in store.plan["variants"]}
    records = {record.id: record for record in store.records()}
    rows: list[dict[str, Any]] = []
    for run in store.plan["runs"]:
        record = records.get(run["id"])
        row: dict[str, Any] = {
            "id": run["id"],
            "variant": run["variant"],
            "label": labels[run["variant"]],
            "seed": run["seed"],
            "outcome": record.outcome if record else "pending",
            "reason": record.reason if record else "",
        }
        if record:
            row |= {
                "steps_done": record.steps_done,
                "train_s": record.train_s,
                "peak_memory_bytes": record.peak_memory_bytes,
                **record.numbers,
            }
        rows.append(row)
    return pd.DataFrame(rows)


def curves(store: Store) -> pd.DataFrame:
    """Return the learning curves of all finished runs, one row a point."""
    rows = [
        {"label": record.label, "seed": record.seed, "outcome": record.outcome, **point}
        for record in store.records()
        for point in store.curve(record.id)
    ]
    return pd.DataFrame(rows, columns=None if rows else ["label", "seed", "outcome", "tokens"])


def reported_split(frame: pd.DataFrame) -> str:
    """Return the split that the tables report: test where there is one."""
    return next((s for s in SPLITS if f"{s}_loss_nats" in frame.columns), "test")


def comparison(store: Store) -> pd.DataFrame:
    """Return one row for each variant: quality, paired difference, size, speed and memory.

    Columns: `label, outcome, n, loss_nats, sd_nats, difference_nats, low_nats, high_nats, verdict,
    p_holm, equivalence_p, seeds_needed, correlation, p, perplexity, bits_per_byte, excess_nats,
    parameters, non_embedding, residual,
    flops_per_token, train_tokens_per_s, train_speed_ratio, decode_tokens_per_s,
    decode_speed_ratio, kv_bytes_per_token, kv_measured_bytes_per_token, peak_memory_bytes`.
    The difference is variant minus baseline over the seeds that both finished; numbers that were
    not measured are NaN. A variant none of whose runs ended `ok` keeps its row.
    """
    plan, frame = store.plan, runs(store)
    split = reported_split(frame)
    measured = {v["id"]: flat(store.variant_measures(v["id"])) for v in plan["variants"]}
    base = next(v for v in plan["variants"] if v["baseline"])
    by_variant = losses(store, frame)
    reference = by_variant[base["id"]]
    paired = {
        id_: [(value, reference[seed]) for seed, value in values.items() if seed in reference]
        for id_, values in by_variant.items()
    }
    rulings = rule(
        {id_: [a - b for a, b in pairs] for id_, pairs in paired.items() if id_ != base["id"]},
        margin=margin_of(plan),
    )
    rows = []
    for variant in plan["variants"]:
        of = frame[frame["variant"] == variant["id"]]
        ok = of[of["outcome"] == "ok"]
        pairs = paired[variant["id"]]
        effect = paired_effect([a for a, _ in pairs], [b for _, b in pairs])
        ruling = rulings.get(variant["id"])
        quality = summary(list(by_variant[variant["id"]].values()))
        speeds = measured[variant["id"]]
        base_speeds = measured[base["id"]]
        decode = _decode_key(base_speeds)
        diverged = (of["outcome"] == "diverged").any()
        rows.append(
            {
                "label": variant["label"],
                "baseline": variant["baseline"],
                "outcome": outcomes(of["outcome"]),
                "n": quality.n,
                "loss_nats": quality.mean,
                "sd_nats": quality.sd,
                "difference_nats": effect.mean if ruling else 0.0,
                "low_nats": effect.low if ruling else math.nan,
                "high_nats": effect.high if ruling else math.nan,
                "verdict": "baseline" if not ruling else "diverged" if diverged else ruling.verdict,
                "p_holm": ruling.p_holm if ruling else math.nan,
                "equivalence_p": ruling.equivalence_p if ruling else math.nan,
                "seeds_needed": (ruling.seeds_needed if ruling else None) or math.nan,
                "correlation": effect.correlation if ruling else math.nan,
                "p": effect.p if ruling else math.nan,
                "perplexity": _mean(ok, f"{split}_perplexity"),
                "bits_per_byte": _mean(ok, f"{split}_bits_per_byte"),
                "excess_nats": _mean(ok, f"{split}_excess_nats"),
                "parameters": variant["parameters"],
                "non_embedding": variant["non_embedding"],
                "residual": variant["residual"],
                "flops_per_token": variant["flops_per_token"],
                "train_tokens_per_s": speeds.get("train_tokens_per_s", math.nan),
                "train_speed_ratio": _ratio(speeds, base_speeds, "train_tokens_per_s"),
                "decode_tokens_per_s": speeds.get(decode, math.nan),
                "decode_speed_ratio": _ratio(speeds, base_speeds, decode),
                "kv_bytes_per_token": variant["kv_bytes_per_token"],
                "kv_measured_bytes_per_token": speeds.get("kv_cache_bytes_per_token", math.nan),
                "peak_memory_bytes": _mean(ok, "peak_memory_bytes"),
            }
        )
    return pd.DataFrame(rows)


def differences(store: Store) -> dict[str, list[float]]:
    """Return each variant's losses minus the baseline's, over the seeds that both finished."""
    by_variant, variants = losses(store, runs(store)), store.plan["variants"]
    base = by_variant[next(v["id"] for v in variants if v["baseline"])]
    return {
        v["label"]: [x - base[seed] for seed, x in by_variant[v["id"]].items() if seed in base]
        for v in variants
        if not v["baseline"]
    }


def margin_of(plan: dict[str, Any]) -> float | None:
    """Return the experiment's margin of equivalence in nats, where it states one."""
    return nats(plan["experiment"].get("margin"))


def nats(stated: str | None) -> float | None:
    """Read "0.01 nats"; None where nothing is stated."""
    return float(stated.split()[0]) if stated else None


def speeds(store: Store) -> pd.DataFrame:
    """Return every per-variant number, one row each: label, metric, name, value, samples."""
    rows = [
        {"label": v["label"], "metric": metric, "name": name, "value": value,
         "low": min(found["samples"][name]), "high": max(found["samples"][name])}
        for v in store.plan["variants"]
        for metric, found in store.variant_measures(v["id"]).items()
        for name, value in found["values"].items()
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["label", "metric", "name", "value", "low", "high"])


def warnings(store: Store) -> list[str]:
    """Say what stands in the way of comparing these records, in whole sentences."""
    found = []
    records = store.records()
    for what, values in {
        "devices, threads, precisions or kernels": [
            tuple(r.engine.get(k) for k in ("device", "threads", "precision", "kernel"))
            for r in records
        ],
        "versions of torch": [r.environment["packages"]["torch"] for r in records],
        "states of the code": [r.environment["code"] for r in records],
        "processors": [(r.environment["processor"], r.environment["gpu"]) for r in records],
    }.items():
        if len(set(values)) > 1:
            kinds = "; ".join(sorted({str(v) for v in values}))
            found.append(f"The runs were made with different {what} ({kinds}).")
    frame = runs(store)
    pending = int((frame["outcome"] == "pending").sum())
    if pending:
        found.append(f"{pending} of {len(frame)} planned runs have not finished.")
    failed = frame[~frame["outcome"].isin(["ok", "pending"])]
    found += [
        f"{row.label}, seed {row.seed}: {row.outcome} ({row.reason})." for row in rows(failed)
    ]
    if store.stated != store.plan["experiment"].get("hypotheses", []) and records:
        found.append("The hypotheses were changed after runs had finished: what the table tests is "
                     "not what was stated before them (hypotheses.json).")  # fmt: skip
    for split in (s for s in SPLITS if f"{s}_excess_nats" in frame):
        below = frame[frame[f"{split}_excess_nats"] < -3 * frame[f"{split}_excess_se_nats"]]
        found += [
            f"{row.label}, seed {row.seed}: the {split} loss is below the best possible by more "
            "than three standard errors: something leaks."
            for row in rows(below)
        ]
    if len(set(frame["seed"])) == 1:
        found.append("There is one seed: differences have no interval.")
    return found


def rows(frame: pd.DataFrame) -> list[Any]:
    """Return a frame's rows as named tuples."""
    return list(frame.itertuples())


def outcomes(values: "pd.Series[str]") -> str:
    """Count outcomes in words: `3 ok`, or `2 ok, 1 diverged`."""
    counts = Counter(values)
    order = sorted(counts, key=lambda o: (o != "ok", o))
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in order)


def losses(store: Store, frame: pd.DataFrame) -> dict[str, dict[int, float]]:
    """Return the reported loss of the runs that ended ok, by variant's id and by seed."""
    column = f"{reported_split(frame)}_loss_nats"
    found: dict[str, dict[int, float]] = {v["id"]: {} for v in store.plan["variants"]}
    if column in frame:
        ok = frame[(frame["outcome"] == "ok") & frame[column].notna()]
        for variant, seed, loss in zip(ok["variant"], ok["seed"], ok[column], strict=True):
            found[variant][int(seed)] = float(loss)
    return found


def flat(measures: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return all per-variant numbers of `Store.variant_measures` by name."""
    return {k: v for found in measures.values() for k, v in found["values"].items()}


def _decode_key(values: dict[str, float]) -> str:
    """Pick the decode speed that the table shows: with cache, largest batch, longest context."""
    keys = [key for key in values if key.startswith("decode_cached_")]
    return max(
        keys, key=lambda key: [int(digits) for digits in re.findall(r"\d+", key)], default=""
    )


def _ratio(values: dict[str, float], base: dict[str, float], key: str) -> float:
    return values[key] / base[key] if key in values and base.get(key) else math.nan


def _mean(frame: pd.DataFrame, column: str) -> float:
    return float(frame[column].mean()) if column in frame and len(frame) else math.nan
