"""Optimizers: AdamW, Muon and Lion, and any that a plug-in registers.

An optimizer is registered as a function from weights to an object with a method `step`. The train
config supplies the function's positional parameters; keyword-only parameters are options in YAML.
Every parameter group has `scale`, a factor of the schedule's learning rate, and `shapes`, the
shapes of the optimizer state of each parameter.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field
from torch import nn

from llama_ablate.config.registry import Choice, Registry
from llama_ablate.config.schema import Decay, Train
from llama_ablate.config.spec import ModelSpec
from llama_ablate.model.counts import build_meta_model
from llama_ablate.model.decoder import Decoder
from llama_ablate.model.linear import parameters
from llama_ablate.model.parametrization import Scale, Update
from llama_ablate.training.losses import Objective

Group = dict[str, Any]
Shape = tuple[int, ...]
#: Function from a parameter's shape to the shapes of its optimizer state, in its dtype.
StateShapes = Callable[[Shape], Sequence[Shape]]


def moments(count: int) -> StateShapes:
    """Return the state shapes of `count` tensors per parameter, each of the parameter's shape."""
    return lambda shape: [shape] * count


@dataclass(frozen=True, eq=False)
class Weight:
    """Trainable parameter with its name, kind and scale for an optimizer."""

    name: str
    parameter: nn.Parameter
    #: Whether weight decay applies to it.
    decays: bool
    #: Whether it is the matrix of a linear layer inside the model: not of the embedding or the
    #: head, and no table of numbers such as the filters of a convolution.
    hidden: bool
    #: The parametrization's factors of rate, weight decay and epsilon, for a kind of step.
    scale: Callable[[Update], Scale] = lambda _update: Scale()


class Closure(Protocol):
    """Function that recomputes the loss and gradients of a step at the current weights.

    A call clears the gradients, computes new gradients, and clips the new gradients as the step
    does. With `sampled` targets, nothing is clipped.
    """

    @property
    def tokens(self) -> int:
        """Number of targets over which the loss is a mean."""

    def __call__(self, *, sampled: bool = False) -> torch.Tensor:
        """Compute the loss; with `sampled`, on targets drawn from the model's predictions."""


