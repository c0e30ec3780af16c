"""Linear and embedding layers that are built without random numbers: `init_weights` fills them."""

from typing import ClassVar

from torch import nn


class Linear(nn.Linear):
    """`nn.Linear` whose weights wait for `init_weights`; biases start at zero."""

    writes_residual: ClassVar[bool] = False

    def reset_parameters(self) -> None:
        """Draw nothing: weights depend on the seed and their name alone."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class OutLinear(Linear):
    """A projection whose output is added to the residual stream.

    It starts smaller, by 1/sqrt(2 * layers), so that the stream's variance does not grow with depth
    (Radford et al. 2019, GPT-2, section 2.3).
    """

    writes_residual: ClassVar[bool] = True


class Embedding(nn.Embedding):
    """`nn.Embedding` whose weights wait for `init_weights`."""

    def reset_parameters(self) -> None:
        """Draw nothing: weights depend on the seed and their name alone."""
