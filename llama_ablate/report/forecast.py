"""The forecast of a plan: training FLOPs, predicted time, disk space, and seeds for an effect."""

import statistics
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_ablate.config.experiment import Experiment
from llama_ablate.errors import ConfigError
from llama_ablate.evidence.intervals import detectable, seeds_for
from llama_ablate.evidence.sequential import simulated_stops, spending
from llama_ablate.report import stages, warnings
from llama_ablate.report.frames import Frames
from llama_ablate.results.plan import PlanDocument, PlannedRun, PlannedTable, PlannedText
from llama_ablate.results.record import CURVE_TOKENS, ComputeSettings, Memory

_BYTES = 4  # of a parameter: weights are kept in float32
_RECORD = 32 << 10  # a record, its curve and metrics, with room to spare


@dataclass(frozen=True)
class Cost:
    """Runs, their training FLOPs, and the seconds that they are predicted to take."""

    runs: int
    training_flops: float
    predicted_s: float


@dataclass(frozen=True)
class Forecast:
    """How much a plan computes, and how long that takes at the rate of a measured probe step.

    Evaluation is counted: the points of the curve, and the metrics of each run over held-out text.
    The probe is a training step of one layer; real runs also start and save, so the time is an
    order of magnitude, not a promise.
    """

    plan: PlanDocument
    compute: ComputeSettings
    workers: int
    #: What it takes at least and at most: results decide which runs of looks and races are needed.
    least: Cost
    most: Cost
    #: The most bytes that the runs will take, by what weights are kept.
    disk_bytes: dict[str, int]
    #: Of the worker that needs most; None where that cannot be forecast.
    memory: Memory | None = None

    @property
    def seeds(self) -> int:
        """How many seeds each variant has at most."""
        return len(self.plan.experiment.seed_list)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; those of the first table once more beside the list of tables."""
        tables = [_values(table, self.plan.experiment) for table in self.plan.tables]
        first = ("data", "match", "steps", "tokens_per_run", "variants")
        return {
            "name": self.plan.experiment.name,
            "question": self.plan.experiment.question,
            **asdict(self.most),
            "least": asdict(self.least),
            "seeds": self.seeds,
            "workers": self.workers,
            "disk_bytes": self.disk_bytes,
            "memory": self.memory and asdict(self.memory),
            "compute": self.compute.to_dict(),
            "tables": tables,
            **{key: tables[0][key] for key in first},
        }


def forecast(
    plan: PlanDocument, compute: ComputeSettings, workers: int, memory: Memory | None = None
) -> Forecast:
    """Return the forecast of a plan whose runs compute in a way that has been probed."""
    train, context = plan.experiment.train, plan.experiment.model.context
    flops: dict[str, float] = {}
    evaluation: dict[str, float] = {}
    for table in plan.tables:
        per_token = {variant.id: variant.flops_per_token for variant in table.variants}
        read = {v.id: evaluated(plan, table.text_of(v)) for v in table.variants}
        for run in table.runs:
            flops[run.id] = 3 * per_token[run.variant] * run.steps * train.batch * context
            evaluation[run.id] = per_token[run.variant] * read[run.variant]
    slower = _float32_times(compute)

    def cost(runs: Collection[str]) -> Cost:
        total = sum(flops[run] for run in runs)
        whole = total + slower * sum(evaluation[run] for run in runs)
        seconds = whole / compute.flops_per_s / max(1, min(workers, len(runs)))
        return Cost(len(runs), total, seconds)

    least, most = map(cost, stages.bounds(plan))
    return Forecast(plan, compute, workers, least, most, disk_bytes(plan, workers), memory)


def evaluated(plan: PlanDocument, text: PlannedText) -> int:
    """Return how many held-out tokens a run reads: for its curve, and for its metrics."""
    *_, last = heldout = [n for name, n in text.tokens.items() if name != "train"]
    points = plan.experiment.train.evals * min(CURVE_TOKENS, heldout[0])
    names = [e if isinstance(e, str) else e["name"] for e in plan.experiment.measure]
    reads = {"perplexity": sum(heldout), "excess_loss": sum(heldout), "calibration": last}
    reads |= {"loss_by_position": last}
    return points + sum(reads.get(name, 0) for name in names)


def _float32_times(compute: ComputeSettings) -> float:
    """Return how much slower float32 is, in which held-out text is read; 1 where not measured."""
    tried = dict(compute.tried_s)
    chosen = tried.get(f"{compute.precision} {compute.kernel}")
    whole = tried.get(f"float32 {compute.kernel}")
    return whole / chosen if whole and chosen else 1.0


def disk_bytes(plan: PlanDocument, workers: int, done: Collection[str] = ()) -> dict[str, int]:
    """Return the most bytes that the runs not yet done will take, by what weights are kept.

    A checkpoint holds weights, the optimizer's state, and where the end is averaged a sum of
    weights; a run at work has two checkpoints and writes a third.
    """
    weights: dict[str, int] = {}
    checkpoint: dict[str, int] = {}
    runs: dict[str, PlannedRun] = {}
    best: set[tuple[str, str]] = set()  # one of every variant in every table
    to_come = stages.bounds(plan)[1].difference(done)
    for table in plan.tables:
        for variant in table.variants:
            weights[variant.id] = _BYTES * variant.parameters
        to_do = {run.id: run for run in table.runs if run.id in to_come}
        runs |= to_do
        best |= {(table.name, run.variant) for run in to_do.values()}
    for run in runs.values():
        own = weights[run.variant]
        state = 2 * own if run.optimizer_bytes is None else run.optimizer_bytes
        averaged = run.train.get("average", plan.experiment.train.average) > 1
        checkpoint[run.id] = own + state + (own if averaged else 0)
    largest = sorted((3 * size for size in checkpoint.values()), reverse=True)
    working = sum(largest[:workers]) + _RECORD * len(runs)
    return {
        "none": working,
        "best": working + sum(weights[variant] for _table, variant in best),
        "all": working + sum(weights[run.variant] for run in runs.values()),
    }


def power(pilot: Frames, effect: float, forecast: Forecast) -> list[dict[str, Any]]:
    """Return for each variant of a pilot how many seeds show an effect, and what they cost.

    The noise is that of the pilot's paired differences; the level is that of a row of the
    plan's table, the power 0.8. Seconds are the plan's own, scaled to so many seeds for all its
    variants. Of a plan with looks also the seeds at which it stops on average, and its power.
    Raises ConfigError where the pilot has no variant with two paired seeds.
    """
    alpha = _level(forecast.plan)
    rows = []
    for label, sd in _deviations(pilot).items():
        needed = seeds_for(effect, sd, alpha=alpha)
        row = {
            "variant": label,
            "pilot_seeds": len(pilot.table.differences()[label]),
            "sd": sd,
            "seeds_needed": needed,
            "detectable": detectable(sd, forecast.seeds, alpha=alpha),
            "predicted_s": forecast.most.predicted_s * needed / forecast.seeds,
        }
        if len(forecast.plan.experiment.looks) > 1:
            stops, shown = _stops(forecast.plan, effect, sd)
            row |= {"expected_seeds": float(stops.mean()), "power": shown}
        rows.append(row)
    return rows


def expected_runs(pilot: Frames, effect: float, plan: PlanDocument) -> float | None:
    """Return how many runs a plan with looks takes on average, where all variants differ so much.

    Of the race, the variants and the baseline, which goes on as far as any of them; without
    controls. None for a plan without looks.
    """
    experiment = plan.experiment
    if len(experiment.looks) == 1:
        return None
    sds = list(_deviations(pilot).values())
    # Each variant of the plan is as noisy as one of the pilot's, taken in turn.
    arms = sum(not (v.baseline or v.role) for v in plan.tables[0].variants)
    stops = np.stack(
        [
            np.roll(_stops(plan, effect, sds[i % len(sds)])[0], 101 * i)  # apart from others
            for i in range(arms)
        ]
    )
    runs = float(stops.sum(axis=0).mean() + stops.max(axis=0).mean())
    race = sum(run.seed in experiment.race_seeds for run in plan.runs.values())
    return runs * len(plan.tables) + race


def _level(plan: PlanDocument) -> float:
    """Return the level of a row of a plan's first table: 5% over its rows."""
    return 0.05 / max(1, sum(not (v.baseline or v.role) for v in plan.tables[0].variants))


