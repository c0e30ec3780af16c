"""Measurement of per-variant metrics, interleaved over variants, joined over processes."""

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from statistics import median

from llama_ablate.config.experiment import Train
from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import ModelSpec
from llama_ablate.data.tokens import Tokens
from llama_ablate.evidence.medians import compare_column
from llama_ablate.measure.metrics import METRICS, Subject, reason
from llama_ablate.model.decoder import build, init_weights
from llama_ablate.results.record import Measurement, Value
from llama_ablate.training.compute import Compute
from llama_ablate.training.timing import interleave

#: Repetitions of speed measurements: new processes, and short rounds in each.
PROCESSES, ROUNDS = 5, 3
#: Largest number of processes, and the half width of an interval (as a share of the speed) above
#: which processes are added.
MAX_PROCESSES, WANTED_HALF_WIDTH = 10, 0.05
#: Seconds after which a paired measurement starts no further process. Each process starts no round
#: after its share of the seconds.
MAX_PAIRED_S = 600.0


@dataclass(frozen=True)
class Arm:
    """Arm of a measurement: an architecture, its train config, and its text."""

    spec: ModelSpec
    train: Train
    tokens: Tokens


def is_paired(choice: Choice) -> bool:
    """Return whether a metric is timed in interleaved turns, in several processes."""
    return METRICS.timed(choice.name) and bool(dict(choice.options).get("paired", True))


def measure_arms(
    arms: Sequence[Arm],
    choices: Sequence[Choice],
    compute: Compute,
    *,
    rounds: int = 5,
    limit_s: float = math.inf,
    report: Callable[[int], None] = lambda _calls: None,
) -> list[dict[str, Measurement]]:
    """Measure the metrics of each arm: the median and the samples of every value.

    Speeds do not depend on the values of weights, so untrained models are measured. A metric that
    fails for an arm has no values for the arm and is not tried again; the other metrics and arms
    continue. A metric that raises Unmeasured keeps the values yielded before. After `limit_s`
    seconds no further round begins. `report` gets the number of measurements so far, out of
    `rounds * len(arms) * len(choices)`.
    """

    def measure(arm: Arm, choice: Choice) -> Measurement:
        arm_compute = compute.trained_as(arm.train)
        model = arm_compute.prepare(init_weights(build(arm.spec), 0))
        return METRICS.attempt(choice, Subject(model, arm.tokens, arm.train, arm_compute))

    cases = {(i, c.name): partial(measure, arm, c) for i, arm in enumerate(arms) for c in choices}
    began = time.monotonic()
    results, errors = interleave(
        cases,
        rounds,
        shuffle=random.shuffle,
        progress=report,
        enough=lambda: time.monotonic() - began > limit_s,
    )
    metrics: list[dict[str, Measurement]] = [{} for _ in arms]
    for case in cases:
        i, name = case
        if case in errors:
            metrics[i][name] = Measurement(error=reason(errors[case]))
        else:
            metrics[i][name] = _combined(results[case], _medians)
    return metrics


def half_width(arms: Sequence[Measurement], bases: Sequence[int], quantity: str) -> float:
    """Return the half width of the widest confidence interval of relative speeds.

    `bases` has the index of each arm's baseline. Decoding without a cache is left out.
    """
    rows = [{row.name: row for row in arm.rows if row.quantity == quantity} for arm in arms]
    widest = 0.0
    for base in {*bases}:
        for name, base_value in rows[base].items():
            if base_value.coordinates.get("cache") != "uncached":
                indices = [i for i, at in enumerate(bases) if at == base and name in rows[i]]
                column = compare_column({i: rows[i][name].by_process for i in indices}, base)
                ends = [
                    timing.high / timing.value - 1 for timing in column.values() if timing.high > 0
                ]
                widest = max([widest, *ends])
    return widest


def joined(processes: Sequence[Measurement]) -> Measurement:
    """Join a metric's measurements in several processes: medians over all rounds.

    If the metric failed in one of the processes, the failed measurement is returned.
    """
    for measurement in processes:
        if measurement.error and not measurement.rows:
            return measurement
    return _combined(processes, _over_processes)


def _over_processes(values: Sequence[Value]) -> Value:
    turns = [turns for value in values for turns in value.by_process]
    samples = tuple(chain(*turns))
    return replace(values[0], value=median(samples), samples=samples, turns=tuple(map(len, turns)))


def _medians(values: Sequence[Value]) -> Value:
    samples = tuple(value.value for value in values)
    return replace(values[0], value=median(samples), samples=samples)


def _combined(
    parts: Sequence[Measurement], combine: Callable[[Sequence[Value]], Value]
) -> Measurement:
    """Combine measurements: the values with the same name, and the first error, if any."""
    by_name: dict[str, list[Value]] = {}
    for value in chain(*(part.rows for part in parts)):
        by_name.setdefault(value.name, []).append(value)
    error = next((part.error for part in parts if part.error), "")
    return Measurement(tuple(combine(values) for values in by_name.values()), error)
