"""Micro-benchmark of optimizers: a full training step with each of them."""

from collections.abc import Sequence

from benchmarks.components.step import steps
from benchmarks.components.timing import Ratio, Setup, Table
from llama_ablate.training.optimizers import OPTIMIZERS

_AGAINST = "adamw"


def tables(setup: Setup) -> list[Table]:
    """Time a training step with every optimizer."""
    swaps = {name: {"optimizer": name} for name in OPTIMIZERS}
    return [steps("training step", swaps, setup, against=_AGAINST)]


def ratios(tables: Sequence[Table]) -> list[Ratio]:
    """Return ratios of training-step times of each optimizer to AdamW."""
    (step,) = tables
    others = [name for name in OPTIMIZERS if name != _AGAINST]
    return [Ratio(f"{name} / {_AGAINST} in a training step", step.ratio(name)) for name in others]