def _stops(plan: PlanDocument, effect: float, sd: float) -> tuple[NDArray[np.int64], float]:
    looks = plan.experiment.looks
    shares = plan.experiment.spend or spending(looks)
    levels = [share * _level(plan) for share in shares]
    return simulated_stops(effect, sd, looks, levels)


def _deviations(pilot: Frames) -> dict[str, float]:
    """Return the deviation of each variant's paired differences in a pilot, without controls.

    Raises ConfigError where no variant has two paired seeds.
    """
    controls = {variant.label for variant in pilot.table.plan.variants if variant.role}
    deviations = {
        label: statistics.stdev(differences)
        for label, differences in pilot.table.differences().items()
        if len(differences) > 1 and label not in controls
    }
    if not deviations:
        raise ConfigError(
            f"'{pilot.root}' has no variant with two seeds that its baseline "
            "has too: no noise to plan with"
        )
    return deviations


def _values(table: PlannedTable, experiment: Experiment) -> dict[str, Any]:
    values = table.model_dump(mode="json", include={"match", "budget", "steps", "tokens_per_run"})
    variants = [variant.model_dump(mode="json") for variant in table.variants]
    text = table.text.model_dump(mode="json")
    told = warnings.planned(table, experiment)
    return {"table": table.name, **values, "data": text, "variants": variants, "warnings": told}
