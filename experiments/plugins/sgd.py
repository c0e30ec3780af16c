"""SGD, an optimizer: gradient descent with momentum."""

from collections.abc import Sequence
from functools import partial

import torch

from llama_ablate.config.schema import Decay
from llama_ablate.errors import ConfigError
from llama_ablate.training.optimizers import (
    OPTIMIZERS,
    LazyOptimizer,
    Optimizer,
    Weight,
    groups,
    moments,
)


@OPTIMIZERS.register("sgd")
def sgd(
    weights: Sequence[Weight],
    lr: float,
    weight_decay: float,
    *,
    momentum: Decay = 0.9,
    nesterov: bool = False,
) -> Optimizer:
    """SGD with momentum, of Polyak or Nesterov (Sutskever et al. 2013).

    Weight decay is added to the gradient, as torch has it.
    """
    if nesterov and not momentum:
        raise ConfigError("nesterov needs a momentum above 0", ("nesterov",))
    of_all = groups(weights, weight_decay, state=moments(1 if momentum else 0), update="gradient")
    made = partial(torch.optim.SGD, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)
    return LazyOptimizer((made, of_all))
