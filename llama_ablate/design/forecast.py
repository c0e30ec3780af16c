"""The forecast of a plan: training FLOPs, predicted time, and disk space."""

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

from llama_ablate.config.experiment import Experiment
from llama_ablate.findings import stages
from llama_ablate.results.plan_document import PlanDocument, PlannedRun, PlannedTable, PlannedText
from llama_ablate.results.record import CURVE_TOKENS, ComputeSettings, Memory

_BYTES = 4  # of a parameter: weights are kept in float32
_RECORD = 32 << 10  # a record, its curve and metrics, with room to spare


@dataclass(frozen=True)
class Cost:
    """Runs, their training FLOPs, and the seconds that they are predicted to take."""

    runs: int
    #: NaN where a component does not count its FLOPs.
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
    #: Of the worker that needs most.
    memory: Memory

    @property
    def seeds(self) -> int:
        """How many seeds each variant has at most."""
        return len(self.plan.experiment.seed_list)

    def to_dict(self, warnings: Callable[[PlannedTable, Experiment], list[str]]) -> dict[str, Any]:
        """Return plain values; those of the first table once more beside the list of tables.

        `warnings` says what limits a table's comparison.
        """
        experiment = self.plan.experiment
        tables = [
            _values(table) | {"warnings": warnings(table, experiment)} for table in self.plan.tables
        ]
        first = ("data", "match", "steps", "tokens_per_run", "variants")
        return {
            "name": self.plan.experiment.name,
            "question": self.plan.experiment.question,
            **asdict(self.most),
            "least": asdict(self.least),
            "seeds": self.seeds,
            "workers": self.workers,
            "disk_bytes": self.disk_bytes,
            "memory": asdict(self.memory),
            "compute": self.compute.to_dict(),
            "tables": tables,
            **{key: tables[0][key] for key in first},
        }


def forecast(
    plan: PlanDocument, compute: ComputeSettings, workers: int, memory: Memory
) -> Forecast:
    """Return the forecast of a plan whose runs compute in a way that has been probed."""
    train = plan.experiment.train
    flops: dict[str, float] = {}
    work: dict[str, float] = {}  # in what time is predicted by, with evaluation
    slower = _float32_times(compute)
    for table in plan.tables:
        variants = {variant.id: variant for variant in table.variants}
        read = {v.id: evaluated(plan, table.text_of(v)) for v in table.variants}
        for run in table.runs:
            variant, batch = variants[run.variant], run.train.get("batch", train.batch)
            tokens = run.steps * batch * variant.model["context"]
            flops[run.id] = variant.flops * tokens
            work[run.id] = variant.work * tokens + slower * (variant.work / 3 * read[variant.id])

    def cost(runs: Collection[str]) -> Cost:
        whole = sum(work[run] for run in runs)
        seconds = whole / compute.flops_per_s / max(1, min(workers, len(runs)))
        return Cost(len(runs), sum(flops[run] for run in runs), seconds)

    least, most = map(cost, stages.bounds(plan))
    return Forecast(plan, compute, workers, least, most, disk_bytes(plan, workers), memory)


def evaluated(plan: PlanDocument, text: PlannedText) -> int:
    """Return how many held-out tokens a run reads: for its curve, and for its metrics."""
    *_, last = heldout = [n for name, n in text.tokens.items() if name != "train"]
    points = plan.experiment.train.evals * min(CURVE_TOKENS, heldout[0])
    ways = max(1, len(plan.experiment.evaluation.documents))
    names = [e if isinstance(e, str) else e["name"] for e in plan.experiment.measure]
    reads = {"perplexity": sum(heldout), "excess_loss": sum(heldout), "calibration": last}
    reads |= {"loss_by_position": last}
    return points + ways * sum(reads.get(name, 0) for name in names)


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
    weights = {v.id: _BYTES * v.parameters for table in plan.tables for v in table.variants}
    to_come = stages.bounds(plan)[1].difference(done)
    runs = [run for run in plan.runs.values() if run.id in to_come]
    # One of every variant in every table.
    best = {(t.name, run.variant) for t in plan.tables for run in t.runs if run.id in to_come}

    def checkpoint(run: PlannedRun) -> int:
        own = weights[run.variant]
        state = 2 * own if run.optimizer_bytes is None else run.optimizer_bytes
        return own + state

    largest = sorted(map(checkpoint, runs), reverse=True)[:workers]
    working = 3 * sum(largest) + _RECORD * len(runs)
    return {
        "none": working,
        "best": working + sum(weights[variant] for _table, variant in best),
        "all": working + sum(weights[run.variant] for run in runs),
    }


def _values(table: PlannedTable) -> dict[str, Any]:
    values = table.model_dump(mode="json", include={"match", "budget", "steps", "tokens_per_run"})
    variants = [variant.model_dump(mode="json") for variant in table.variants]
    text = table.text.model_dump(mode="json")
    return {"table": table.name, **values, "data": text, "variants": variants}
