"""A feed-forward network of one's own."""

import torch.nn.functional as F
from llama_ablate.model.feedforward import FEEDFORWARDS, FeedForward
from torch import Tensor


@FEEDFORWARDS.register("mine")
class MineFeedForward(FeedForward):
    """Use x * tanh(softplus(x)) between two linear maps (Misra 2019, arXiv:1908.08681).

    `FeedForward` has the maps, the option `width`, and the count of FLOPs; `GatedFeedForward`
    beside it has a third map.
    """

    @staticmethod
    def activation(x: Tensor) -> Tensor:
        """Return what goes from the first map to the second, (batch, tokens, width)."""
        return F.mish(x)
