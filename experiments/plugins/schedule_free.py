"""Schedule-free AdamW: gradients at a mean of steps and average, losses at the average.

Defazio et al. 2024, arXiv:2405.15682. It takes `schedule: constant` with a warm-up.
"""

from collections.abc import Callable, Sequence

import torch

from llama_ablate.training.optimizers import OPTIMIZERS, Optimizer, Weight, groups, moments


@OPTIMIZERS.register("schedule_free")
def schedule_free(
    weights: Sequence[Weight],
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
) -> Optimizer:
    """Schedule-free AdamW (Defazio et al. 2024, arXiv:2405.15682)."""
    of_all = groups(weights, weight_decay, state=moments(2), eps=eps)
    return ScheduleFree(of_all, {"lr": lr, "betas": betas, "steps": 0, "weight_sum": 0.0})


class ScheduleFree(torch.optim.Optimizer):
    """The parameters are y, where gradients are taken; the state has z, and x is computed."""

    @torch.no_grad()
    def step(self) -> None:
        """Step z, and move the average x towards it by its share of the squared rates."""
        for group in self.param_groups:
            rate, (beta1, beta2) = group["lr"], group["betas"]
            group["steps"] += 1
            group["weight_sum"] += rate**2
            share = rate**2 / group["weight_sum"] if rate else 0.0
            for y in (p for p in group["params"] if p.grad is not None):
                state = self.state[y]
                if not state:
                    state["z"], state["square"] = y.clone(), torch.zeros_like(y)
                square = state["square"].mul_(beta2).addcmul_(y.grad, y.grad, value=1 - beta2)
                root = (square / (1 - beta2 ** group["steps"])).sqrt_().add_(group["eps"])
                move = y.grad / root + group["weight_decay"] * y
                y.lerp_(state["z"], share).add_(move, alpha=rate * (beta1 * (1 - share) - 1))
                state["z"].sub_(move, alpha=rate)

    def eval(self) -> None:
        """Switch the parameters to the average x."""
        self._switch(lambda beta1: 1 - 1 / beta1)

    def train(self) -> None:
        """Switch the parameters back to y."""
        self._switch(lambda beta1: 1 - beta1)

    @torch.no_grad()
    def _switch(self, share: Callable[[float], float]) -> None:
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p in self.state):
                parameter.lerp_(self.state[parameter]["z"], share(group["betas"][0]))
