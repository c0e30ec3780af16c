"""Stored results as data frames: one row a run, a curve point, or a variant."""

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any

import pandas as pd

from llama_ablate.config import margins
from llama_ablate.evidence import Ruling, paired_effect, rule, summary
from llama_ablate.report import tuned
from llama_ablate.report.steadied import UNSTABLE, verdict
from llama_ablate.results import Store, once
from llama_ablate.results.metrics import Measurement, table

SPLITS = ("test", "validation")  # the first that was measured is the one reported


@once
def runs(store: Store) -> pd.DataFrame:
    """Return one row for each planned run: label, seed, outcome, and every measured number.

    A run without a record has the outcome `pending`. Where something was tuned, `point` is what
    the run was tuned to and `chosen` whether its variant is reported there.
    """
    plan = store.plan
    labels = {v["id"]: v["label"] for v in plan["variants"]}
    records = {record.id: record for record in store.records()}
    rows: list[dict[str, Any]] = []
    for run in plan["runs"]:
        record = records.get(run["id"])
        row: dict[str, Any] = {
            "id": run["id"],
            "variant": run["variant"],
            "label": labels[run["variant"]],
            "seed": run["seed"],
            "tuned": json.dumps(run.get("tuned", {})),
            "point": tuned.point(run.get("tuned", {})),
            "outcome": record.outcome if record else "pending",
            "reason": record.reason if record else "",
        }
        if record:
            row |= {
                **{outcome: float(record.outcome == outcome) for outcome in UNSTABLE},
                "steps_done": record.steps_done,
                "train_s": record.train_s,
                "peak_memory_bytes": record.peak_memory_bytes,
                **record.numbers,
            }
        rows.append(row)
    frame = pd.DataFrame(rows)
    if plan["data"].get("lost"):  # records of older versions have bits per byte all the same
        frame = frame.drop(columns=frame.filter(like="_bits_per_byte").columns)
    frame["chosen"] = tuned.choose(frame)
    if "lr" in plan["experiment"].get("tune", {}):
        by_rate = tuned.rates(frame, reported_split(frame), math.log(plan["data"]["vocab"]))
        found = tuned.sensitivities(by_rate)
        keys = zip(frame["variant"], frame["seed"], strict=True)
        uneven = tuned.unfinished(frame)
        frame["lr_sensitivity_nats"] = [
            math.nan if key[0] in uneven else found.get(key, math.nan) for key in keys
        ]
    return frame


def every_run(store: Store) -> pd.DataFrame:
    """Return the runs of all of an experiment's tables, each once."""
    return pd.concat([runs(table) for table in store.tables]).drop_duplicates("id")


