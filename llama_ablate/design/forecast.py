"""Forecast of a plan: training FLOPs, predicted time, memory and disk space."""

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch
from torch import nn

from llama_ablate.config.experiment import Experiment, Train
from llama_ablate.config.spec import ModelSpec
from llama_ablate.design.plan import Plan
from llama_ablate.errors import ConfigError
from llama_ablate.measure import METRICS
from llama_ablate.measure.turns import PROCESSES, ROUNDS, is_paired
from llama_ablate.model.counts import build_meta_model, count
from llama_ablate.model.mixture import MixtureOfExperts
from llama_ablate.results.plan_document import PlanDocument, PlannedRun, PlannedTable
from llama_ablate.results.record import CURVE_TOKENS, ComputeSettings, Memory
from llama_ablate.training.evaluation import BATCH_TOKENS
from llama_ablate.training.token_losses import LOGITS, split_evenly

_BYTES = 4  # per parameter: weights are stored in float32
#: Seconds to start a process that measures speeds, and for each of its turns.
_PROCESS_S, _TURN_S = 4.0, 0.5
_RECORD = 32 << 10  # bytes of a record, its curve and metrics, with room to spare
#: Largest ratio between measured peak memory and the closed-form estimate, in either direction, on
#: the benchmark's specs.
WITHIN = 1.5
#: Bytes of a computing process in addition to its tensors.
_PROCESS = {"cpu": 60 << 20, "cuda": 16 << 20}
#: Bytes stored for the backward pass per input or output element of a linear layer.
_ACTIVATION_BYTES = {
    ("cpu", "float32"): 7.0,
    ("cpu", "bfloat16"): 4.5,
    ("cuda", "float32"): 5.0,
    ("cuda", "bfloat16"): 3.2,
}
#: Bytes per attention score if dropout of scores prevents fused attention.
_SCORE_BYTES = 10
#: Bytes for each logit: itself, its softmax and its gradient.
_LOGIT_BYTES = 12
#: Metrics that read held-out text once.
_READING = ("perplexity", "excess_loss", "calibration", "loss_by_position")


@dataclass(frozen=True)
class Cost:
    """Number of runs, with their training FLOPs and predicted seconds."""

    runs: int
    #: NaN if a component does not count its FLOPs.
    training_flops: float
    predicted_s: float


@dataclass(frozen=True)
class Forecast:
    """Forecast of the compute, time, memory and disk space of a plan.

    The time is the FLOPs of training and evaluation, divided by the measured speed of a probe,
    which is a training step of one layer. It is only an order of magnitude.
    """

    plan: PlanDocument
    compute: ComputeSettings
    workers: int
    #: Smallest and largest cost, since earlier results decide which runs of looks and races are
    #: needed.
    least: Cost
    most: Cost
    #: Largest disk space of the runs in bytes, by the choice of kept weights.
    disk_bytes: dict[str, int]
    #: Memory of the largest worker.
    memory: Memory

    def to_dict(self, warnings: Callable[[PlannedTable, Experiment], list[str]]) -> dict[str, Any]:
        """Return the forecast as plain values, for JSON.

        The values of the first comparison table are repeated at the top level. `warnings` is a
        function that returns the limitations of a table's comparison.
        """
        experiment = self.plan.experiment
        tables = [
            _values(table) | {"warnings": warnings(table, experiment)} for table in self.plan.tables
        ]
        first = ("data", "match", "steps", "tokens_per_run", "variants")
        return {
            "name": experiment.name,
            "question": experiment.question,
            **asdict(self.most),
            "least": asdict(self.least),
            "seeds": len(experiment.seed_list),
            "workers": self.workers,
            "disk_bytes": self.disk_bytes,
            "memory": asdict(self.memory),
            "compute": self.compute.to_dict(),
            "tables": tables,
            **{key: tables[0][key] for key in first},
        }


def forecast(
    plan: PlanDocument, compute: ComputeSettings, workers: int, memory: Memory
) -> Forecast:
    """Forecast the cost of a plan at the measured speed of `compute`."""
    train = plan.experiment.train
    names = [e if isinstance(e, str) else e["name"] for e in plan.experiment.measure]
    reads = sum(name in _READING for name in names)
    flops: dict[str, float] = {}
    work: dict[str, float] = {}  # of training and evaluation; predicts the time
    for table in plan.tables:
        variants = {variant.id: variant for variant in table.variants}
        for run in table.runs:
            variant, batch = variants[run.variant], run.train.get("batch", train.batch)
            tokens = run.steps * batch * variant.model["context"]
            text = table.text_of(variant).tokens
            heldout = sum(size for split, size in text.items() if split != "train")
            evaluated = reads * heldout + train.evals * min(CURVE_TOKENS, heldout)
            flops[run.id] = variant.flops * tokens
            work[run.id] = variant.work * (tokens + evaluated / 3)

    def cost(runs: Collection[str]) -> Cost:
        per_s = compute.flops_per_s * max(1, min(workers, len(runs)))
        seconds = sum(work[run] for run in runs) / per_s + measuring_seconds(plan)
        return Cost(len(runs), sum(flops[run] for run in runs), seconds)

    least, most = map(cost, plan.run_bounds)
    return Forecast(plan, compute, workers, least, most, disk_bytes(plan, workers), memory)


def measuring_seconds(plan: PlanDocument) -> float:
    """Estimate how long it takes to measure paired speeds, in seconds."""
    choices = [METRICS.resolve(entry) for entry in plan.experiment.measure]
    paired = sum(is_paired(choice) for choice in choices)
    turns = ROUNDS * len(plan.variant_ids) * paired
    return PROCESSES * (_PROCESS_S + turns * _TURN_S) * bool(paired)


def disk_bytes(plan: PlanDocument, workers: int, done: Collection[str] = ()) -> dict[str, int]:
    """Return the disk space in bytes that unfinished runs need at most.

    The result has a number for each choice of weights to keep: `none`, `best` and `all`. `done` are
    the ids of finished runs. A checkpoint contains weights and the optimizer's state; a run in
    progress has two checkpoints and writes a third.
    """
    weights = {v.id: _BYTES * v.parameters for table in plan.tables for v in table.variants}
    to_come = plan.run_bounds[1].difference(done)
    runs = [run for run in plan.runs.values() if run.id in to_come]
    # With `best`, one run of every variant in every table keeps its weights.
    best = {(t.name, run.variant) for t in plan.tables for run in t.runs if run.id in to_come}

    def checkpoint(run: PlannedRun) -> int:
        kept = weights[run.variant]
        return kept + (2 * kept if run.optimizer_bytes is None else run.optimizer_bytes)

    largest = sorted(map(checkpoint, runs), reverse=True)[:workers]
    working = 3 * sum(largest) + _RECORD * len(runs)
    return {
        "none": working,
        "best": working + sum(weights[variant] for _table, variant in best),
        "all": working + sum(weights[run.variant] for run in runs),
    }


def _values(table: PlannedTable) -> dict[str, Any]:
    values = table.model_dump(mode="json", include={"match", "budget", "steps", "tokens_per_run"})
    variants = [variant.model_dump(mode="json") for variant in table.variants]
    text = table.text.model_dump(mode="json")
    return {"table": table.name, **values, "data": text, "variants": variants}


def estimate_peak_bytes(
    spec: ModelSpec, train: Train, compute: ComputeSettings, optimizer_bytes: int
) -> int:
    """Estimate the peak memory of one process of a run, in bytes.

    It consists of weights, gradients, optimizer state, activations and logits.
    """
    weights = 4 * count(spec).parameters
    resident = 2 * weights + optimizer_bytes
    if train.branches:  # a copy of weights and optimizer state is restored after a branch
        resident += weights + optimizer_bytes
    tokens = train.batch // train.accumulate // compute.ranks * spec.context
    precision = train.precision.replace("auto", compute.precision)
    dropped = spec.layers * spec.heads * spec.context if spec.dropout.attention else 0
    per_token = _activations(spec) * _ACTIVATION_BYTES[compute.device, precision]
    activations = tokens * (per_token + dropped * _SCORE_BYTES)
    at_once = max(tokens, BATCH_TOKENS[compute.device])
    rows = split_evenly(at_once, max(1, LOGITS[compute.device] // spec.vocab))
    logits = rows * spec.vocab * _LOGIT_BYTES
    return round(resident + activations + logits) + _PROCESS[compute.device]


def _activations(spec: ModelSpec) -> float:
    """Count the inputs and outputs of all linear layers in all blocks, per token.

    The linear layers of an expert are weighted by the share of tokens routed to the expert.
    """
    model, times = build_meta_model(spec)
    total = 0.0
    for layers, block in zip(times.values(), model.blocks, strict=True):
        share: dict[nn.Module, float] = {}
        for module in block.modules():
            if isinstance(module, MixtureOfExperts):
                each = module.top_k / len(module.experts)
                share |= dict.fromkeys(module.experts.modules(), each)
            if isinstance(module, nn.Linear):
                numbers = module.in_features + module.out_features
                total += layers * share.get(module, 1.0) * numbers
    return total


def largest_memory(plan: Plan, compute: ComputeSettings) -> Memory:
    """Return the largest predicted memory of a run, and the variant that needs it.

    Only three variants of each comparison table are considered: the baseline, the variant with the
    most parameters, and the variant with the most FLOPs.
    """
    estimates = []
    for table in plan.tables:
        most = max(table.variants, key=lambda v: table.counts[v.id].parameters)
        slowest = max(table.variants, key=lambda v: table.counts[v.id].work)
        for variant in (table.baseline, most, slowest):
            changes = {**table.train, **variant.train}
            train = plan.experiment.train.with_changes(changes)
            state = table.optimizer_bytes(variant, changes)
            estimates.append(
                (estimate_peak_bytes(variant.spec, train, compute, state), variant.label)
            )
    return Memory(*max(estimates))


def check_memory(memory: Memory, device: str) -> str:
    """Return a warning if a run may exceed the device's memory, else "".

    Raises ConfigError if the device lacks even the lower end of the predicted range.
    """
    total = _total_bytes(device)
    if memory.bytes <= total:
        return ""
    what = f"'{memory.variant}' is predicted to need {memory.bytes / 1e9:,.1f} GB of memory"
    if memory.bytes > WITHIN * total:
        raise ConfigError(f"{what}, and {device} has {total / 1e9:,.1f} GB", ("model",))
    return f"{what} (within a factor of {WITHIN}), and {device} has {total / 1e9:,.1f} GB"


def _total_bytes(device: str) -> int:
    if device == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return int(psutil.virtual_memory().total)
