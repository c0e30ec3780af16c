"""Costs of variants, for the report's answer and cost figure; lower is better."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llama_ablate.config.schema import CostName, Experiment
from llama_ablate.evidence.written import Estimate
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.speeds import Ratio
from llama_ablate.report.picture import Axis, differ

SAME_COST = 0.02  # relative difference up to which two costs count as equal


@dataclass(frozen=True)
class VariantCost:
    """Cost metric: its name in experiment files, figure axis, and function for its values."""

    name: CostName
    axis: Axis
    #: Noun phrase that follows a share, such as "the FLOPs" in "needs 1/4 of the FLOPs".
    words: str
    read: Callable[[ComparisonRow], Estimate]

    def differs(self, rows: Sequence[ComparisonRow]) -> bool:
        """Return whether the cost differs between rows by more than 2% of the largest."""
        return differ([self.read(row).value for row in rows], SAME_COST)


def list_costs(row: ComparisonRow) -> list[VariantCost]:
    """List the cost metrics of a comparison table in order of importance.

    `row` is any row of the table: it gives the contexts at which state bytes are counted.
    """

    def count(
        name: CostName, field: str, title: str, words: str, form: str = "count"
    ) -> VariantCost:
        axis = Axis(title, form, whole=form == "bytes")
        return VariantCost(name, axis, words, lambda row: Estimate(getattr(row, field)))

    def state(context: int, field: str) -> VariantCost:
        title = f"state of one sequence of {context:,} tokens"
        return count("kv_cache", field, title, f"the state bytes at {context:,} tokens", "bytes")

    further = f"what one token adds to a state of {row.context:,}"
    return [
        VariantCost(
            "train_speed",
            Axis("training time, multiple of the baseline's"),
            "the training time",
            lambda row: _time(row.train_speed),
        ),
        *([state(row.asked_context, "asked_state_bytes")] if row.asked_context else []),
        state(row.context, "state_bytes"),
        VariantCost(
            "decode_speed",
            Axis("decoding time, multiple of the baseline's"),
            "the decoding time",
            lambda row: _time(row.decode_speed),
        ),
        count("parameters", "parameters", "parameters", "the parameters"),
        count("active", "active_parameters", "parameters that a token passes", "those parameters"),
        count("flops", "flops_per_token", "FLOPs of a forward pass per token", "the FLOPs"),
        count("kv_cache", "kv_bytes_per_token", further, "the bytes of a further token", "bytes"),
        count("memory", "peak_memory_bytes", "peak memory in training", "the memory", "bytes"),
    ]


def find_asked_cost(experiment: Experiment, rows: Sequence[ComparisonRow]) -> VariantCost | None:
    """Return the cost that the report's answer weighs against differences in loss.

    The experiment file names this cost as `answer: {cost: NAME}`. Without that key, the cost is the
    KV cache if the file states an equivalence margin and, besides, either `kv_cache` has a context
    or only the attention is varied. Returns None if no cost applies, or if the variants do not
    differ in the cost.
    """
    costs = list_costs(rows[0])
    name = experiment.answer.cost
    is_of_attention = {key.partition(".")[0] for key in experiment.variants.axes} == {"attention"}
    if name is None and experiment.margin and (rows[0].asked_context or is_of_attention):
        name = "kv_cache"
    cost = next((cost for cost in costs if cost.name == name), None)
    return cost if cost and cost.differs(rows) else None


def write_share(share: float) -> str:
    """Format a share of the baseline's cost that is below 1: `1/4`, `0.93`."""
    parts = round(1 / share) if share > 0 else 0
    is_whole = parts > 1 and math.isclose(share * parts, 1, rel_tol=0.01)
    return f"1/{parts}" if is_whole else f"{share:.2g}"


def _time(speed: Ratio) -> Estimate:
    """Convert a ratio of speeds to a ratio of times, with its interval."""
    return Estimate(1 / speed.ratio, 1 / speed.high, 1 / speed.low)
