"""Per-variant metrics, interleaved over the variants: medians and samples of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from llama_ablate.config.experiment import Train
from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import ModelSpec
from llama_ablate.data.tokens import Tokens
from llama_ablate.measure.registry import METRICS, Subject, reason
from llama_ablate.model.decoder import build, init_weights
from llama_ablate.training.compute import Compute
from llama_ablate.training.timing import interleave


@dataclass(frozen=True)
class Arm:
    """What is measured: a recipe, how it trains, and its text."""

    spec: ModelSpec
    train: Train
    tokens: Tokens


def interleaved(
    arms: Sequence[Arm],
    choices: Sequence[Choice],
    compute: Compute,
    *,
    rounds: int = 5,
    report: Callable[[int], None] = lambda _done: None,
) -> list[dict[str, dict[str, Any]]]:
    """Return for each arm, by metric, `{values: medians, samples: every turn, error: text}`.

    `report` is told the number of measurements so far, of `rounds * arms * choices`.
    Speeds do not depend on what the weights hold, so fresh models are measured. A metric that fails
    for an arm has no values there and is not tried again; the others go on.
    """

    def taken(arm: Arm, choice: Choice) -> dict[str, float]:
        model = compute.prepare(init_weights(build(arm.spec), 0))
        return METRICS.measure(choice, Subject(model, arm.tokens, arm.train, compute))

    cases = {(i, c.name): partial(taken, arm, c) for i, arm in enumerate(arms) for c in choices}
    rows, errors = interleave(cases, rounds, progress=report)
    samples = {case: _by_name(turns) for case, turns in rows.items()}
    return [
        {
            c.name: {
                "values": {k: median(v) for k, v in samples.get((i, c.name), {}).items()},
                "samples": samples.get((i, c.name), {}),
                "error": reason(errors[i, c.name]) if (i, c.name) in errors else "",
            }
            for c in choices
        }
        for i in range(len(arms))
    ]


def _by_name(turns: list[dict[str, float]]) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {}
    for values in turns:
        for name, value in values.items():
            samples.setdefault(name, []).append(value)
    return samples
