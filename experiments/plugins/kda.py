"""Kimi delta attention: a delta rule whose state forgets each of its rows at a rate of its own.

Kimi Team 2025, arXiv:2510.26692: S_t = (I - b k k^T) diag(a_t) S_{t-1} + b k v^T, read by q. This
is its recurrent form, token by token: exact, and slow to train with; without short convolutions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.model.context import Context
from llama_ablate.model.linear import Linear, OutLinear, weights
from llama_ablate.model.mixers.attention import ATTENTIONS
from llama_ablate.model.state import RecurrentState


@ATTENTIONS.register("kda")
class KimiDelta(nn.Module):
    """Correct a matrix that forgets channel by channel (Kimi Linear 2025, arXiv:2510.26692)."""

    rotated = 0  # positions are in the order of the tokens

    def __init__(self, dim: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.width = heads, head_dim
        self.q, self.k, self.v, self.decay, self.gate = (
            Linear(dim, heads * head_dim, bias=False) for _ in range(5)
        )
        self.write = Linear(dim, heads, bias=False)
        self.norm, self.out = nn.RMSNorm(head_dim), OutLinear(heads * head_dim, dim, bias=False)

    def forward(self, x_BTD: Tensor, ctx: Context, state: RecurrentState | None = None) -> Tensor:
        """Return what is read from the matrices, (B, T, D)."""
        names = (self.q, self.k, self.v, self.decay, self.gate)
        q, k, v, decay, gate = (
            part(x_BTD).unflatten(-1, (self.heads, -1)).float() for part in names
        )
        q, k, log_a = F.normalize(q, dim=-1), F.normalize(k, dim=-1), F.logsigmoid(decay)
        write_BTH1 = self.write(x_BTD).float().sigmoid().unsqueeze(-1)
        if ctx.valid_BT is not None:  # padding leaves the matrix as it is
            valid_BT11 = ctx.valid_BT[..., None, None]
            log_a, write_BTH1 = log_a * valid_BT11, write_BTH1 * valid_BT11
        S_BHEP = state["matrix"] if state else q.new_zeros(len(q), self.heads, *[self.width] * 2)
        read = []
        with torch.autocast(x_BTD.device.type, enabled=False):
            for t in range(x_BTD.shape[1]):
                S_BHEP = S_BHEP * log_a[:, t].exp().unsqueeze(-1)
                if ctx.begins_BT is not None:  # the first token of a document finds it empty
                    S_BHEP = S_BHEP.masked_fill(ctx.begins_BT[:, t, None, None, None], 0.0)
                known_BHP = (k[:, t].unsqueeze(-2) @ S_BHEP).squeeze(-2)
                new_BHP = write_BTH1[:, t] * (v[:, t] - known_BHP)
                S_BHEP = S_BHEP + k[:, t].unsqueeze(-1) * new_BHP.unsqueeze(-2)
                read.append((q[:, t].unsqueeze(-2) @ S_BHEP).squeeze(-2))
        if state:
            state.advance(x_BTD.shape[1], matrix=S_BHEP)
        mixed_BTHP = self.norm(torch.stack(read, 1).to(x_BTD.dtype)) * gate.sigmoid()
        return self.out(mixed_BTHP.flatten(2).to(x_BTD.dtype))

    def new_state(
        self, batch: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> RecurrentState:
        """Return an empty matrix for each head, in float32."""
        del capacity, dtype
        shape = batch, self.heads, self.width, self.width
        return RecurrentState({"matrix": torch.zeros(shape, dtype=torch.float32, device=device)})

    def flops(self, context: int) -> int:
        """Compute the FLOPs per token: the projections, and two products with the matrices."""
        del context
        return 2 * (weights(self) + 2 * self.heads * self.width**2)
