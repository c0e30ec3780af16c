"""A position scheme of one's own."""

import torch
from llama_ablate.model.positions import POSITIONS, Position
from torch import Tensor, nn


@POSITIONS.register("mine")
class MinePosition(Position):
    """Penalise scores by the logarithm of distance (Chi et al. 2022, KERPLE, arXiv:2205.09921).

    It overrides one hook of `Position`; the others are `embed`, `rotate` and `rotate_values`.
    """

    # Before a '*' sizes that the model supplies, behind it what the experiment file may set.
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.ones(heads))

    def bias(self, pos_T: Tensor, pos_S: Tensor) -> Tensor:
        """Return the bias of the scores of queries T and keys S, (heads, T, S).

        Positions may carry a batch, (B, T): the bias is then (B, heads, T, S).
        """
        distance = (pos_T[..., :, None] - pos_S[..., None, :]).clamp(min=0)
        return -self.strength[:, None, None] * distance.float().log1p().unsqueeze(-3)
