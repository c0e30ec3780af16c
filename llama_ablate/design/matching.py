"""Match a variant's cost to the baseline's by solving for one of the variant's sizes.

The cost (`match`) is one of these:

- `parameters`: parameters without token embedding, output head and learned positions;
- `total`: all parameters;
- `active_parameters`: the part of `parameters` that processes one token: of a mixture of experts,
  only the experts that the token is routed to;
- `flops`: forward FLOPs per token at the training context, with dense attention scores;
- `kv_bytes`: bytes that one further token adds to the KV cache at the training context;
- `state_bytes`: bytes of KV cache and recurrent state for a sequence of the context.

A variant whose cost is within 0.5% of the baseline's is not changed, unless a rounded size brings
the cost closer.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import ModelSpec, over_depth
from llama_ablate.errors import ConfigError

TOLERANCE = 0.005  # largest relative deviation of a matched cost
_SECANTS = 20  # most steps of the secant method: a quadratic cost takes five or six

Cost = Callable[[ModelSpec], int]


@dataclass(frozen=True)
class Knob:
    """Model size to solve for when matching a budget, and its rounding multiples."""

    name: str
    resize: Callable[[ModelSpec, int], ModelSpec]
    #: Coarsest first, since round sizes compute faster; a rotation (RoPE) needs even head widths.
    multiples: tuple[int, ...]
    #: Two sizes that every model allows, from which the search begins.
    probes: tuple[int, int] = (8, 16)


@dataclass(frozen=True)
class Solved:
    """Result of matching: spec, relative deviation from the target cost, and changed size.

    `change` describes the size that was solved for, such as `feed-forward width 176`.
    """

    spec: ModelSpec
    residual: float
    change: str = ""


WIDTH = Knob("feed-forward width", lambda spec, size: spec.with_width(size), (8, 4, 2, 1))
HEAD_DIM = Knob("head_dim", lambda spec, size: replace(spec, head_dim=size), (8, 4, 2))


def _option(name: str) -> Knob:
    """Return the knob for a size option of token mixers, such as `window`.

    The size changes in every layer whose mixer has this option.
    """

    def resize(spec: ModelSpec, size: int) -> ModelSpec:
        if name == "window" and size >= spec.context:
            raise ConfigError(f"a window of {size} hides nothing of {spec.context} tokens")
        choices = (
            choice.with_options(**{name: size}) if _has(choice, name) else choice
            for choice in spec.attention.choices
        )
        return replace(spec, attention=over_depth(list(choices)))

    return Knob(name, resize, (8, 4, 2, 1), (1, 2) if name == "window" else (8, 16))


def _has(choice: Choice, option: str) -> bool:
    """Return whether a component has a size option; a window of None does not count."""
    options = dict(choice.options)
    return option in options and (option != "window" or options[option] is not None)


#: Options of mixers on which the size of their state depends: a latent width, the key width of a
#: recurrence (Gated DeltaNet, Mamba-2), and the number of tokens in a window.
_STATE_KNOBS = {name: _option(name) for name in ("latent", "key_dim", "state", "window")}


def knobs_for(match: str, spec: ModelSpec) -> list[Knob]:
    """Return the sizes to try, in order, for matching a budget.

    `kv_bytes` is matched by the latent width, or by head_dim if there is no latent. `state_bytes`
    is matched by the latent width, the key width of a recurrence, and the window, in this order, if
    a mixer has this option, then by head_dim. Every other budget is matched by the feed-forward
    width.
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
    """Match a spec to the target cost, trying one knob after another.

    The size is rounded to the coarsest multiple that stays within the tolerance. The spec is
    returned unchanged if its cost is at least as close to the target. Raises ConfigError, with the
    residual of each knob, if no knob reaches the target.
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
    """Match a spec to the target cost by one knob.

    Raises ConfigError if no size reaches the target within the tolerance.
    """
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
    """Solve for the size with the target cost, by the secant method, before rounding.

    If the cost is an affine function of the size, the costs of two sizes determine the result. A
    third cost, at the rounded size that is tried first anyway, confirms that the function is
    affine. A matrix whose height and width both depend on the size makes the cost quadratic. Raises
    ConfigError if the size does not change the cost.
    """
    (a, cost_a), (b, cost_b) = ((size, cost(size)) for size in knob.probes)
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
            break  # the cost is affine
        if tried:
            a, cost_a, b, cost_b = b, cost_b, c, cost_c
    return size
