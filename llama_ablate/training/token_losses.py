"""Mean losses over tokens in little memory, with logits of few tokens at a time.

With a vocabulary of 128,000, the logits of 4,096 tokens take 2 GiB in float32, and so do the
softmax and the gradient of the logits. The gradient of a mean over tokens is a sum over tokens, so
it is computed together with the loss, part by part, and no logits are kept for the backward pass.
The method follows Wijmans et al. 2024 (arXiv:2411.09009) and Hsu et al. 2024 (arXiv:2410.10989),
without a custom kernel.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from llama_ablate.model.decoder import Decoder

#: Number of logits that are computed at once, by device: 64 MiB in float32 on a CPU. A GPU has more
#: memory, and needs larger products for full utilization.
LOGITS = {"cpu": 1 << 24, "cuda": 1 << 27}


#: Function from logits (B, T, V) and targets (B, T) to a mean over tokens.
TokenLoss = Callable[[Tensor, Tensor], Tensor]


def split_evenly(total: int, most: int) -> int:
    """Split `total` into the fewest equal parts of at most `most`; return the size of a part.

    Parts are equal, since a smaller last part would need memory blocks of other sizes, which glibc
    keeps in addition to the blocks of the other parts.
    """
    parts = -(-total // most) or 1
    return -(-total // parts)


def rows_at_once(model: Decoder, tokens: int) -> int:
    """Compute the number of tokens whose logits are computed at once."""
    device = model.embedding.weight.device.type
    return split_evenly(tokens, max(1, LOGITS.get(device, LOGITS["cpu"]) // model.spec.vocab))


def token_means(
    model: Decoder,
    hidden_BTD: Tensor,
    targets_BT: Tensor,
    losses: Mapping[str, TokenLoss],
    trained: Sequence[nn.Parameter] = (),
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the sum of several mean losses over tokens, and each mean by name.

    `hidden_BTD` is the input of the output head; `trained` are the parameters of the losses.
    Gradients flow through the sum only, not through the single means.
    """
    parameters = [p for p in (*model.head.parameters(), *trained) if p.requires_grad]
    hidden_ND, targets_N = hidden_BTD.flatten(0, 1), targets_BT.flatten()

    def means(some_ND: Tensor, targets_N: Tensor) -> Tensor:
        logits_1NV, targets_1N = model.logits(some_ND).float()[None], targets_N[None]
        return torch.stack([loss(logits_1NV, targets_1N) for loss in losses.values()])

    rows = rows_at_once(model, len(targets_N))
    given = means, rows, hidden_ND, targets_N, *parameters
    total, means_K = _Means.apply(*given)  # type: ignore[no-untyped-call]
    return total, dict(zip(losses, means_K, strict=True))


class _Means(torch.autograd.Function):
    """Sum of mean losses, with gradients precomputed in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, means: Any, rows: int, hidden_ND: Tensor, targets_N: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden_gradient = torch.empty_like(hidden_ND)
        gradients = [torch.zeros_like(parameter) for parameter in parameters]
        total_K: Tensor | float = 0.0
        for at in range(0, len(hidden_ND), rows):
            with torch.enable_grad():
                some_ND = hidden_ND[at : at + rows].detach().requires_grad_()
                share = len(some_ND) / len(hidden_ND)
                means_K = share * means(some_ND, targets_N[at : at + rows])
                first, *others = torch.autograd.grad(
                    means_K.sum(), [some_ND, *parameters], materialize_grads=True
                )
            hidden_gradient[at : at + rows] = first
            for gradient, more in zip(gradients, others, strict=True):
                gradient.add_(more)
            total_K = total_K + means_K.detach()
        ctx.gradients = [hidden_gradient, *gradients]
        assert isinstance(total_K, Tensor), "there is a token"
        ctx.mark_non_differentiable(total_K)
        return total_K.sum(), total_K

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _unused: Any) -> Any:
        gradients, ctx.gradients = ctx.gradients, None  # scaled in place, so usable once
        first, *others = (saved.mul_(gradient) for saved in gradients)
        return None, None, first, None, *others
