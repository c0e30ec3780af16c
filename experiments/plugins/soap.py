"""SOAP, an optimizer: Adam in the slowly turning eigenbasis of Shampoo's preconditioner."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from llama_ablate.training.optimizers import (
    OPTIMIZERS,
    LazyOptimizer,
    Group,
    Optimizer,
    Shape,
    Weight,
    groups,
    moments,
)


def kept(shape: Shape) -> list[Shape]:
    """Return the shapes that are kept of a matrix: two moments, and two squares of each side."""
    rows, columns = shape
    return [shape, shape, (rows, rows), (columns, columns), (rows, rows), (columns, columns)]


@OPTIMIZERS.register("soap")
def soap(
    weights: Sequence[Weight],
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    *,
    frequency: Annotated[int, Field(ge=1, le=10_000)] = 10,
) -> Optimizer:
    """SOAP for the matrices of the blocks, AdamW for all else (Vyas et al. 2024, 2409.11321).

    Adam's second moment is that of the gradient in the eigenbases of the running means of G G' and
    G' G, which begin at 0. Every `frequency` steps the bases are turned by one step of power
    iteration and a QR, their vectors in the order of falling eigenvalues; the first gradient gives
    the bases to begin with. Moments are corrected for their start as Adam's are. The authors' code
    takes no step at the first gradient; this does.
    """
    hidden = [weight for weight in weights if weight.hidden]
    rest = [weight for weight in weights if not weight.hidden]
    own = {"lr": lr, "betas": betas, "frequency": frequency}
    return LazyOptimizer(
        (partial(SOAP, defaults=own), groups(hidden, weight_decay, state=kept, eps=eps)),
        (
            partial(torch.optim.AdamW, lr=lr, betas=betas, fused=True),
            groups(rest, weight_decay, state=moments(2), eps=eps),
        ),
    )


class SOAP(torch.optim.Optimizer):
    """Algorithm 3 of Vyas et al. 2024 (arXiv:2409.11321), for matrices."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure: nothing here has one
        """Move each matrix by the rate, along Adam's step in the bases of its two sides."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    step = self._step(parameter.grad, self.state[parameter], group)
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.sub_(group["lr"] * step)

    def _step(self, gradient: Tensor, state: Group, group: Group) -> Tensor:
        beta1, beta2 = group["betas"]
        sides = {"left": gradient @ gradient.T, "right": gradient.T @ gradient}
        if not state:
            state |= {"step": torch.zeros(()), "mean": 0 * gradient, "square": 0 * gradient}
            for side, product in sides.items():
                basis = torch.linalg.eigh(product).eigenvectors.flip(1)  # of the largest first
                state |= {side: 0 * product, f"{side}_basis": basis}
        left, right = state["left_basis"], state["right_basis"]
        state["step"] += 1
        state["mean"].lerp_(gradient, 1 - beta1)
        state["square"].lerp_((left.T @ gradient @ right).square(), 1 - beta2)
        mean = left.T @ state["mean"] @ right / (1 - beta1 ** state["step"].item())
        square = state["square"] / (1 - beta2 ** state["step"].item())
        step: Tensor = left @ (mean / (square.sqrt() + group["eps"])) @ right.T
        for axis, (side, product) in enumerate(sides.items()):
            state[side].lerp_(product, 1 - beta2)
            if state["step"].item() % group["frequency"] == 0:
                basis = state[f"{side}_basis"]
                values = (basis * (state[side] @ basis)).sum(0)
                order = values.argsort(descending=True, stable=True)
                state["square"].copy_(state["square"].index_select(axis, order))
                state[f"{side}_basis"] = torch.linalg.qr(state[side] @ basis[:, order]).Q
        return step