def reported(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that the tables are about: each variant's at its chosen point."""
    return frame[frame["chosen"]]


def ranked(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the reported runs of the variants that were tried at everything the grid asks for."""
    return reported(frame[~frame["variant"].isin(tuned.unfinished(frame))])


def curves(store: Store, labels: Collection[str]) -> pd.DataFrame:
    """Return the held-out losses along the reported runs of some variants, one row a point.

    Columns: `label, seed, outcome, tokens, validation_loss_nats`.
    """
    loss = "validation_loss_nats"
    points = [
        (run.label, run.seed, run.outcome, point["tokens"], point[loss])
        for run in rows(reported(runs(store)))
        if run.label in labels
        for point in store.runs.curve(run.id)
        if math.isfinite(point[loss])
    ]
    return pd.DataFrame(points, columns=["label", "seed", "outcome", "tokens", loss])


def reported_split(frame: pd.DataFrame) -> str:
    """Return the split that the tables report: test where there is one."""
    return next((s for s in SPLITS if f"{s}_loss_nats" in frame.columns), "test")


@once
def comparison(store: Store) -> pd.DataFrame:
    """Return one row for each variant: quality, paired difference, size, speed and memory.

    Columns: `label, role, point, outcome, n, loss_nats, sd_nats, difference_nats, low_nats,
    high_nats, verdict, p_holm, equivalence_p, seeds_needed, correlation,
    pairing_saves, p, perplexity,
    bits_per_byte, excess_nats, parameters, non_embedding, residual, solved, flops_per_token,
    train_tokens_per_s, train_speed_ratio, decode_tokens_per_s,
    decode_speed_ratio, kv_bytes_per_token, kv_measured_bytes_per_token, peak_memory_bytes`.
    The difference is variant minus baseline over the seeds that both finished; numbers that were
    not measured are NaN. A variant none of whose runs ended `ok` keeps its row; what its runs came
    to is its verdict, as it is of one with a run that diverged or collapsed. Controls (`role`)
    are judged each alone, and do not count among the rows that the correction is for; a variant
    that was not tried at every tuned point that the baseline was is not ranked.
    """
    plan, everything = store.plan, runs(store)
    frame = reported(everything)
    uneven = tuned.unfinished(everything)
    split = reported_split(frame)
    metrics = {v["id"]: store.variant_metrics(v["id"]) for v in plan["variants"]}
    measured = {id_: flat(of_variant) for id_, of_variant in metrics.items()}
    base = baseline(plan)
    by_variant = losses(store, frame)
    reference = by_variant[base["id"]]
    paired = {
        id_: [(value, reference[seed]) for seed, value in values.items() if seed in reference]
        for id_, values in by_variant.items()
    }
    for id_ in by_variant if base["id"] in uneven else uneven:
        paired[id_] = []
    rulings = _rulings(plan, paired)
    ended = {id_: set(of) for id_, of in everything.groupby("variant")["outcome"]}
    by_id = dict(list(frame.groupby("variant")))
    rows = []
    for variant in plan["variants"]:
        of = by_id.get(variant["id"], frame.iloc[:0])
        ok = of[of["outcome"] == "ok"]
        pairs = paired[variant["id"]]
        effect = paired_effect([a for a, _ in pairs], [b for _, b in pairs])
        ruling = rulings.get(variant["id"])
        quality = summary(list(by_variant[variant["id"]].values()))
        speeds = measured[variant["id"]]
        base_speeds = measured[base["id"]]
        decode = _decode_name(metrics[base["id"]])
        rows.append(
            {
                "label": variant["label"],
                "baseline": variant["baseline"],
                "role": variant.get("role", ""),
                "point": "" if of.empty else of["point"].iloc[0],
                "outcome": outcomes(of["outcome"]),
                "n": quality.n,
                "loss_nats": quality.mean,
                "sd_nats": quality.sd,
                "difference_nats": effect.mean if ruling else 0.0,
                "low_nats": effect.low if ruling else math.nan,
                "high_nats": effect.high if ruling else math.nan,
                "verdict": verdict(
                    ruling,
                    set(of["outcome"]),
                    ended[variant["id"]],
                    ended[base["id"]],
                    paired=bool(pairs),
                ),
                "p_holm": ruling.p_holm if ruling else math.nan,
                "equivalence_p": ruling.equivalence_p if ruling else math.nan,
                "seeds_needed": (ruling.seeds_needed if ruling else None) or math.nan,
                "correlation": effect.correlation if ruling else math.nan,
                "pairing_saves": effect.saved if ruling else math.nan,
                "p": effect.p if ruling else math.nan,
                "perplexity": _mean(ok, f"{split}_perplexity"),
                "bits_per_byte": _mean(ok, f"{split}_bits_per_byte"),
                "excess_nats": _mean(ok, f"{split}_excess_nats"),
                "parameters": variant["parameters"],
                "non_embedding": variant["non_embedding"],
                "residual": variant["residual"],
                "solved": variant.get("solved", ""),
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


def _rulings(
    plan: dict[str, Any], paired: dict[str, list[tuple[float, float]]]
) -> dict[str, Ruling]:
    """Rule on the table's rows together, and on each control alone."""
    found = {v["id"]: v for v in plan["variants"] if not v["baseline"]}
    margin = margin_of(plan)
    values = {id_: [a - b for a, b in paired[id_]] for id_ in found}
    alone = [id_ for id_, v in found.items() if v.get("role")]
    rulings = rule({i: v for i, v in values.items() if i not in alone}, margin=margin)
    for id_ in alone:
        rulings |= rule({id_: values[id_]})
    return rulings


def differences(store: Store) -> dict[str, list[float]]:
    """Return each variant's losses minus the baseline's, over the seeds that both finished."""
    by_variant, variants = losses(store, ranked(runs(store))), store.plan["variants"]
    base = by_variant[baseline(store.plan)["id"]]
    return {
        v["label"]: [x - base[seed] for seed, x in by_variant[v["id"]].items() if seed in base]
        for v in variants
        if not v["baseline"]
    }


def baseline(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the variant that the others of a table are compared with."""
    return dict(next(v for v in plan["variants"] if v["baseline"]))


def matched(plan: dict[str, Any]) -> str:
    """Return what a table's variants are matched on; older plans state it in the experiment."""
    stated = plan["experiment"].get("variants", {}).get("match", "none")
    return str(plan.get("match", stated))


def margin_of(plan: dict[str, Any]) -> float | None:
    """Return the experiment's margin of equivalence in nats, where it states one."""
    return margins.nats(plan["experiment"].get("margin"))


def speeds(store: Store) -> pd.DataFrame:
    """Return every per-variant number, one row each.

    Columns: `label, metric, name, quantity, unit, value, low, high, error`, and one for each
    coordinate. `error` is why a metric failed for a variant: then the row is without a name, and
    without numbers.
    """
    rows = [
        {**row, "label": v["label"]}
        for v in store.plan["variants"]
        for row in table(store.variant_metrics(v["id"]))
    ]
    fixed = ["label", "metric", "name", "quantity", "unit", "value", "low", "high", "error"]
    coordinates = [key for key in dict.fromkeys(chain(*rows)) if key not in fixed]
    return pd.DataFrame(rows, columns=[*fixed, *coordinates])


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


def flat(metrics: Mapping[str, Measurement]) -> dict[str, float]:
    """Return all per-variant numbers of `Store.variant_metrics` by name."""
    return {k: v for metric in metrics.values() for k, v in metric.numbers.items()}


def _decode_name(metrics: Mapping[str, Measurement]) -> str:
    """Pick the decode speed that the table shows: with cache, largest batch, longest context."""
    values = [
        value
        for metric in metrics.values()
        for value in metric.rows
        if value.quantity == "decode_speed" and value.coordinates["cache"] == "cached"
    ]
    at = {v.name: (float(v.coordinates["batch"]), float(v.coordinates["context"])) for v in values}
    return max(at, key=lambda name: at[name], default="")


def _ratio(values: dict[str, float], base: dict[str, float], key: str) -> float:
    return values[key] / base[key] if key in values and base.get(key) else math.nan


def _mean(frame: pd.DataFrame, column: str) -> float:
    return float(frame[column].mean()) if column in frame and len(frame) else math.nan
