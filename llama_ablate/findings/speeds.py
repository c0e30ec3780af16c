"""Training and decoding speeds of variants, and the devices' peak FLOP/s for MFU."""

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from statistics import median
from typing import NamedTuple

import pandas as pd

from llama_ablate.evidence.medians import Timing, compare_column
from llama_ablate.evidence.written import describe_ratio
from llama_ablate.findings.paired_table import PairedTable
from llama_ablate.findings.values import MetricRow
from llama_ablate.results.plan_document import PlannedTable

#: Peak FLOP/s of dense matrix products by device and precision, from NVIDIA's datasheets. A key is
#: part of the device's name; a longer key comes before a shorter key with the same beginning.
PEAKS: Mapping[str, Mapping[str, float]] = {
    "H100 PCIe": {"bfloat16": 756e12, "float32": 51e12},
    "H100": {"bfloat16": 989e12, "float32": 67e12},
    "H200": {"bfloat16": 989e12, "float32": 67e12},
    "A100": {"bfloat16": 312e12, "float32": 19.5e12},
    "L40S": {"bfloat16": 362e12, "float32": 91.6e12},
    "L4": {"bfloat16": 121e12, "float32": 30.3e12},
}


class Ratio(NamedTuple):
    """Speed of a variant relative to the baseline, with an interval if timed in pairs."""

    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    #: Number of turns in which both were timed, and number of processes of these turns.
    turns: int = 0
    processes: int = 0
    #: Interquartile range of the turns' ratios divided by their median.
    spread: float = math.nan

    def __str__(self) -> str:
        """Format the ratio with its interval; a star marks an interval without 1."""
        return describe_ratio(self.ratio, self.low, self.high)


#: Tokens per second and ratio to the baseline's speed, by variant id.
Speeds = Mapping[str, tuple[float, Ratio]]
UNMEASURED = (math.nan, Ratio())


def find_speeds(table: PairedTable) -> tuple[Speeds, Speeds]:
    """Return the training speeds and the decoding speeds of variants, by id.

    Variants without a measured speed are left out. Decoding is timed with the KV cache; the result
    is for the largest batch and the longest context at which the baseline was measured.
    """
    plan, variant_metrics = table.plan, table.metrics.variant_rows
    decode = [
        (size, row)
        for row in variant_metrics
        if row.quantity == "decode_speed" and (size := _decoding(row.coordinates))
    ]
    base_decode = (entry for entry in decode if entry[1].variant == plan.baseline.id)
    _, largest = max(base_decode, key=itemgetter(0), default=(None, None))
    at_largest = [row for _, row in decode if largest and row.coordinates == largest.coordinates]
    train = [row for row in variant_metrics if row.name == "train_tokens_per_s"]
    return _with_ratios(train, plan) or _as_run(table), _with_ratios(at_largest, plan)


def _as_run(table: PairedTable) -> Speeds:
    """Return each variant's median training speed over its runs.

    The ratio to the baseline's speed has no interval, since runs were not timed in pairs.
    """
    plan, train = table.plan, {run.id: run.train for run in table.plan.runs}
    batch, context = table.experiment.train.batch, table.experiment.model.context
    contexts = {v.id: v.model.get("context", context) for v in plan.variants}
    tokens_per_s: dict[str, list[float]] = {}
    for run in table.reported:
        seconds = run.number("train_s")
        if run.outcome == "ok" and seconds > 0:
            tokens = run.steps_done * train[run.id].get("batch", batch) * contexts[run.variant]
            tokens_per_s.setdefault(run.variant, []).append(tokens / seconds)
    typical = {id_: median(speeds) for id_, speeds in tokens_per_s.items()}
    base_speed = typical.get(plan.baseline.id, math.nan)
    return {
        variant.id: (speed, Ratio(plan.text_per_token(variant) * speed / base_speed))
        for variant in plan.variants
        if (speed := typical.get(variant.id))
    }


def _decoding(at: Mapping[str, object]) -> tuple[int, int] | None:
    """Return the batch size and context of a decoding speed; None without KV cache."""
    batch, context = at.get("batch"), at.get("context")
    if at.get("cache") == "cached" and isinstance(batch, int) and isinstance(context, int):
        return batch, context
    return None


def _with_ratios(speeds: Sequence[MetricRow], table: PlannedTable) -> Speeds:
    """Return measured speeds with their ratios to the baseline's speed, by variant id.

    The ratios compare bytes of text per second, since a token of one tokenizer may cover more text.
    """
    turns = {row.variant: row.by_process for row in speeds}
    ratios = compare_column(turns, table.baseline.id)
    text = {variant.id: table.text_per_token(variant) for variant in table.variants}
    return {
        row.variant: (row.value, _ratio(ratios[row.variant], text[row.variant])) for row in speeds
    }


def _ratio(found: Timing, text: float) -> Ratio:
    low, high = text * found.low, text * found.high
    return Ratio(text * found.value, low, high, found.turns, found.processes, found.spread)


def find_peak(machines: pd.DataFrame) -> float:
    """Return the peak FLOP/s of the runs' common device; NaN if unknown."""
    if machines.empty or "processors" not in machines:
        return math.nan
    devices = {
        *zip(machines["devices"], machines["processors"], machines["precisions"], strict=True)
    }
    (device, name, precision), *others = devices
    if others or not device.startswith("cuda"):
        return math.nan
    gpu = name.partition(" with ")[2]
    gpu_peaks = next((peaks for name, peaks in PEAKS.items() if name in gpu), {})
    return gpu_peaks.get(precision, math.nan)
