"""Learning rate schedules: the decay of the learning rate after the warm-up.

A schedule is a function of the step (from 0), the warm-up steps, all steps, and the share `decay`
of the train config. It returns the progress of the decay: 0 at the peak rate, 1 at the final rate,
which is `min_lr` times the peak.
"""

import math
from typing import Literal

from llama_ablate.config.registry import Registry
from llama_ablate.config.schema import Train

SCHEDULES = Registry("schedule", sizes=("step", "warm", "steps", "decay"))


@SCHEDULES.register("cosine")
def cosine(step: int, warm: int, steps: int) -> float:
    """Decay along half a cosine to `min_lr` (Loshchilov & Hutter 2016, arXiv:1608.03983)."""
    return (1 - math.cos(math.pi * _since(warm, step, steps))) / 2


@SCHEDULES.register("linear")
def linear(step: int, warm: int, steps: int) -> float:
    """Decay linearly to `min_lr`."""
    return _since(warm, step, steps)


@SCHEDULES.register("constant")
def constant() -> float:
    """Keep the peak learning rate to the end."""
    return 0.0


@SCHEDULES.register("wsd")
def wsd(
    step: int, warm: int, steps: int, decay: float, *, fall: Literal["linear", "1-sqrt"] = "linear"
) -> float:
    """Keep the peak, then decay over the last `decay` of the steps (warm-up, stable, decay).

    Runs of different lengths are equal up to their decay (Hu et al. 2024, arXiv:2404.06395). The
    decay is linear, or one minus a square root, which is steep at first (Hägele et al. 2024,
    arXiv:2405.18392).
    """
    share = _since(steps - _fall(warm, steps, decay), step, steps)
    return math.sqrt(share) if fall == "1-sqrt" else share


def learning_rate(train: Train, step: int, steps: int) -> float:
    """Return the learning rate of a step (from 0): linear warm-up, then the config's schedule."""
    warm = _warm(train, steps)
    if step < warm:
        return train.lr * (step + 1) / (warm + 1)
    schedule = SCHEDULES.resolve(train.schedule, ("train", "schedule"))
    fallen: float = SCHEDULES.build(schedule, step=step, warm=warm, steps=steps, decay=train.decay)
    return train.lr * (1 - (1 - train.min_lr) * fallen)


def cooldown(train: Train, steps: int) -> int:
    """Return the number of steps that a `wsd` schedule decays over, outside of the warm-up."""
    return _fall(_warm(train, steps), steps, train.decay)


def _warm(train: Train, steps: int) -> int:
    return round(train.warmup * steps)


def _fall(warm: int, steps: int, decay: float) -> int:
    return min(max(1, round(decay * steps)), steps - warm)


def _since(start: int, step: int, steps: int) -> float:
    """Return the elapsed fraction of the steps from `start` to the end; 0 before `start`."""
    return max(0.0, (step - start) / max(1, steps - start))
