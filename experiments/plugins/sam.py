"""SAM, sharpness-aware minimisation: AdamW with gradients of the worst weights nearby.

Foret et al. 2020, arXiv:2010.01412. A step computes its gradient twice.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from llama_ablate.training.optimizers import OPTIMIZERS, Closure, Optimizer, Weight, groups, moments


@OPTIMIZERS.register("sam")
def sam(
    weights: Sequence[Weight],
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    *,
    rho: Annotated[float, Field(gt=0, le=1e3)] = 0.05,
) -> Optimizer:
    """AdamW with the gradient at a distance of `rho` uphill (Foret et al. 2020, 2010.01412)."""
    of_all = groups(weights, weight_decay, state=moments(2), eps=eps)
    return SAM(of_all, rho, lr=lr, betas=betas)


class SAM(torch.optim.AdamW):
    """AdamW whose gradients are those of weights moved uphill."""

    needs_closure = True

    def __init__(self, params: Any, rho: float, **options: Any) -> None:
        super().__init__(params, fused=True, **options)
        self.rho = rho

    def step(self, closure: Closure) -> None:
        """Climb to the weights nearby, compute the gradient there, and step from the old ones."""
        every = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in every]).clamp(min=1e-12)
        before = [p.detach().clone() for p in every]
        with torch.no_grad():
            for parameter in every:
                parameter.add_(self.rho / norm * parameter.grad)
        closure()
        with torch.no_grad():
            for parameter, values in zip(every, before, strict=True):
                parameter.copy_(values)
        super().step()
