"""Forecast of a plan: training FLOPs, predicted time, memory and disk space."""

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch
from torch import nn

from llama_ablate.config.experiment import Experiment, Train
from llama_ablate.config.spec import ModelSpec
from llama_ablate.design.runs import by_loss, count_optimizer_bytes, scaled_rate
from llama_ablate.errors import ConfigError
from llama_ablate.measure import METRICS
from llama_ablate.measure.speed import turn_flops
from llama_ablate.measure.turns import MAX_PAIRED_S, PROCESSES, ROUNDS, is_paired
from llama_ablate.model.counts import build_meta_model, count
from llama_ablate.model.mixers.attention import Attention
from llama_ablate.model.mixture import MixtureOfExperts
from llama_ablate.results.plan_document import PlanDocument, PlannedRun, PlannedTable, PlannedText
from llama_ablate.results.record import CURVE_TOKENS, ComputeSettings, Memory
from llama_ablate.training.evaluation import BATCH_TOKENS
from llama_ablate.training.schedules import cooldown
from llama_ablate.training.token_losses import LOGITS, split_evenly

_BYTES = 4  # per parameter: weights are stored in float32
#: Seconds to start a process that measures, and for a turn of a small model.
_PROCESS_S, _TURN_S = 4.0, 0.2
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


@dataclass(frozen=True)
class Cost:
    """Number of runs, with their training FLOPs and predicted seconds."""

    runs: int
    #: NaN if a component does not count its FLOPs.
    training_flops: float
    #: Seconds in which all workers together train, and evaluate held-out text for curves and
    #: metrics.
    training_s: float
    evaluation_s: float
    #: Seconds in which one process measures the timed metrics of all variants in turn.
    measuring_s: float
    predicted_s: float
    #: Seconds in which one worker alone does all runs.
    worker_s: float


@dataclass(frozen=True)
class Forecast:
    """Forecast of the compute, time, memory and disk space of a plan.

    The time is computed from the measured speed of a probe, which is a training step of one layer.
    It includes evaluation: the points of the learning curve, and the metrics of each run on
    held-out text. Real runs also start and save, so the predicted time is only an order of
    magnitude.
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
            "name": self.plan.experiment.name,
            "question": self.plan.experiment.question,
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
    flops: dict[str, float] = {}
    #: FLOPs that predict the time, of training and of reading held-out text.
    work: dict[str, float] = {}
    reading: dict[str, float] = {}
    slower = _float32_times(compute)
    is_cut = train.accumulate > 1 or plan.experiment.parallel.data > 1
    for table in plan.tables:
        variants = {variant.id: variant for variant in table.variants}
        read = {v.id: sum(held_out_tokens(plan, table.text_of(v)).values()) for v in table.variants}
        for run in table.runs:
            variant, batch = variants[run.variant], run.train.get("batch", train.batch)
            steps = run.steps + _branch_steps(train, run)
            tokens = steps * batch * variant.model["context"]
            # Balancing experts over the whole step needs another forward pass, a third of a step.
            passes = 4 / 3 if is_cut and by_loss(variant.spec) else 1.0
            flops[run.id] = passes * variant.flops * tokens
            work[run.id] = passes * variant.work * tokens
            reading[run.id] = slower * variant.work / 3 * read[variant.id]

    measuring_s = measuring_seconds(plan, compute.flops_per_s)

    def cost(runs: Collection[str]) -> Cost:
        at_once = max(1, min(workers, len(runs)))
        per_s = compute.flops_per_s * at_once
        training_s, evaluation_s = (sum(of[run] for run in runs) / per_s for of in (work, reading))
        predicted_s = training_s + evaluation_s + measuring_s
        total_flops = sum(flops[run] for run in runs)
        worker_s = (training_s + evaluation_s) * at_once
        return Cost(
            len(runs), total_flops, training_s, evaluation_s, measuring_s, predicted_s, worker_s
        )

    least, most = map(cost, plan.run_bounds)
    return Forecast(plan, compute, workers, least, most, disk_bytes(plan, workers), memory)


def measuring_seconds(plan: PlanDocument, flops_per_s: float) -> float:
    """Estimate how long it takes to measure the timed metrics, in seconds, at a training speed.

    In a turn, a process times one variant. No further turn begins after `MAX_PAIRED_S` seconds.
    """
    seconds = 0.0
    for choice in map(METRICS.resolve, plan.experiment.measure):
        work = sum(turn_flops(choice, v.spec, plan.train_of(v, table)) for v, table in plan.arms)
        process_s = _PROCESS_S + ROUNDS * (len(plan.arms) * _TURN_S + work / flops_per_s)
        if is_paired(choice):
            seconds += PROCESSES * process_s
        elif choice.name == "decode_speed":
            seconds += process_s
    return min(seconds, MAX_PAIRED_S)


def held_out_tokens(plan: PlanDocument, text: PlannedText) -> dict[str, int]:
    """Count the held-out tokens that a run reads, by the key of the file that decides them."""
    *_, last = heldout = [n for name, n in text.tokens.items() if name != "train"]
    modes = max(1, len(plan.experiment.evaluation.documents))
    names = [e if isinstance(e, str) else e["name"] for e in plan.experiment.measure]
    reads = {"perplexity": sum(heldout), "excess_loss": sum(heldout), "calibration": last}
    reads |= {"loss_by_position": last}
    return {
        "train.evals": plan.experiment.train.evals * min(CURVE_TOKENS, heldout[0]),
        "train.branches": len(plan.experiment.train.branches) * sum(heldout),
        "measure and the held-out splits of data.corpus": modes
        * sum(reads.get(name, 0) for name in names),
    }


def _branch_steps(train: Train, run: PlannedRun) -> int:
    """Return the steps of a run's branches, which leave it where their learning rate falls."""
    config = run.train_config(train) if train.branches else train
    return sum(cooldown(config, round(share * run.steps)) for share in config.branches)


def _float32_times(compute: ComputeSettings) -> float:
    """Return the ratio of step times in float32 and in the training precision.

    Evaluation runs in float32. Return 1 if the times were not measured.
    """
    tried = dict(compute.tried_s)
    chosen = tried.get(f"{compute.precision} {compute.kernel}")
    whole_s = tried.get(f"float32 {compute.kernel}")
    return whole_s / chosen if whole_s and chosen else 1.0


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
        weight_bytes = weights[run.variant]
        state = 2 * weight_bytes if run.optimizer_bytes is None else run.optimizer_bytes
        return weight_bytes + state

    largest = sorted(map(checkpoint, runs), reverse=True)[:workers]
    working = 3 * sum(largest) + _RECORD * len(runs)
    return {
        "none": working,
        "best": working + sum(weights[variant] for _table, variant in best),
        "all": working + sum(weights[run.variant] for run in runs),
    }


def _values(table: PlannedTable) -> dict[str, Any]:
    names = {"match", "budget", "steps", "tokens_per_run", "variants"}
    values = table.model_dump(mode="json", include=names)
    return {"table": table.name, "data": table.text.model_dump(mode="json"), **values}


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
    activations = tokens * (
        _activations(spec) * _ACTIVATION_BYTES[compute.device, precision]
        + _dropped_scores(spec) * _SCORE_BYTES
    )
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


def _dropped_scores(spec: ModelSpec) -> int:
    """Count the attention scores per token to which dropout applies; 0 without such dropout."""
    if not spec.dropout.attention:
        return 0
    model, times = build_meta_model(spec)
    return sum(
        layers * spec.heads * min(spec.context, mixer.window or spec.context)
        for layers, block in zip(times.values(), model.blocks, strict=True)
        for mixer in block.modules()
        if isinstance(mixer, Attention)
    )


def largest_memory(plan: PlanDocument, compute: ComputeSettings) -> Memory:
    """Return the largest predicted memory of a run, and the variant that needs it.

    Only three variants of each comparison table are considered: the baseline, the variant with the
    most parameters, and the variant with the most FLOPs.
    """
    estimates = []
    for table in plan.tables:
        most_parameters = max(table.variants, key=lambda v: v.parameters)
        most_work = max(table.variants, key=lambda v: v.work)
        for variant in (table.baseline, most_parameters, most_work):
            changes = {**scaled_rate(plan.experiment, table), **variant.train}
            train = plan.experiment.train.with_changes(changes)
            state = count_optimizer_bytes(plan.experiment, variant, changes)
            estimates.append(
                (estimate_peak_bytes(variant.spec, train, compute, state), variant.label)
            )
    return Memory(*max(estimates))


def check_memory(memory: Memory, device: str) -> str:
    """Return a warning if a run may exceed the device's memory, else "".

    Raises ConfigError if the device lacks even the lower end of the predicted range.
    """
    total = psutil.virtual_memory().total if device == "cpu" else torch.cuda.mem_get_info(device)[1]
    if memory.bytes <= total:
        return ""
    what = f"'{memory.variant}' is predicted to need {memory.bytes / 1e9:,.1f} GB of memory"
    if memory.bytes > WITHIN * total:
        raise ConfigError(f"{what}, and {device} has {total / 1e9:,.1f} GB", ("model",))
    return f"{what} (within a factor of {WITHIN}), and {device} has {total / 1e9:,.1f} GB"
