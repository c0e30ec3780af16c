"""Comparison of a table's variants with its baseline: paired differences, verdicts, costs."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from llama_ablate.evidence.pairing import measure_pairing
from llama_ablate.evidence.rates import share
from llama_ablate.evidence.verdicts import COUNTS, count_ended, judge, seeds_to_decide
from llama_ablate.evidence.written import decimals
from llama_ablate.findings import tuning
from llama_ablate.findings.columns import index_rows, iterate, list_means, make_frame
from llama_ablate.findings.compare import NOT_COMPARED, find_losses
from llama_ablate.findings.others import compare_others
from llama_ablate.findings.outcomes import UNSTABLE, count_outcomes
from llama_ablate.findings.speeds import find_peak, measure_speeds
from llama_ablate.findings.stages import find_differences, find_reported, find_runs
from llama_ablate.findings.table import Table, once
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import PlannedVariant

#: Columns of a difference that the comparison takes over.
_INTERVAL = ("low", "high", "alpha", "df", "seed_se", "pooled")


@once
def compare_variants(table: Table) -> pd.DataFrame:
    """Return a row for each variant: quality, paired difference, size, speed and memory.

    A variant is `pending` until the runs for its next look (interim analysis) have ended. Missing
    measurements are NaN. A variant without an `ok` run has a row too.
    """
    runs, reported = find_runs(table), find_reported(table)
    differences = index_rows(find_differences(table))
    outcomes = _list_values(runs, "outcome")
    ends, seeds = (_list_values(reported, column) for column in ("ended", "seed"))
    points = reported.drop_duplicates("variant").set_index("variant")["point"].to_dict()
    rows = [
        {
            "label": variant.label,
            "baseline": variant.baseline,
            "role": variant.role,
            "point": points.get(variant.id, ""),
            "outcome": count_outcomes(ends.get(variant.id, ())),
            **_describe_losses(table, variant, differences.get(variant.id), ends, seeds),
            **_judge(table, variant, differences.get(variant.id), outcomes),
            "finished": sum(word in FINAL for word in outcomes.get(variant.id, ())),
            **{word: outcomes.get(variant.id, []).count(word) for word in UNSTABLE},
            **_describe_size(table, variant),
            "rate": tuning.one_rate(table.plan, table.experiment, variant, table.plan.baseline),
        }
        for variant in table.plan.variants
    ]
    ids = [variant.id for variant in table.plan.variants]
    frame = pd.DataFrame(rows, index=ids).join(_find_speeds(table)).join(_average(reported, table))
    guards = _list_broken_guards(table)
    frame = frame.assign(guard=[guards.get(label, "") for label in frame["label"]])
    return make_frame(_add_decimals(frame).assign(unit=table.unit.name), "comparison")


def _list_values(runs: pd.DataFrame, column: str) -> dict[str, list[Any]]:
    """Return the values of a column of runs by variant id."""
    words: dict[str, list[str]] = {}
    for variant, word in zip(runs["variant"], runs[column], strict=True):
        words.setdefault(variant, []).append(word)
    return words


def _describe_losses(
    table: Table,
    variant: PlannedVariant,
    found: Mapping[str, Any] | None,
    ends: Mapping[str, list[str]],
    seeds: Mapping[str, list[int]],
) -> dict[str, Any]:
    """Return the mean loss of a variant's reported runs, its spread, and its lost runs."""
    losses, base = (find_losses(table).get(id_, {}) for id_ in (variant.id, table.base))
    values = np.array([losses[seed] for seed in seeds.get(variant.id, ()) if seed in losses], float)
    shared = [seed for seed in losses if seed in base]
    pairing = measure_pairing([losses[s] for s in shared], [base[s] for s in shared])
    counts = count_ended(ends.get(variant.id, ()))
    if found:
        counts = {name: int(found[f"own_{name}"]) for name in COUNTS}
    low, high = share(counts["lost"], counts["runs"])
    return {
        "n": int(found["n"]) if found else len(values),
        "loss": values.mean() if len(values) else math.nan,
        "sd": values.std(ddof=1) if len(values) > 1 else math.nan,
        "correlation": pairing[0] if found else math.nan,
        "pairing_saves": pairing[1] if found else math.nan,
        "ended": counts["runs"],
        "too_short": counts["too_short"],
        "lost": counts["lost"],
        "lost_low": low,
        "lost_high": high,
    }


def _judge(
    table: Table,
    variant: PlannedVariant,
    found: Mapping[str, Any] | None,
    outcomes: Mapping[str, list[str]],
) -> dict[str, Any]:
    """Return a variant's difference with its interval, and its verdict.

    The seeds needed are known only for rows without lost runs.
    """
    row, looks = found or NOT_COMPARED, len(table.experiment.looks)
    word = "baseline"
    if found:
        words = (outcomes.get(id_, []) for id_ in (variant.id, table.base))
        word = _name_verdict(table, found, *map(set, words))
    is_open = word == "inconclusive" and not row["own_lost"] + row["other_lost"]
    return {
        "difference": row["mean"] if found else 0.0,
        **{name: row[name] for name in _INTERVAL},
        "text_se": row["text_se"] if found else math.nan,
        "verdict": word,
        "not_worse": bool(table.allowed and found and _is_not_worse(word, row, table.allowed)),
        "seeds_low": seeds_to_decide(row, table.equivalence) if is_open else math.nan,
        "look": row["look"] + 1.0 if found else math.nan,
        "looks": looks,
    }