class Optimizer(Protocol):
    """Interface of optimizers for the training loop: a part of `torch.optim.Optimizer`.

    An optimizer whose attribute `needs_closure` is true is called as `step(closure)`. An optimizer
    that evaluates other weights than it trains (such as an average) has methods `eval` and `train`,
    which switch the parameters.
    """

    param_groups: list[Group]

    def step(self) -> Any:
        """Update the parameters from their gradients."""

    def zero_grad(self) -> None:
        """Clear the gradients."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that determines later steps, as tensors and plain values."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""


OPTIMIZERS = Registry(
    "optimizer", sizes=("weights", "lr", "weight_decay", "betas", "eps"), interface=Optimizer
)


def make_optimizer(model: Decoder | Objective, train: Train) -> Optimizer:
    """Build the optimizer of a train config for the parameters of a model.

    Raises ConfigError for inconsistent options.
    """
    optimizer: Optimizer = OPTIMIZERS.build(
        OPTIMIZERS.resolve(train.optimizer, ("train", "optimizer")),
        weights=list_weights(model),
        lr=train.lr,
        weight_decay=train.weight_decay,
        betas=train.betas,
        eps=train.eps,
    )
    set_learning_rate(optimizer, train.lr)
    return optimizer


def list_weights(model: Decoder | Objective) -> list[Weight]:
    """Return the parameters of a model as weights for an optimizer."""
    return [
        Weight(
            name,
            parameter,
            decays=decays,
            hidden=kind in ("hidden", "out"),
            scale=partial(model.parametrization.scale, kind),
        )
        for name, parameter, kind, decays in parameters(model)
    ]


def do_step(optimizer: Any, closure: Closure) -> None:
    """Run one step of an optimizer, with the closure if the optimizer needs it."""
    if getattr(optimizer, "needs_closure", False):
        optimizer.step(closure)
    else:
        optimizer.step()


@contextmanager
def evaluation_weights(optimizer: Any) -> Iterator[None]:
    """Switch to the optimizer's evaluation weights in the body, if the optimizer has them.

    Afterwards the parameters are restored bit for bit, so that an evaluation changes no step.
    """
    if not hasattr(optimizer, "eval"):
        yield
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    before = [parameter.detach().clone() for parameter in parameters]
    optimizer.eval()
    try:
        yield
    finally:
        optimizer.train()
        with torch.no_grad():
            for parameter, values in zip(parameters, before, strict=True):
                parameter.copy_(values)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of every parameter group: the rate times the group's scale."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


def state_bytes(optimizer: Optimizer, times: Mapping[nn.Parameter, int] | None = None) -> int:
    """Compute the bytes of an optimizer's state in closed form, without its step counters.

    `times` maps a parameter to the number of its copies, as in repeated blocks (default: 1).
    """
    return sum(
        math.prod(shape) * parameter.element_size() * (times or {}).get(parameter, 1)
        for group in optimizer.param_groups
        for parameter, shapes in zip(group["params"], group["shapes"], strict=True)
        for shape in shapes
    )


@lru_cache(maxsize=100_000)
def optimizer_bytes(spec: ModelSpec, optimizer: Choice, losses: tuple[Choice, ...] = ()) -> int:
    """Compute the bytes of an optimizer's state and of the losses' weights.

    A checkpoint contains these bytes in addition to the model's weights; they are counted on the
    meta device. Raises ConfigError for inconsistent options.
    """
    model, times = build_meta_model(spec)
    objective = Objective(model, losses)
    loss_bytes = sum(parameter.nbytes for parameter in objective.losses.parameters())
    train = Train(steps=1, optimizer=optimizer.entry())
    blocks = zip(model.blocks, times.values(), strict=True)
    repeated = {parameter: n for block, n in blocks for parameter in block.parameters()}
    return loss_bytes + state_bytes(make_optimizer(objective, train), repeated)


def groups(
    weights: Iterable[Weight],
    weight_decay: float,
    *,
    state: StateShapes,
    update: Update = "adaptive",
    scale: float = 1.0,
    eps: float | None = None,
) -> list[Group]:
    """Return parameter groups for torch, each with one learning rate scale, weight decay and eps.

    `state` gives the shapes of a parameter's optimizer state, and `update` is the kind of step (see
    `parametrization.Update`). The learning rate's `scale`, the weight decay and, if given, `eps`
    are multiplied by the parametrization's factors of each weight. A group has plain data only, so
    that a checkpoint can store the group.
    """
    shared: dict[tuple[float, float, float], list[nn.Parameter]] = {}
    for weight in weights:
        factors = weight.scale(update)
        decay = weight_decay * factors.decay if weight.decays else 0.0
        shared.setdefault((decay, scale * factors.rate, factors.eps), []).append(weight.parameter)
    return [
        {
            "params": parameters,
            "weight_decay": decay,
            "scale": rate,
            "shapes": [[*state(tuple(parameter.shape))] for parameter in parameters],
        }
        | ({} if eps is None else {"eps": eps * factor})
        for (decay, rate, factor), parameters in shared.items()
    ]


@OPTIMIZERS.register("adamw")
def adamw(
    weights: Sequence[Weight],
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
) -> Optimizer:
    """AdamW (Loshchilov & Hutter 2017, arXiv:1711.05101), in torch's fused version."""
    all_groups = groups(weights, weight_decay, state=moments(2), eps=eps)
    return LazyOptimizer((partial(torch.optim.AdamW, lr=lr, betas=betas, fused=True), all_groups))


