"""A norm of one's own."""

import torch
from llama_ablate.model.norms import NORMS
from torch import Tensor, nn


@NORMS.register("mine")
class MineNorm(nn.Module):
    """Scale each vector to a learned length (Nguyen & Salazar 2019, arXiv:1910.05895)."""

    # Before the '*' sizes that the model supplies, behind it what the experiment file may set.
    def __init__(self, dim: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.length = nn.Parameter(torch.full((1,), dim**0.5))

    def forward(self, x: Tensor) -> Tensor:
        """Return the vectors, (batch, tokens, dim), normalised."""
        return x * (self.length / x.norm(dim=-1, keepdim=True).clamp(min=self.eps))
