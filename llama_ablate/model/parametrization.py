"""Parametrizations: how initial weights, multipliers and rates follow the width and the depth.

A rate that was tuned on a small model is the best one of a wider or deeper model only where the
parametrization says how. What `model.parametrization` may name is a function of the model's sizes
and of those of a base model, at which every factor is 1: there it is the standard parametrization.
All widths (feed-forward network, heads times their width, a latent) are taken to grow in step with
`dim`: latent attention needs its `latent` given, which by itself follows the heads' width alone.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from llama_ablate.config.registry import Registry
from llama_ablate.config.spec import SIZES
from llama_ablate.errors import ConfigError
from llama_ablate.model.linear import Kind

#: What an optimizer's step is proportional to: nothing of the gradient's size, as in Adam, Lion or
#: any step by signs; the gradient, as in SGD; or it has a spectral norm of 1 for a square matrix,
#: or, by its mean square, that of a matrix of ones, as Muon may be set to.
Update = Literal["adaptive", "gradient", "spectral", "rms"]


class Scale(NamedTuple):
    """Factors of an optimizer's learning rate, weight decay and epsilon for one parameter."""

    rate: float = 1.0
    decay: float = 1.0
    eps: float = 1.0


@dataclass(frozen=True)
class Parametrization:
    """Factors of a model's width and depth relative to its base model."""

    #: The model's dim and layers, over the base model's.
    width: float = 1.0
    depth: float = 1.0
    #: Of attention scores, beside 1/sqrt(head width).
    scores: float = 1.0
    #: Whether the optimizer's weight decay and epsilon follow as well.
    complete: bool = False

    @property
    def logits(self) -> float:
        """The factor of the logits."""
        return 1 / self.width

    @property
    def residual(self) -> float:
        """The factor of each sub-layer's output."""
        return 1 / self.depth

    def start(self, kind: Kind) -> float:
        """Return the factor of initial weights, relative to the base model."""
        return self.width**-0.5 if kind in _MATRICES else 1.0

    def scale(self, kind: Kind, update: Update = "adaptive") -> Scale:
        """Return the factors of a parameter's rate, weight decay and epsilon."""
        gradient = self._gradient(kind)
        matrix = kind in _MATRICES
        rate = {
            "adaptive": 1 / self.width if matrix else 1.0,
            "gradient": (1 / self.width if matrix else 1.0) / gradient,
            "spectral": 1.0,
            "rms": self.width**-0.5 if matrix else 1.0,
        }[update]
        return Scale(rate, 1 / rate, gradient) if self.complete else Scale(rate)

    def _gradient(self, kind: Kind) -> float:
        """Return the size of a gradient's elements, relative to the base model."""
        return self.logits * (self.residual if kind in _BLOCK_KINDS else 1.0)


#: Weights that have a width on both sides.
_MATRICES = ("hidden", "out")
_BLOCK_KINDS = ("hidden", "out", "vector")

PARAMETRIZATIONS = Registry("parametrization", sizes=SIZES, interface=Parametrization)


@PARAMETRIZATIONS.register("standard")
def standard() -> Parametrization:
    """Use one rate and one rule of initial weights at every width: what torch does by itself."""
    return Parametrization()


@PARAMETRIZATIONS.register("mup")
def mup(
    dim: int, head_dim: int, *, base_dim: int = 64, base_head_dim: int | None = None
) -> Parametrization:
    """Keep the best rate over widths: maximal update (Yang et al. 2022, arXiv:2203.03466).

    With m = dim / base_dim, as their Table 8 has it for Adam (in brackets SGD):

    ============================ ================ ========== ===================
    weights                      initial variance multiplier learning rate
    ============================ ================ ========== ===================
    embeddings, biases and gains as the base      1          1 (m)
    hidden matrices              1/m              1          1/m (1)
    output head                  as the base      1/m        1 (m)
    ============================ ================ ========== ===================

    Attention scores are scaled by 1/E instead of 1/sqrt(E) (Definition 4.1), so that they are the
    base model's at E = base_head_dim; unless given, that is the model's own head width, for ladders
    whose heads grow in number. A step of Muon has a spectral norm that does not depend on the
    gradient: its rate is the same at every width where that norm is 1 (Yang et al. 2023,
    arXiv:2310.17813), and falls with 1/sqrt(m) where its mean square is fixed. That holds of
    matrices that grow on both sides: for a router, or keys and values of a fixed number of heads,
    Muon's rate does not carry over.
    """
    return Parametrization(
        width=dim / check_base("base_dim", base_dim), scores=score_factor(head_dim, base_head_dim)
    )


def check_base(name: str, size: int) -> int:
    """Return the size of a base model. Raises ConfigError, at its key, for one below 1."""
    if size < 1:
        raise ConfigError(f"{name} {size} must be 1 or more", (name,))
    return size


def score_factor(head_dim: int, base_head_dim: int | None) -> float:
    """Compute the factor that turns 1/sqrt(E) into 1/E; it is 1 at the base's head width E."""
    base = head_dim if base_head_dim is None else check_base("base_head_dim", base_head_dim)
    return float((base / head_dim) ** 0.5)