@OPTIMIZERS.register("muon")
def muon(
    weights: Sequence[Weight],
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    *,
    momentum: Decay = 0.95,
    nesterov: bool = True,
    ns_steps: Annotated[int, Field(ge=1, le=99)] = 5,
    adjust: Literal["match_rms_adamw", "original"] = "match_rms_adamw",
    adam_lr: Annotated[float, Field(gt=0, le=1e6)] = 1.0,
) -> Optimizer:
    """Muon for the matrices of the blocks, AdamW for all else (Jordan et al. 2024; from torch).

    A matrix moves along its momentum, orthogonalized by `ns_steps` Newton-Schulz iterations. With
    `adjust: match_rms_adamw` the steps are as large as AdamW's, so that Muon and AdamW use the same
    `lr` (Liu et al. 2025, arXiv:2502.16982); with `original` the steps grow with the square root of
    rows over columns. AdamW's learning rate is `adam_lr` times `lr`.
    """
    hidden = [weight for weight in weights if weight.hidden]
    rest = [weight for weight in weights if not weight.hidden]
    step: Update = "rms" if adjust == "match_rms_adamw" else "spectral"

    matrices = partial(
        torch.optim.Muon,
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        ns_steps=ns_steps,
        adjust_lr_fn=adjust,
    )
    others = partial(torch.optim.AdamW, lr=lr, betas=betas, fused=True)
    return LazyOptimizer(
        (matrices, groups(hidden, weight_decay, state=moments(1), update=step)),
        (others, groups(rest, weight_decay, state=moments(2), scale=adam_lr, eps=eps)),
    )


@OPTIMIZERS.register("lion")
def lion(
    weights: Sequence[Weight],
    lr: float,
    weight_decay: float,
    *,
    beta1: Decay = 0.9,
    beta2: Decay = 0.99,
) -> Optimizer:
    """Lion: steps along the sign of a running mean (Chen et al. 2023, arXiv:2302.06675).

    Lion needs a learning rate three to ten times smaller than AdamW's, and a weight decay larger by
    the same factor.
    """
    make = partial(Lion, lr=lr, beta1=beta1, beta2=beta2)
    return LazyOptimizer((make, groups(weights, weight_decay, state=moments(1))))


class Lion(torch.optim.Optimizer):
    """Lion, program 1 of Chen et al. 2023 (arXiv:2302.06675)."""

    def __init__(self, params: list[Group], lr: float, beta1: float, beta2: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 0.0, "beta1": beta1, "beta2": beta2})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # no closure: nothing here has one
        """Move each parameter by the learning rate, along the sign of the interpolated mean.

        The running mean of gradients is interpolated with the present gradient.
        """
        for group in self.param_groups:
            rate, decay = group["lr"], group["weight_decay"]
            for parameter in group["params"]:
                gradient, state = parameter.grad, self.state[parameter]
                if gradient is None:
                    continue
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                sign = state["exp_avg"].lerp(gradient, 1 - group["beta1"]).sign_()
                parameter.mul_(1 - rate * decay).add_(sign, alpha=-rate)
                state["exp_avg"].lerp_(gradient, 1 - group["beta2"])


class LazyOptimizer:
    """Optimizers of torch for separate parameter groups, which are constructed at the first use.

    A plan of a thousand variants needs only the groups, and torch takes a second to import the
    modules of its first optimizer. `parts` are the constructors, each with its parameter groups.
    """

    def __init__(self, *parts: tuple[Callable[[list[Group]], Optimizer], list[Group]]) -> None:
        self._makers = [(make, groups) for make, groups in parts if groups]
        self._is_single = len(parts) == 1
        self.param_groups = [group for _, groups in parts for group in groups]

    @cached_property
    def _optimizers(self) -> list[Optimizer]:
        return [make(groups) for make, groups in self._makers]

    def step(self) -> None:
        """Run a step of each optimizer."""
        for optimizer in self._optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        """Clear the gradients of all parameters."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of a single optimizer, or the states of several in their order."""
        states = [optimizer.state_dict() for optimizer in self._optimizers]
        return states[0] if self._is_single else {"parts": states}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        states = [state_dict] if self._is_single else state_dict["parts"]
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(state)
        # torch puts new groups in place of the old.
        self.param_groups = [g for optimizer in self._optimizers for g in optimizer.param_groups]
