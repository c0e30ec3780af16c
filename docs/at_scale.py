"""What a hundred runs of larger models cost: from measured figures and stated assumptions.

The tables of results/reference/at-scale.md; tests/test_at_scale.py repeats them by hand.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llama_ablate.config.experiment import Model
from llama_ablate.design.specs import resolve
from llama_ablate.model.counts import count
from llama_ablate.model.decoder import REGISTRIES, spec_from
from llama_ablate.results import Results

RUNS = 100
TOKENS_PER_PARAMETER = 20
#: Dense bfloat16 products of an H100 SXM, as its data sheet says.
PEAK_FLOPS_PER_S = 989e12
#: An assumption, not measured here: what large runs report (Llama 3 2024, arXiv:2407.21783, 38 to
#: 43% of models of 405B parameters).
ASSUMED_MFU = 0.40
#: From start to report, and how many runs at a time: results/reference/gpu.md.
GRID_S, GRID_WORKERS = 345, 4
#: Bytes of a parameter: weight, gradient and AdamW's two moments, in float32.
STATE_BYTES = 16

MODELS = {
    "125M": {"dim": 768, "layers": 12, "heads": 12, "context": 1024, "vocab": 50_304, "tie": True},
    "1B": {"dim": 2048, "layers": 18, "heads": 32, "context": 2048, "vocab": 50_304, "tie": True},
}


@dataclass(frozen=True)
class Measured:
    """What the grid of ten million parameters reached on one H100."""

    #: Of training alone, all workers of the device together.
    flops_per_s: float
    #: Of one run: starting, evaluating, measuring and committing; its share of the whole grid.
    beside_s: float

    @classmethod
    def of(cls, pack: Path) -> "Measured":
        """Return what the records of a pack say."""
        records = [run.record() for run in Results.open(pack).finished.values()]
        flops = sum(
            count(spec_from(record.model)).train_flops_per_token * record.tokens_done
            for record in records
        )
        training_s = sum(record.train_s for record in records) / GRID_WORKERS
        beside_s = (GRID_S - training_s) * GRID_WORKERS / len(records)
        return cls(flops / training_s, beside_s)


@dataclass(frozen=True)
class Cost:
    """A hundred runs of a model, at a rate of one GPU."""

    parameters: int
    tokens: int
    #: Of one run.
    flops: float
    flops_per_s: float
    beside_s: float

    @property
    def run_s(self) -> float:
        """Seconds of one run that has a GPU to itself."""
        return self.flops / self.flops_per_s + self.beside_s

    @property
    def gpu_hours(self) -> float:
        """GPU hours of all runs."""
        return RUNS * self.run_s / 3600

    def days(self, gpus: int) -> float:
        """Return the days until all are done with a run on each GPU, the last round not full."""
        return math.ceil(RUNS / gpus) * self.run_s / 86_400


def costs(flops_per_s: float, beside_s: float) -> Iterator[tuple[str, Cost]]:
    """Yield each model's cost at a rate."""
    for name, sizes in MODELS.items():
        counts = count(resolve(Model.check(sizes), REGISTRIES))
        tokens = TOKENS_PER_PARAMETER * counts.parameters
        flops = float(counts.train_flops_per_token) * tokens
        yield name, Cost(counts.parameters, tokens, flops, flops_per_s, beside_s)


def parts(reference: Path) -> dict[str, str]:
    """Return the generated parts of the page."""
    measured = Measured.of(reference / "gpu-10m")
    rates = {
        f"measured at 10.8M, {measured.flops_per_s / 1e12:.0f}": measured.flops_per_s,
        f"assumed, {ASSUMED_MFU * PEAK_FLOPS_PER_S / 1e12:.0f}": ASSUMED_MFU * PEAK_FLOPS_PER_S,
    }
    time = [
        "| model | TFLOP/s of a GPU | one run | 100 runs | on 1 GPU | on 8 GPUs | on 32 GPUs |",
        "|---|---|---|---|---|---|---|",
    ]
    for rate, flops_per_s in rates.items():
        for name, cost in costs(flops_per_s, measured.beside_s):
            days = (f"{cost.days(gpus):,.1f} days" for gpus in (1, 8, 32))
            time.append(
                f"| {name} | {rate} | {cost.run_s / 3600:,.1f} h | {cost.gpu_hours:,.0f} GPU hours "
                f"| {' | '.join(days)} |"
            )
    space = [
        "| model | parameters | tokens a run | FLOPs a run | weights, gradients, AdamW "
        "| a checkpoint | weights of 100 runs |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, cost in costs(measured.flops_per_s, measured.beside_s):
        space.append(
            f"| {name} | {cost.parameters:,} | {cost.tokens / 1e9:,.1f}B | {cost.flops:.2g} | "
            f"{STATE_BYTES * cost.parameters / 1e9:.1f} GB | {12 * cost.parameters / 1e9:.1f} GB | "
            f"{4 * RUNS * cost.parameters / 1e9:,.0f} GB |"
        )
    beside = f"{measured.beside_s:.0f} s"
    mfu = f"{measured.flops_per_s / PEAK_FLOPS_PER_S:.0%}"
    said = (
        f"Measured: {measured.flops_per_s / 1e12:.0f} TFLOP/s ({mfu} of the data sheet's "
        f"{PEAK_FLOPS_PER_S / 1e12:.0f}) while training, four runs on the device together; beside "
        f"its training a run took {beside}.\n"
    )
    return {
        "time": "\n".join(time) + "\n",
        "space": "\n".join(space) + "\n",
        "measured": said,
    }
