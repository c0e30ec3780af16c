"""NorMuon, an optimizer: Muon whose rows are brought to one size by a second moment of each."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from llama_ablate.config.schema import Decay
from llama_ablate.training.optimizers import (
    OPTIMIZERS,
    LazyOptimizer,
    Optimizer,
    Weight,
    groups,
    moments,
)

_QUINTIC = 3.4445, -4.7750, 2.0315  # Muon's step of Newton and Schulz (Jordan et al. 2024)


@OPTIMIZERS.register("normuon")
def normuon(
    weights: Sequence[Weight],
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    *,
    momentum: Decay = 0.95,
    beta2: Decay = 0.95,
    ns_steps: Annotated[int, Field(ge=1, le=99)] = 5,
) -> Optimizer:
    """NorMuon for the matrices of the blocks, AdamW for all else (Li et al. 2025, 2510.05491).

    A matrix's orthogonalized momentum is divided by the root of a running mean of the squares of
    each row, and scaled to a root mean square of 0.2, so that AdamW's `lr` fits (the paper's rule).
    It keeps the momentum and a number for each row. The authors' code adds Nesterov's look-ahead,
    and scales by the shape of the matrix: its steps are 0.9 to 1.8 times as long.
    """
    hidden = groups(
        [weight for weight in weights if weight.hidden],
        weight_decay,
        state=lambda shape: [shape, (shape[0], 1)],
        update="rms",
    )
    rest = groups(
        [weight for weight in weights if not weight.hidden],
        weight_decay,
        state=moments(2),
        eps=eps,
    )
    own = {"lr": lr, "momentum": momentum, "beta2": beta2, "ns_steps": ns_steps}
    return LazyOptimizer(
        (partial(NorMuon, defaults=own), hidden),
        (partial(torch.optim.AdamW, lr=lr, betas=betas, fused=True), rest),
    )


class NorMuon(torch.optim.Optimizer):
    """Algorithm 1 of Li et al. 2025 (arXiv:2510.05491), for matrices."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure: nothing here has one
        """Move each matrix by the rate, along its normalised and orthogonalized momentum."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                    state["squares"] = torch.zeros_like(parameter[:, :1])
                state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                step = orthogonalized(state["momentum"], group["ns_steps"])
                state["squares"].lerp_(step.square().mean(1, keepdim=True), 1 - group["beta2"])
                step = step / (state["squares"].sqrt() + 1e-10)
                step *= 0.2 / step.square().mean().sqrt().clamp(min=1e-10)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(group["lr"] * step)


def orthogonalized(matrix: Tensor, steps: int) -> Tensor:
    """Return a matrix of the same singular vectors, whose singular values are nearly 1."""
    a, b, c = _QUINTIC
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x: Tensor = wide / wide.norm().clamp(min=1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if wide is not matrix else x