def _is_not_worse(word: str, row: Mapping[str, Any], allowed: float) -> bool:
    """Return whether a variant without lost runs is surely worse by less than `allowed`."""
    is_compared = word in ("better", "worse", "equivalent", "equal", "inconclusive")
    return is_compared and not row["own_lost"] and bool(row["high"] < allowed)


def _name_verdict(table: Table, row: Mapping[str, Any], own: set[str], of_base: set[str]) -> str:
    """Return a variant's verdict, or `failed` or `pending` without a pair of finished runs.

    `row` is the variant's difference at its last look. `own` and `of_base` are the outcomes of all
    runs of the variant and of the baseline.
    """
    word, paired = judge(row, table.equivalence), row["n"]
    if word in UNSTABLE and not row["is_open"]:
        return word
    if not paired and own - {*FINAL, "pending"}:
        return "failed"
    if row["is_open"] or (not paired and (own | of_base) - {*FINAL}):
        return "pending"
    # Without a pair and without lost runs, no loss was measured.
    is_measured = paired or row["own_lost"] + row["other_lost"]
    return "no verdict" if word == "inconclusive" and not is_measured else word


def _describe_size(table: Table, variant: PlannedVariant) -> dict[str, Any]:
    """Return the parameters, FLOPs and state bytes of a variant."""
    contexts = table.experiment.state_contexts
    asked_context = contexts[1] if len(contexts) > 1 else None
    counts = {name: getattr(variant, name) for name in ("flops_per_token", "kv_bytes_per_token")}
    counts |= {"state_bytes": variant.state_bytes}
    counts |= {"asked_state_bytes": variant.state_growth.get(asked_context or 0)}
    return {
        "parameters": variant.parameters,
        "active_parameters": variant.active,
        "non_embedding": variant.non_embedding,
        "residual": variant.residual,
        "solved": variant.solved,
        **{name: math.nan if count is None else float(count) for name, count in counts.items()},
        "context": contexts[0],
        "asked_context": asked_context,
        "epochs": table.plan.passes(variant) if has_mixtures(table) else None,
    }


@once
def has_mixtures(table: Table) -> bool:
    """Return whether any variant trains on a mixture of sources."""
    return any(variant.mixture for variant in table.plan.variants)


def _find_speeds(table: Table) -> pd.DataFrame:
    """Return the speeds of variants by id; of a union, each from its own experiment."""
    if table.parts:
        every = pd.concat([_find_speeds(part) for part in table.parts])
        return every[~every.index.duplicated()]
    speeds = measure_speeds(table)
    # Runs share their devices; paired speeds are measured on a single device.
    ranks = table.experiment.parallel.data
    devices = speeds["train_speed_turns"].eq(0) * (ranks - 1) + 1
    flops = pd.Series({variant.id: variant.flops for variant in table.plan.variants})
    mfu = speeds["train_tokens_per_s"] * flops / (find_peak(table.machines) * devices)
    return speeds.assign(mfu=mfu)


def _average(reported: pd.DataFrame, table: Table) -> pd.DataFrame:
    """Return the mean numbers of reported runs that ended `ok`, by variant id.

    If runs have the number `SPLIT_NAME` of the reported split, this number is averaged, otherwise
    the number `NAME`.
    """
    ok, means = reported[reported["outcome"].eq("ok")], {}
    for name in list_means("comparison"):
        split_name = f"{table.split}_{name}"
        chosen = split_name if split_name in ok else name
        if chosen in ok:
            means[name] = ok.groupby("variant")[chosen].mean()
    return pd.DataFrame(means)


def _list_broken_guards(table: Table) -> dict[str, str]:
    """Describe the guards that each variant breaks, as in `worse in test_accuracy`, by label."""
    rows = compare_others(table)
    broken: dict[str, list[str]] = {}
    for row in iterate(rows[rows["result"].eq("worse")]):
        broken.setdefault(row.label, []).append(row.measure)
    return {label: f"worse in {', '.join(measures)}" for label, measures in broken.items()}


def _add_decimals(frame: pd.DataFrame) -> pd.DataFrame:
    """Add the number of decimals of all losses, as the narrowest interval justifies."""
    bounded = frame[frame["high"] > frame["low"]]
    digits = [decimals(*ends) for ends in zip(bounded["low"], bounded["high"], strict=True)]
    return frame.assign(places=max(digits, default=decimals(math.nan, math.nan)))
