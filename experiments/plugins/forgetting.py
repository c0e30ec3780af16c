"""Forgetting attention: a bias of the scores that each token's forget gates make.

Lin et al. 2025, arXiv:2503.02130. A head has a gate f in (0, 1) for every token; a score of token i
and an earlier token j is lowered by -(log f_{j+1} + ... + log f_i).
"""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from llama_ablate.model.context import Context
from llama_ablate.model.linear import Linear
from llama_ablate.model.mixers.attention import ATTENTIONS, MHA, MakeNorm
from llama_ablate.model.state import CachedShapes


@ATTENTIONS.register("forgetting")
class Forgetting(MHA):
    """Lower the scores of what each head's gates forget (Lin et al. 2025, arXiv:2503.02130).

    The paper has no position scheme beside it (`position: none`), and `qk_norm` in its "Pro" form.
    """

    def __init__(
        self, dim: int, heads: int, head_dim: int, bias: bool, norm: MakeNorm, **options: Any
    ) -> None:
        super().__init__(dim, heads, head_dim, bias, norm, **options)
        self.forget = Linear(dim, heads)

    @property
    def cached(self) -> CachedShapes:
        """Keys, values, and the logarithm of each head's gate."""
        return {**super().cached, "log_gates": (self.heads, 1)}

    def remember(self, x_BTD: Tensor, ctx: Context) -> Mapping[str, Tensor]:
        """Return the logarithms of the new tokens' gates, (B, H, T, 1)."""
        del ctx
        log_BTH = F.logsigmoid(self.forget(x_BTD).float())
        return {"log_gates": log_BTH.transpose(1, 2).unsqueeze(-1)}

    def bias(self, cached: Mapping[str, Tensor], ctx: Context) -> Tensor:
        """Return the sum of the logarithms between each two tokens, (B, H, T, S)."""
        total_BHS = cached["log_gates"][..., 0].float().cumsum(-1)
        return total_BHS[:, :, -ctx.new :, None] - total_BHS[:, :, None]
