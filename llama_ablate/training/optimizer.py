"""AdamW with decay on matrices only, and a learning rate that warms up and falls as a cosine."""

import math

import torch
from torch import nn

from llama_ablate.experiment import Train


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
    """Return the rate of a step (from 0): linear over the warm-up, then a cosine to `min_lr`."""
    warm = round(train.warmup * steps)
    if step < warm:
        return train.lr * (step + 1) / (warm + 1)
    done = (step - warm) / max(1, steps - warm)
    return train.lr * (train.min_lr + (1 - train.min_lr) * (1 + math.cos(math.pi * done)) / 2)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group the rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate
