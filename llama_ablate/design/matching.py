"""Matched budgets: solve one size of a variant for the baseline's cost.

`parameters` are those without token embedding, output head and learned positions, `total` with;
`active_parameters` those of them that a token passes; `flops` the forward FLOPs per token at the
training context, with dense scores; `kv_bytes` what one further token adds to the cache there;
`state_bytes` what is kept of a sequence of the context. A variant within 0.5% by its own width
keeps it.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import ModelSpec, over_depth
from llama_ablate.errors import ConfigError

TOLERANCE = 0.005  # how far a matched budget may be off
_SECANTS = 20  # a quadratic cost takes five or six

Cost = Callable[[ModelSpec], int]


@dataclass(frozen=True)
class Knob:
    """Model size that a budget is matched by, and its rounding multiples, coarsest first."""

    name: str
    resize: Callable[[ModelSpec, int], ModelSpec]
    #: Round sizes compute faster; a rotation needs even heads.
    multiples: tuple[int, ...]


@dataclass(frozen=True)
class Solved:
    """A matched spec, its relative residual, and its changed size."""

    spec: ModelSpec
    residual: float
    change: str = ""


WIDTH = Knob("feed-forward width", lambda spec, size: spec.with_width(size), (8, 4, 2, 1))
HEAD_DIM = Knob("head_dim", lambda spec, size: replace(spec, head_dim=size), (8, 4, 2))


def _option(name: str) -> Knob:
    """Return the knob of a mixer's option, in every layer with that option."""

    def resize(spec: ModelSpec, size: int) -> ModelSpec:
        if name == "window" and size >= spec.context:
            raise ConfigError(f"a window of {size} hides nothing of {spec.context} tokens")
        choices = (
            choice.with_options(**{name: size}) if _has(choice, name) else choice
            for choice in spec.attention.choices
        )
        return replace(spec, attention=over_depth(list(choices)))

    return Knob(name, resize, (8, 4, 2, 1))


def _has(choice: Choice, option: str) -> bool:
    """Return whether a component sets this size option; a window of None does not count."""
    options = dict(choice.options)
    return option in options and (option != "window" or options[option] is not None)


#: What a mixer keeps grows with: a latent, the keys of a recurrence (Gated DeltaNet, Mamba-2), and
#: the tokens of a window.
_STATE_KNOBS = {name: _option(name) for name in ("latent", "key_dim", "state", "window")}


def knobs_for(match: str, spec: ModelSpec) -> list[Knob]:
    """Return the sizes to solve for a budget, in order.

    For the cache the latent, or head_dim where there is none; for the state what its mixers have of
    latent, width of a recurrence's keys, and window, then head_dim; else the feed-forward width.
    """
    if match not in ("kv_bytes", "state_bytes"):
        return [WIDTH]
    knobs = [
        knob
        for name, knob in _STATE_KNOBS.items()
        if any(_has(choice, name) for choice in spec.attention.choices)
    ]
    if match == "state_bytes":
        return [*knobs, HEAD_DIM]
    return knobs[:1] if knobs[:1] == [_STATE_KNOBS["latent"]] else [HEAD_DIM]


def solve(spec: ModelSpec, target: int, cost: Cost, knobs: Sequence[Knob]) -> Solved:
    """Return the spec with the first size that can be solved for the target cost.

    The size is rounded to the coarsest multiple that stays within the tolerance. A spec whose own
    size does as well keeps it. Raises ConfigError where no knob reaches the target, with what each
    leaves.
    """
    if cost(spec) == target:
        return Solved(spec, 0.0)
    if not target:
        raise ConfigError("cannot be matched: the baseline has nothing of what is matched")
    failed = []
    for knob in knobs:
        try:
            return _solved(spec, target, cost, knob)
        except ConfigError as error:
            failed.append(error.message)
    raise ConfigError(
        f"cannot be matched to the baseline within {TOLERANCE:.1%}: {'; '.join(failed)}"
    )


def _solved(spec: ModelSpec, target: int, cost: Cost, knob: Knob) -> Solved:
    """Solve for one knob. Raises ConfigError where no size does."""
    excess = cost(spec) / target - 1
    exact = _exact(knob, lambda size: cost(knob.resize(spec, size)), target)
    for multiple in knob.multiples:
        size = max(multiple, round(exact / multiple) * multiple)
        candidate = knob.resize(spec, size)
        residual = cost(candidate) / target - 1
        if abs(excess) <= min(TOLERANCE, abs(residual)):
            return Solved(spec, excess)
        if abs(residual) <= TOLERANCE:
            return Solved(candidate, residual, f"{knob.name} {size}")
    raise ConfigError(f"{knob.name} {size} leaves {residual:+.1%}")


def _exact(knob: Knob, cost: Callable[[int], int], target: int) -> float:
    """Solve for the size with the target cost, by the secant method.

    Two counts give that of an affine cost, and a third shows that it is one: at the round size
    that is tried first anyway. A matrix that is as high as it is wide makes it quadratic. Raises
    ConfigError where the size does not change the cost.
    """
    (a, cost_a), (b, cost_b) = ((size, cost(size)) for size in (8, 16))
    multiples = itertools.chain(knob.multiples[:1], itertools.repeat(knob.multiples[-1], _SECANTS))
    for tried, multiple in enumerate(multiples):
        if cost_a == cost_b:
            raise ConfigError(f"{knob.name} changes nothing of it")
        size = a + (target - cost_a) * (b - a) / (cost_b - cost_a)
        c = max(multiple, round(size / multiple) * multiple)
        if tried and c in (a, b):
            break
        cost_c = cost(c)
        if c not in (a, b) and (cost_c - cost_a) * (b - a) == (cost_b - cost_a) * (c - a):
            break  # on the line
        if tried:
            a, cost_a, b, cost_b = b, cost_b, c, cost_c
    return size
