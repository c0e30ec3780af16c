"""Multi-token prediction, a training loss with layers of its own.

Give it to `train.losses`: `[{name: multi_token, depth: 1}]`.
"""

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llama_ablate.errors import ConfigError
from llama_ablate.model.context import Context
from llama_ablate.model.decoder import Decoder
from llama_ablate.model.dropout import Dropout
from llama_ablate.model.linear import Linear
from llama_ablate.model.norms import RMSNorm
from llama_ablate.training.losses import LOSSES, LossWeight
from llama_ablate.training.token_losses import rows_at_once, token_means

#: Target that torch's cross-entropy leaves out.
IGNORED_TARGET = -100


@LOSSES.register("multi_token")
class MultiToken(nn.Module):
    """Prediction of further tokens by extra layers (DeepSeek-V3 2024, arXiv:2412.19437).

    Adds `weight` times the mean, over `depth` extra layers, of the cross-entropy of the token that
    comes k further on. The layers are of the kind of the model's last one; embedding and output
    head are the model's.

    `sequential` is section 2.2 of DeepSeek-V3: a layer reads a projection of two vectors side by
    side, each normalised: what the layer before it made (the first: what the output head reads),
    and the embedding of the next known token. So it predicts from all tokens up to there.
    `independent` is after Gloeckle et al. 2024 (arXiv:2404.19737): every layer reads what the
    output head reads and nothing else. (Their heads branch off before the last layer.)

    Where documents are kept apart, what a later document holds is not predicted: it adds zero to
    the mean, so that all else weighs as it does where documents continue each other.

    Raises ConfigError for a depth that leaves nothing to predict.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        weight: LossWeight = 0.3,
        depth: int = 1,
        heads: Literal["sequential", "independent"] = "sequential",
    ) -> None:
        super().__init__()
        spec = model.spec
        if not 1 <= depth < spec.context:
            raise ConfigError(f"depth {depth}: must be from 1 to {spec.context - 1}")
        self.weight, self.sequential = weight, heads == "sequential"
        self.depths = nn.ModuleList(ExtraLayer(model, joins=self.sequential) for _ in range(depth))

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor,
        tokens: Tensor,
        model: Decoder,
        losses: dict[str, Tensor],
        dropout: Dropout | None,
    ) -> Tensor:
        """Compute the weighted loss; components of the extra layers add to `losses`."""
        T, first_BT = targets.shape[1], model.context(tokens).first_BT
        x_BTD, total = hidden, hidden.new_zeros(())
        for k, layer in enumerate(self.depths, start=1):
            x_BTD = (x_BTD if self.sequential else hidden)[:, : T - k]
            known_BTD = model.embedding(targets[:, k - 1 : T - 1]) if self.sequential else None
            scheme = model.positions[model.schemes[-1]]
            ctx = model.context(tokens[:, : T - k], losses=losses, dropout=dropout)
            ctx = ctx.at(model.spec.layers + k - 1, scheme)
            x_BTD, read_BTD = layer(x_BTD, known_BTD, ctx)
            same_BT = None if first_BT is None else first_BT[:, k:] == first_BT[:, : T - k]
            total = total + mean_cross_entropy(model, read_BTD, targets[:, k:], same_BT)
        return self.weight / len(self.depths) * total


class ExtraLayer(nn.Module):
    """A layer that predicts one further token, with its projection and norms."""

    def __init__(self, model: Decoder, *, joins: bool) -> None:
        super().__init__()
        spec, dim = model.spec, model.spec.dim
        seed = int(torch.randint(1 << 62, (), device="cpu"))
        last = Decoder(replace(spec, vocab=1), seed, layers=(spec.layers - 1,))
        self.block, self.norm = last.blocks[0], last.norm
        self.joins = joins
        if joins:
            self.hidden_norm, self.embedding_norm = RMSNorm(dim), RMSNorm(dim)
            self.join = Linear(2 * dim, dim, bias=False)

    def forward(
        self, x_BTD: Tensor, known_BTD: Tensor | None, ctx: Context
    ) -> tuple[Tensor, Tensor]:
        """Run the layer; return its output, (B, T, D), and the input of the output head."""
        if self.joins:
            normed = self.hidden_norm(x_BTD), self.embedding_norm(known_BTD)
            x_BTD = self.join(torch.cat(normed, -1))
        x_BTD = self.block(x_BTD, ctx)
        return x_BTD, self.norm(x_BTD)


def mean_cross_entropy(
    model: Decoder, hidden_BTD: Tensor, targets_BT: Tensor, counts_BT: Tensor | None = None
) -> Tensor:
    """Compute the mean cross-entropy in nats of hidden states; tokens that do not count add 0."""
    if counts_BT is not None:
        targets_BT = targets_BT.where(counts_BT, IGNORED_TARGET)

    def mean(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        logits_NV, targets_N = logits_BTV.flatten(0, 1).float(), targets_BT.flatten()
        nats = F.cross_entropy(logits_NV, targets_N, ignore_index=IGNORED_TARGET, reduction="sum")
        return nats / targets_N.numel()

    if rows_at_once(model, targets_BT.numel()) == targets_BT.numel():
        return mean(model.logits(hidden_BTD), targets_BT)
    # A large vocabulary: the logits of some tokens at a time.
    return token_means(model, hidden_BTD, targets_BT, {"multi_token": mean})[0]
