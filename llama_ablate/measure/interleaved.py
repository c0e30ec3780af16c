"""The exclusive pass: per-variant metrics in turns, A B C A B C, so that their ratios hold.

A shared machine speeds up and slows down by tens of percent over minutes. Within a turn all
variants meet nearly the same machine, so the ratios of medians over turns are steady.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from llama_ablate.config.experiment import Train
from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import ModelSpec
from llama_ablate.data.tokens import Tokens
from llama_ablate.measure.registry import METRICS, Subject, reason
from llama_ablate.model.decoder import build, init_weights
from llama_ablate.training.compute import Compute

Samples = dict[str, list[float]]


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

    Speeds do not depend on what the weights hold, so fresh models are measured. A metric that fails
    for an arm has no values there and is not tried again; the others go on.
    """
    taken: list[dict[str, Samples]] = [{c.name: {} for c in choices} for _ in arms]
    errors: list[dict[str, str]] = [{} for _ in arms]
    done = 0
    for _ in range(rounds):
        for i, arm in enumerate(arms):
            for choice in choices:
                if choice.name in errors[i]:
                    continue
                try:
                    model = compute.prepare(init_weights(build(arm.spec), 0))
                    values = METRICS.measure(choice, Subject(model, arm.tokens, arm.train, compute))
                except Exception as error:  # noqa: BLE001  the pass and its other metrics go on
                    errors[i][choice.name] = reason(error)
                    taken[i][choice.name].clear()
                    continue
                for key, value in values.items():
                    taken[i][choice.name].setdefault(key, []).append(value)
            done += 1
            report(done)
    return [
        {
            name: {
                "values": {key: median(sample) for key, sample in samples.items()},
                "samples": samples,
                "error": errors[i].get(name, ""),
            }
            for name, samples in taken[i].items()
        }
        for i in range(len(arms))
    ]
