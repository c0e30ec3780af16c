"""Closed-form memory of a training run, for planning: see benchmarks/memory.py."""

import psutil
import torch
from torch import nn

from llama_ablate.config.experiment import Train
from llama_ablate.config.spec import ModelSpec
from llama_ablate.design.plan import Plan
from llama_ablate.errors import ConfigError
from llama_ablate.model.counts import count, skeleton
from llama_ablate.model.mixers.attention import Attention
from llama_ablate.model.mixture import MixtureOfExperts
from llama_ablate.results.record import ComputeSettings, Memory
from llama_ablate.training.evaluation import BATCH_TOKENS
from llama_ablate.training.token_losses import LOGITS, even_share

#: Largest ratio of measured peak and closed form, in either direction, on the benchmark's specs.
WITHIN = 1.5
#: Bytes of a computing process in addition to its tensors.
_PROCESS = {"cpu": 60 << 20, "cuda": 16 << 20}
#: Bytes stored for the backward pass per input or output number of a linear layer.
_ACTIVATION_BYTES = {
    ("cpu", "float32"): 7.0,
    ("cpu", "bfloat16"): 4.5,
    ("cuda", "float32"): 5.0,
    ("cuda", "bfloat16"): 3.2,
}
#: Bytes per attention score where dropout of scores prevents fused attention.
_SCORE_BYTES = 10
#: Bytes for each logit: itself, its softmax and its gradient.
_LOGIT_BYTES = 12


def estimate_peak_bytes(
    spec: ModelSpec, train: Train, compute: ComputeSettings, optimizer_bytes: int
) -> int:
    """Estimate the peak memory of one process of a run: weights, gradients, state, activations."""
    weights = 4 * count(spec).parameters
    held = 2 * weights + optimizer_bytes
    if train.branches:  # a copy of weights and optimizer state is restored after a branch
        held += weights + optimizer_bytes
    tokens = train.batch // train.accumulate // compute.ranks * spec.context
    precision = train.precision.replace("auto", compute.precision)
    activations = tokens * (
        _activations(spec) * _ACTIVATION_BYTES[compute.device, precision]
        + _dropped_scores(spec) * _SCORE_BYTES
    )
    at_once = max(tokens, BATCH_TOKENS[compute.device])
    rows = even_share(at_once, max(1, LOGITS[compute.device] // spec.vocab))
    logits = rows * spec.vocab * _LOGIT_BYTES
    return round(held + activations + logits) + _PROCESS[compute.device]


def _activations(spec: ModelSpec) -> float:
    """Count the input and output numbers of all blocks' linear layers per token.

    An expert is weighted by the share of tokens routed to it.
    """
    model, times = skeleton(spec)
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
    """Count the attention scores per token under dropout; 0 without dropout of scores."""
    if not spec.dropout.attention:
        return 0
    model, times = skeleton(spec)
    return sum(
        layers * spec.heads * min(spec.context, mixer.window or spec.context)
        for layers, block in zip(times.values(), model.blocks, strict=True)
        for mixer in block.modules()
        if isinstance(mixer, Attention)
    )


def needed(plan: Plan, compute: ComputeSettings) -> Memory:
    """Return the largest predicted memory of a run, over likely candidates.

    These are each table's baseline and its variants with the most parameters and the most FLOPs.
    """
    found = []
    for table in plan.tables:
        counts = table.counts
        likely = {
            table.baseline,
            max(table.variants, key=lambda v: counts[v.id].parameters),
            max(table.variants, key=lambda v: counts[v.id].work),
        }
        for variant in likely:
            changes = {**table.train, **variant.train}
            train = plan.experiment.train.with_changes(changes)
            state = table.optimizer_bytes(variant, changes)
            found.append((estimate_peak_bytes(variant.spec, train, compute, state), variant.label))
    return Memory(*max(found))


def check(memory: Memory, device: str) -> str:
    """Return a warning if a device may lack memory for a run; "" if it suffices.

    Raises ConfigError if the device lacks even the lower end of the closed form's range.
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
