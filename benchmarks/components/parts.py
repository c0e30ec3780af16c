"""Micro-benchmark of optional parts of attention and residual stream, in a training step."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.components.step import steps
from benchmarks.components.timing import Ratio, Setup, Table
from llama_ablate.config.experiment import load

#: Experiment file whose variants are timed, each with its own sizes, and compared with the first.
EXPERIMENT = Path(__file__).parents[2] / "experiments" / "parts.yaml"


def tables(setup: Setup) -> list[Table]:
    """Time a training step of each variant of the experiment."""
    entries = [dict(entry) for entry in load(EXPERIMENT).experiment.variants.entries]
    swaps = {entry.pop("label"): entry for entry in entries}
    return [steps("training step", swaps, setup, against=next(iter(swaps)))]


def ratios(tables: Sequence[Table]) -> list[Ratio]:
    """Return ratios of training-step times of each variant to the first variant."""
    (step,) = tables
    first, *others = (entry["label"] for entry in load(EXPERIMENT).experiment.variants.entries)
    return [Ratio(f"{name} / {first}, training step", step.ratio(name, first)) for name in others]
