"""A growing rate of the embedding, and RMSNorm without gains, for rate_transfer.yaml."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.model.linear import Kind
from llama_ablate.model.norms import NORMS
from llama_ablate.model.parametrization import (
    PARAMETRIZATIONS,
    Parametrization,
    Scale,
    Update,
    check_base,
)


@dataclass(frozen=True)
class EmbeddingRate(Parametrization):
    """The standard parametrization with a factor for the embedding's learning rate."""

    embedding: float = 1.0

    def scale(self, kind: Kind, update: Update = "adaptive") -> Scale:
        """Return the factors of a parameter's learning rate, weight decay and epsilon."""
        return Scale(self.embedding) if kind == "embedding" else super().scale(kind, update)


@PARAMETRIZATIONS.register("embedding-rate")
def embedding_rate(dim: int, *, base_dim: int = 64) -> Parametrization:
    """Multiply the embedding's rate by dim / base_dim (Kalra & Barkeshli 2026, arXiv:2605.21486).

    All else is standard. Under `mup` the embedding's rate is as many times that of the hidden
    matrices; the paper holds that most of muP's benefit comes from this ratio.
    """
    return EmbeddingRate(embedding=dim / check_base("base_dim", base_dim))


@NORMS.register("rmsnorm-without-gain")
class RMSNormWithoutGain(nn.Module):
    """Scale by the root mean square, with no trained gains (Lingle 2024, arXiv:2404.05728)."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Return the normalised vectors."""
        return F.rms_norm(x_BTD, x_BTD.shape[-1:], eps=1e-6)
