"""Parametrizations: how initial weights, multipliers and learning rates scale with model size.

A learning rate that was tuned on a small model is the best for a wider or deeper model only if the
parametrization scales it accordingly. The component that `model.parametrization` names is a
function of the model's sizes and of a base model's sizes. At the base sizes every factor is 1,
which is the standard parametrization. All widths (feed-forward network, heads times head width,
latent) are assumed to grow in proportion to `dim`. Multi-head latent attention therefore needs an
explicit `latent`, since its default depends on the head width alone.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from llama_ablate.config.registry import Registry
from llama_ablate.config.spec import SIZES
from llama_ablate.errors import need
from llama_ablate.model.linear import Kind

#: Size of an optimizer's step. `adaptive`: independent of the gradient's size (Adam, Lion, any step
#: by signs). `gradient`: proportional to the gradient (SGD). `spectral`: a spectral norm of 1 for a
#: square matrix. `rms`: the mean square of a matrix of ones. Muon has options for `spectral` and
#: `rms`.
Update = Literal["adaptive", "gradient", "spectral", "rms"]


class Scale(NamedTuple):
    """Factors of an optimizer's learning rate, weight decay and epsilon for one parameter."""

    rate: float = 1.0
    decay: float = 1.0
    eps: float = 1.0


@dataclass(frozen=True)
class Parametrization:
    """Width and depth of a model relative to its base model, and the scaling factors they imply."""

    #: Ratios of the model's dim and number of layers to the base model's.
    width: float = 1.0
    depth: float = 1.0
    #: Factor of the attention scores, in addition to 1/sqrt(head width).
    scores: float = 1.0
    #: Whether the optimizer's weight decay and epsilon are scaled, too.
    complete: bool = False

    @property
    def logits(self) -> float:
        """Factor by which the logits are multiplied."""
        return 1 / self.width

    @property
    def residual(self) -> float:
        """Factor by which each sub-layer's output is multiplied."""
        return 1 / self.depth

    def start(self, kind: Kind) -> float:
        """Return the factor of a weight's initial standard deviation relative to the base model."""
        return self.width**-0.5 if kind in _MATRICES else 1.0

    def scale(self, kind: Kind, update: Update = "adaptive") -> Scale:
        """Return the factors of a parameter's learning rate, weight decay and epsilon."""
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
        """Return the magnitude of the gradient of a kind of weight, relative to the base model."""
        return self.logits * (self.residual if kind in _BLOCK_KINDS else 1.0)


#: Kinds of weights whose input and output sizes both grow with the width.
_MATRICES = ("hidden", "out")
_BLOCK_KINDS = ("hidden", "out", "vector")

PARAMETRIZATIONS = Registry("parametrization", sizes=SIZES, interface=Parametrization)


@PARAMETRIZATIONS.register("standard")
def standard() -> Parametrization:
    """Use the same learning rate and initialisation rule at every width, as plain torch does."""
    return Parametrization()


@PARAMETRIZATIONS.register("mup")
def mup(
    dim: int, head_dim: int, *, base_dim: int = 64, base_head_dim: int | None = None
) -> Parametrization:
    """Keep the best learning rate constant over widths: muP (Yang et al. 2022, arXiv:2203.03466).

    This is the maximal update parametrization. With m = dim / base_dim, its factors are those of
    the paper's Table 8 for Adam (in brackets for SGD):

    ============================ ================ ========== ===================
    weights                      initial variance multiplier learning rate
    ============================ ================ ========== ===================
    embeddings, biases and gains as the base      1          1 (m)
    hidden matrices              1/m              1          1/m (1)
    output head                  as the base      1/m        1 (m)
    ============================ ================ ========== ===================

    Attention scores are scaled in proportion to 1/E instead of 1/sqrt(E), where E is the head width
    (Definition 4.1); at E = base_head_dim the scale is 1/sqrt(E). By default, base_head_dim is the
    model's own head width, which suits experiments over several model sizes in which the number of
    heads grows. Muon's steps have a spectral norm that does not depend on the gradient. Its
    learning rate is the same at every width if that norm is 1 (Yang et al. 2023, arXiv:2310.17813),
    and falls with 1/sqrt(m) if the step's mean square is fixed. This holds for matrices whose input
    and output sizes both grow: for a router, or for keys and values of a fixed number of heads,
    Muon's learning rate does not transfer.
    """
    return Parametrization(
        width=dim / check_base("base_dim", base_dim), scores=score_factor(head_dim, base_head_dim)
    )


def check_base(name: str, size: int) -> int:
    """Return the size of a base model. Raises ConfigError, at its key, if the size is below 1."""
    need(size >= 1, f"{name} {size} must be 1 or more", name)
    return size


def score_factor(head_dim: int, base_head_dim: int | None) -> float:
    """Compute the factor that changes a score scale of 1/sqrt(E) to one proportional to 1/E.

    E is the head width. The factor is 1 if E is the base model's head width.
    """
    base = head_dim if base_head_dim is None else check_base("base_head_dim", base_head_dim)
    return float((base / head_dim) ** 0.5)
