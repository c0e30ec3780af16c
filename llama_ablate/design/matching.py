"""Matched budgets: solve one size of a variant so that it costs what the baseline costs."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from llama_ablate.config.spec import ModelSpec
from llama_ablate.errors import ConfigError

TOLERANCE = 0.005  # how far a matched budget may be off
_SECANTS = 20  # a quadratic cost takes five or six

Cost = Callable[[ModelSpec], int]


@dataclass(frozen=True)
class Knob:
    """A size that a cost grows with, and the multiples that it is rounded to, coarsest first."""

    name: str
    turned: Callable[[ModelSpec, int], ModelSpec]
    #: Round sizes compute faster; a rotation needs even heads.
    multiples: tuple[int, ...]


@dataclass(frozen=True)
class Solved:
    """A matched spec, its relative residual, and what was changed to match it."""

    spec: ModelSpec
    residual: float
    change: str = ""


WIDTH = Knob("feed-forward width", lambda spec, size: spec.with_width(size), (8, 4, 2, 1))
HEAD_DIM = Knob("head_dim", lambda spec, size: replace(spec, head_dim=size), (8, 4, 2))
LATENT = Knob(
    "latent",
    lambda spec, size: replace(spec, attention=spec.attention.with_options(latent=size)),
    (8, 4, 2, 1),
)


def knob_for(match: str, spec: ModelSpec) -> Knob:
    """Return the size that is solved for a budget: head_dim for the cache, else the width."""
    if match != "kv_bytes":
        return WIDTH
    latent = any("latent" in dict(choice.options) for choice in spec.attention.choices)
    return LATENT if latent else HEAD_DIM


def solve(spec: ModelSpec, target: int, cost: Cost, knob: Knob) -> Solved:
    """Return the spec with the size at which it costs the target.

    The size is rounded to the coarsest multiple that stays within the tolerance. A spec whose own
    size does as well keeps it. Raises ConfigError where none does.
    """
    own = cost(spec) / target - 1
    if own == 0:
        return Solved(spec, own)
    exact = _exact(lambda size: cost(knob.turned(spec, size)), target, knob.multiples[-1])
    for multiple in knob.multiples:
        size = max(multiple, round(exact / multiple) * multiple)
        candidate = knob.turned(spec, size)
        residual = cost(candidate) / target - 1
        if abs(own) <= min(TOLERANCE, abs(residual)):
            return Solved(spec, own)
        if abs(residual) <= TOLERANCE:
            return Solved(candidate, residual, f"{knob.name} {size}")
    raise ConfigError(
        f"cannot be matched to the baseline within {TOLERANCE:.1%}: {knob.name} {size} leaves "
        f"{residual:+.1%}"
    )


def _exact(cost: Callable[[int], int], target: int, multiple: int) -> float:
    """Return the size at which a cost is the target, by the secant method.

    Two counts give that of an affine cost. A matrix that is as high as it is wide makes it
    quadratic.
    """
    (a, cost_a), (b, cost_b) = ((size, cost(size)) for size in (8, 16))
    for _ in range(_SECANTS):
        size = a + (target - cost_a) * (b - a) / (cost_b - cost_a)
        c = max(multiple, round(size / multiple) * multiple)
        if c in (a, b):
            break
        cost_c = cost(c)
        if (cost_c - cost_a) * (b - a) == (cost_b - cost_a) * (c - a):  # on the line
            break
        a, cost_a, b, cost_b = b, cost_b, c, cost_c
    return size
