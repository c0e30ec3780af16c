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
from llama_ablate.model.decoder import new_model
from llama_ablate.results.record import Measurement, Value
from llama_ablate.training.compute import Compute
from llama_ablate.training.timing import interleave

#: Repetitions of speed measurements: new processes, and short rounds in each.
PROCESSES, ROUNDS = 5, 3
#: Largest number of processes.
MAX_PROCESSES = 10
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
        model = arm_compute.prepare(new_model(arm.spec, 0))
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
    for i, name in cases:
        failed = errors.get((i, name))
        turns = [Measurement(error=reason(failed))] if failed else results[i, name]
        metrics[i][name] = joined(turns, of_processes=False)
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
                ends = [of["high"] / of["value"] - 1 for of in column.values() if of["high"] > 0]
                widest = max([widest, *ends])
    return widest


def joined(parts: Sequence[Measurement], *, of_processes: bool = True) -> Measurement:
    """Join a metric's measurements in several processes, or in the turns of one process.

    A value is the median over all turns. If the metric failed in one of the parts, the failed
    measurement is returned; otherwise the first error of a part, if any, is kept.
    """
    by_name: dict[str, list[Value]] = {}
    for part in parts:
        if part.error and not part.rows:
            return part
        for value in part.rows:
            by_name.setdefault(value.name, []).append(value)
    rows = tuple(_join_values(values, of_processes) for values in by_name.values())
    return Measurement(rows, next((part.error for part in parts if part.error), ""))


def _join_values(values: Sequence[Value], of_processes: bool) -> Value:
    one = [((value.value,),) for value in values]
    turns = [*chain(*([value.by_process for value in values] if of_processes else one))]
    samples, counts = tuple(chain(*turns)), tuple(map(len, turns)) if of_processes else ()
    return replace(values[0], value=median(samples), samples=samples, turns=counts)
