"""Sophia-G: steps along the momentum over a diagonal curvature, clipped element by element.

Liu et al. 2023, arXiv:2305.14342. Every ten steps the curvature is estimated from the gradient of
targets that are drawn from the model's own predictions (Gauss, Newton, Bartlett).
"""

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field

from llama_ablate.training.optimizers import OPTIMIZERS, Closure, Optimizer, Weight, groups, moments


@OPTIMIZERS.register("sophia")
def sophia(
    weights: Sequence[Weight],
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    *,
    rho: Annotated[float, Field(gt=0, le=1e3)] = 0.05,
    every: Annotated[int, Field(ge=1, le=10**6)] = 10,
) -> Optimizer:
    """Sophia-G: momentum over curvature, clipped at 1 (Liu et al. 2023, arXiv:2305.14342)."""
    of_all = groups(weights, weight_decay, state=moments(2))
    return Sophia(of_all, {"lr": lr, "betas": betas, "rho": rho, "every": every, "steps": 0})


class Sophia(torch.optim.Optimizer):
    """Algorithm 3 of the paper, with its estimator of the curvature."""

    needs_closure = True

    @torch.no_grad()
    def step(self, closure: Closure) -> None:
        """Move each number by the rate times its clipped ratio of momentum and curvature."""
        for group, parameter in self._each():
            state = self.state[parameter]
            if not state:
                state["mean"], state["curvature"] = (torch.zeros_like(parameter) for _ in range(2))
            state["mean"].lerp_(parameter.grad, 1 - group["betas"][0])
        if self.param_groups[0]["steps"] % self.param_groups[0]["every"] == 0:
            closure(sampled=True)
            for group, parameter in self._each():
                square = closure.tokens * parameter.grad.square()
                self.state[parameter]["curvature"].lerp_(square, 1 - group["betas"][1])
        for group, parameter in self._each():
            state, rate = self.state[parameter], group["lr"]
            ratio = state["mean"] / (group["rho"] * state["curvature"] + 1e-15)
            parameter.mul_(1 - rate * group["weight_decay"]).sub_(rate * ratio.clamp(-1, 1))
        for group in self.param_groups:
            group["steps"] += 1

    def _each(self) -> list[tuple[dict[str, Any], torch.Tensor]]:
        return [(g, p) for g in self.param_groups for p in g["params"] if p.grad is not None]
