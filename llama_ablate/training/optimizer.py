"""AdamW with weight decay on matrices only, and learning-rate schedules."""

import math

import torch
from torch import nn

from llama_ablate.config.experiment import Train
from llama_ablate.model.linear import decayed


def make_optimizer(model: nn.Module, train: Train) -> torch.optim.Optimizer:
    """Return fused AdamW (Loshchilov & Hutter 2017, arXiv:1711.05101).

    Weight decay applies to what `decayed` says: matrices, not gains and biases.
    """
    parameters, decays = dict(model.named_parameters()), decayed(model)
    groups = [
        {
            "params": [p for n, p in parameters.items() if decays[n]],
            "weight_decay": train.weight_decay,
        },
        {"params": [p for n, p in parameters.items() if not decays[n]], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.lr,
        betas=train.betas,
        eps=train.eps,
        fused=True,
    )


def learning_rate(train: Train, step: int, steps: int) -> float:
    """Return the learning rate of a step (from 0): linear warm-up, then the decay of `schedule`.

    `cosine` and `linear` fall to `min_lr` of the peak; `wsd` holds the peak and falls linearly
    over the last `decay` of the steps (warm-up, stable, decay: Hu et al. 2024,
    arXiv:2404.06395), so that runs of different lengths share all but their ends.
    """
    warm = round(train.warmup * steps)
    if step < warm:
        return train.lr * (step + 1) / (warm + 1)
    start = steps - cooldown(train, steps) if train.schedule == "wsd" else warm
    done = max(0.0, (step - start) / max(1, steps - start))
    fallen = (1 - math.cos(math.pi * done)) / 2 if train.schedule == "cosine" else done
    return train.lr * (1 - (1 - train.min_lr) * fallen)


def cooldown(train: Train, steps: int) -> int:
    """Return the number of steps that a `wsd` schedule decays over, outside of the warm-up."""
    return min(max(1, round(train.decay * steps)), steps - round(train.warmup * steps))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
