"""Laws (invariants) that every optimizer must obey, checked on a few small weights.

The tests check the built-in optimizers; `check` checks a plug-in's optimizer before the runs of an
experiment start.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from llama_ablate.config.registry import Choice
from llama_ablate.errors import ConfigError
from llama_ablate.model.laws import breach
from llama_ablate.training.optimizers import (
    OPTIMIZERS,
    Optimizer,
    Weight,
    do_step,
    set_learning_rate,
    state_bytes,
)

_RATE, _STEPS = 1e-2, 3

#: Function that returns how an optimizer breaks a law, or None if the optimizer obeys it.
Law = Callable[[Choice], str | None]


def groups_hold_every_weight(choice: Choice) -> str | None:
    """Check that each weight is in one group; groups are plain data with `scale` and `shapes`."""
    weights, optimizer = _optimizer(choice)
    grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
    if sorted(grouped) != sorted(id(weight.parameter) for weight in weights):
        return "does not have every weight in one of its groups"
    for key in ("scale", "shapes"):
        if any(key not in group for group in optimizer.param_groups):
            return f"has a group without '{key}': make them with 'groups'"
    for key, value in (item for group in optimizer.param_groups for item in group.items()):
        if key != "params" and not _is_plain(value):
            return f"has a group whose '{key}' is no plain data: a checkpoint cannot keep it"
    return None


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str | Tensor)


def every_weight_moves(choice: Choice) -> str | None:
    """Check that a step changes every weight that has a gradient, to finite numbers."""
    weights, optimizer = _optimizer(choice)
    before = _values(weights)
    _steps(weights, optimizer, [0])
    for old, weight in zip(before, weights, strict=True):
        if torch.equal(old, weight.parameter) or not weight.parameter.isfinite().all():
            return f"leaves {weight.name} as it is, or makes it not finite"
    return None


def the_schedule_decides(choice: Choice) -> str | None:
    """Check that no weight moves at a learning rate of zero."""
    weights, optimizer = _optimizer(choice)
    before = _values(weights)
    _steps(weights, optimizer, range(_STEPS), rate=0.0)
    if not _same(before, _values(weights)):
        return "moves weights at a learning rate of zero: it must read the 'lr' of its groups"
    return None


def bytes_are_counted(choice: Choice) -> str | None:
    """Check the state bytes that the parameter groups declare against the live state."""
    weights, optimizer = _optimizer(choice)
    _steps(weights, optimizer, range(_STEPS))
    live = sum(tensor.nbytes for tensor in _tensors(optimizer.state_dict()) if tensor.dim())
    if state_bytes(optimizer) != live:
        return f"states {state_bytes(optimizer):,} bytes of state, and keeps {live:,}"
    return None


def goes_on_from_its_state(choice: Choice) -> str | None:
    """Check that a new optimizer with a restored state takes the same steps, bit for bit."""
    weights, optimizer = _optimizer(choice)
    _steps(weights, optimizer, range(_STEPS))
    file = io.BytesIO()
    torch.save([_values(weights), optimizer.state_dict()], file)
    file.seek(0)
    values, state = torch.load(file, weights_only=True)
    others, resumed = _optimizer(choice)
    for weight, value in zip(others, values, strict=True):
        weight.parameter.data.copy_(value)
    resumed.load_state_dict(state)
    for current, of in ((optimizer, weights), (resumed, others)):
        _steps(of, current, range(_STEPS, 2 * _STEPS))
    if not _same(_values(weights), _values(others)):
        return "goes on from a checkpoint to other numbers"
    return None


def evaluates_finite_weights(choice: Choice) -> str | None:
    """Check that evaluation weights are finite, and that training weights are restored."""
    weights, built = _optimizer(choice)
    optimizer: Any = built
    if not hasattr(optimizer, "eval"):
        return None
    _steps(weights, optimizer, range(_STEPS))
    before = _values(weights)
    optimizer.eval()
    if not all(values.isfinite().all() for values in _values(weights)):
        return "evaluates weights that are not finite"
    optimizer.train()
    if not all(map(torch.allclose, before, _values(weights))):
        return "trains other weights after an evaluation than before"
    return None


LAWS: tuple[Law, ...] = (
    groups_hold_every_weight,
    every_weight_moves,
    the_schedule_decides,
    bytes_are_counted,
    goes_on_from_its_state,
    evaluates_finite_weights,
)


def check(choice: Choice) -> None:
    """Check an optimizer against every law. Raises ConfigError, which names a broken law."""
    for law in LAWS:
        if failure := breach(law, lambda: (choice,)):
            hint = "; one whose step takes a closure has the attribute 'needs_closure = True'"
            hint *= "'closure'" in failure
            raise ConfigError(f"the optimizer '{choice.name}' {failure}{hint}")


def _optimizer(choice: Choice) -> tuple[list[Weight], Optimizer]:
    """Return test weights of every kind, and an optimizer for these weights."""
    weights = [
        Weight(name, nn.Parameter(_draw_values(name, shape)), decays=len(shape) > 1, hidden=hidden)
        for name, shape, hidden in (
            ("embedding.weight", (7, 4), False),
            ("blocks.0.attn.q.weight", (6, 4), True),
            ("blocks.0.norm.weight", (4,), False),
        )
    ]
    optimizer: Optimizer = OPTIMIZERS.build(
        choice, weights=weights, lr=_RATE, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-8
    )
    return weights, optimizer


def _steps(
    weights: Iterable[Weight], optimizer: Optimizer, steps: Iterable[int], rate: float = _RATE
) -> None:
    for step in steps:
        gradients = _Gradients([*weights], step)
        gradients()
        set_learning_rate(optimizer, rate)
        do_step(optimizer, gradients)


@dataclass
class _Gradients:
    """Closure that sets each gradient to random numbers plus a tenth of the weight."""

    weights: Sequence[Weight]
    at: int
    tokens: int = 4

    def __call__(self, *, sampled: bool = False) -> Tensor:
        for weight in self.weights:
            values = weight.parameter.detach()
            noise = _draw_values(f"{weight.name} {self.at}{' sampled' * sampled}", values.shape)
            weight.parameter.grad = noise + 0.1 * values
        return torch.stack(
            [weight.parameter.detach().square().sum() for weight in self.weights]
        ).sum()


def _draw_values(name: str, shape: Iterable[int]) -> Tensor:
    generator = torch.Generator().manual_seed(int.from_bytes(name.encode()[-6:]))
    return torch.randn(*shape, generator=generator)


def _values(weights: Iterable[Weight]) -> list[Tensor]:
    return [weight.parameter.detach().clone() for weight in weights]


def _same(some: Iterable[Tensor], others: Iterable[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def _tensors(state: Any) -> list[Tensor]:
    """Return every tensor in a state, at any depth."""
    if isinstance(state, Tensor):
        return [state]
    inner = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return [tensor for value in inner for tensor in _tensors(value)]
