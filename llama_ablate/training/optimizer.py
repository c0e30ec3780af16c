"""AdamW with decay on matrices only, and a learning rate that warms up and falls."""

import math

import torch
from torch import nn

from llama_ablate.config.experiment import Train


def make_optimizer(model: nn.Module, train: Train) -> torch.optim.Optimizer:
    """Return fused AdamW (Loshchilov & Hutter 2017, arXiv:1711.05101).

    Weight decay is on matrices; gains and biases are left alone.
    """
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": train.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.lr,
        betas=train.betas,
        eps=train.eps,
        fused=True,
    )


def learning_rate(train: Train, step: int, steps: int) -> float:
    """Return the rate of a step (from 0): linear over the warm-up, then as `schedule` falls.

    `cosine` and `linear` fall from there to `min_lr` of the rate; `wsd` holds it and falls in a
    line over the last `decay` of the steps (warm-up, stable, decay: Hu et al. 2024,
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
    """Return how many of the last steps a `wsd` schedule falls over, never into the warm-up."""
    return min(max(1, round(train.decay * steps)), steps - round(train.warmup * steps))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group the rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
