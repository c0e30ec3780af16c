"""Training and decoding speeds of variants, and the devices' peak FLOP/s for MFU."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from llama_ablate.evidence.medians import UNMEASURED, compare_column
from llama_ablate.findings.stages import find_reported
from llama_ablate.findings.table import Table

#: Peak FLOP/s of dense matrix products by device name and precision, from NVIDIA's datasheets.
PEAKS: Mapping[str, Mapping[str, float]] = {
    "NVIDIA H100 PCIe": {"bfloat16": 756e12, "float32": 51e12},
    "NVIDIA H100 80GB HBM3": {"bfloat16": 989e12, "float32": 67e12},
    "NVIDIA H200": {"bfloat16": 989e12, "float32": 67e12},
    "NVIDIA A100-SXM4-40GB": {"bfloat16": 312e12, "float32": 19.5e12},
    "NVIDIA A100-SXM4-80GB": {"bfloat16": 312e12, "float32": 19.5e12},
    "NVIDIA A100-PCIE-40GB": {"bfloat16": 312e12, "float32": 19.5e12},
    "NVIDIA A100 80GB PCIe": {"bfloat16": 312e12, "float32": 19.5e12},
    "NVIDIA L40S": {"bfloat16": 362e12, "float32": 91.6e12},
    "NVIDIA L4": {"bfloat16": 121e12, "float32": 30.3e12},
}


def measure_speeds(table: Table) -> pd.DataFrame:
    """Return training and decoding speeds by variant id, with their ratios to the baseline's.

    The columns begin with `train_` and `decode_`; a ratio's are `train_speed_ratio`,
    `train_speed_low` and so on, as in `UNMEASURED`. Decoding is timed with the KV cache; the result
    is for the largest batch and the longest context at which the baseline was measured.
    """
    variant_values = table.measured[table.measured["run"].eq("")]
    train = variant_values[variant_values["name"].eq("train_tokens_per_s")]
    speeds = {
        "train": _find_ratios(table, train) if len(train) else _find_run_speeds(table),
        "decode": _find_ratios(table, _select_decoding(table, variant_values)),
    }
    return pd.DataFrame(
        [
            {
                key: value
                for kind, of in speeds.items()
                for key, value in _name_columns(kind, of.get(variant.id, {})).items()
            }
            for variant in table.plan.variants
        ],
        index=[variant.id for variant in table.plan.variants],
    )


def _name_columns(kind: str, speed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a variant's speed."""
    ratio = {**UNMEASURED, **speed}
    named = {f"{kind}_speed_{'ratio' if k == 'value' else k}": ratio[k] for k in UNMEASURED}
    return {f"{kind}_tokens_per_s": ratio.get("tokens_per_s", math.nan), **named}


def _select_decoding(table: Table, variant_values: pd.DataFrame) -> pd.DataFrame:
    """Return decoding speeds with the KV cache, at the baseline's largest batch and context."""
    rows = variant_values[variant_values["quantity"].eq("decode_speed")]
    rows = rows[rows["cache"].eq("cached")].dropna(subset=["batch", "context"])
    base = rows[rows["variant"].eq(table.base)].sort_values(["batch", "context"], kind="stable")
    if base.empty:
        return base
    largest = base.iloc[-1]
    return rows[rows["batch"].eq(largest["batch"]) & rows["context"].eq(largest["context"])]


def _find_run_speeds(table: Table) -> dict[str, dict[str, Any]]:
    """Return each variant's median training speed over its runs.

    The ratio to the baseline's speed has no interval, since runs were not timed in pairs.
    """
    plan, runs = table.plan, find_reported(table)
    if "train_s" not in runs:
        return {}
    runs = runs[runs["outcome"].eq("ok") & runs["train_s"].gt(0)]
    train, shared = {run.id: run.train for run in plan.runs}, table.experiment
    context = {v.id: v.model.get("context", shared.model.context) for v in plan.variants}
    step_tokens = [
        train[id_].get("batch", shared.train.batch) * context[variant]
        for id_, variant in zip(runs["id"], runs["variant"], strict=True)
    ]
    tokens = runs["steps_done"].astype(float) * pd.Series(step_tokens, runs.index, dtype=float)
    typical = (tokens / runs["train_s"]).groupby(runs["variant"]).median()
    base = typical.get(table.base, math.nan)
    return {
        variant.id: {
            "tokens_per_s": typical[variant.id],
            "value": plan.text_per_token(variant) * typical[variant.id] / base,
        }
        for variant in plan.variants
        if variant.id in typical.index
    }


def _find_ratios(table: Table, speeds: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Return measured speeds with their ratios to the baseline's speed, by variant id.

    The ratios compare bytes of text per second, since a token of one tokenizer may cover more text.
    """
    turns = dict(zip(speeds["variant"], speeds["turns"], strict=True))
    ratios = compare_column(turns, table.base)
    text = {variant.id: table.plan.text_per_token(variant) for variant in table.plan.variants}
    return {
        variant: {
            **ratios[variant],
            **{key: text[variant] * ratios[variant][key] for key in ("value", "low", "high")},
            "tokens_per_s": value,
        }
        for variant, value in zip(speeds["variant"], speeds["value"], strict=True)
    }


def find_peak(machines: pd.DataFrame) -> float:
    """Return the peak FLOP/s of the runs' common device; NaN if unknown."""
    if machines.empty or "processors" not in machines:
        return math.nan
    devices = machines[["devices", "processors", "precisions"]].drop_duplicates()
    device, processors, precision = devices.iloc[0]
    if len(devices) > 1 or not device.startswith("cuda"):
        return math.nan
    return PEAKS.get(processors.partition(" with ")[2], {}).get(precision, math.nan)
