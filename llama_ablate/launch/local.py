"""The grid on one machine: as many single-thread workers as cores, or one per GPU."""

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from llama_ablate.condition import Condition
from llama_ablate.errors import ConfigError
from llama_ablate.experiment import Experiment, Source, Train
from llama_ablate.grid import Variant
from llama_ablate.launch import processes, worker
from llama_ablate.launch.environment import cores, environment
from llama_ablate.launch.progress import Progress
from llama_ablate.measure import METRICS
from llama_ablate.measure.interleaved import Arm, interleaved
from llama_ablate.model.decoder import spec_from
from llama_ablate.plan import Pace, Plan, make, open_tokens
from llama_ablate.results import FINAL, Record, Store
from llama_ablate.spec import digest
from llama_ablate.training import engine as engines
from llama_ablate.training.engine import Engine
from llama_ablate.trials import Run

_GRACE_S = 10.0  # to write a checkpoint in, when asked to stop


@dataclass
class _Job:
    run: Run
    child: processes.Child
    gpu: int | None
    slot: int


def default_workers(device: str) -> int:
    """Return one worker per GPU, or one per core that this process may use."""
    if device == "cuda":
        return torch.cuda.device_count()
    return cores()


def choose_engine(plan: Plan, device: str, log: Path) -> Engine:
    """Measure, in a fresh process, how this machine computes the experiment's baseline fastest."""
    spec, train = plan.baseline.spec, plan.experiment.train
    found: Engine = processes.call(_choose, spec.to_dict(), train.model_dump(), device, log=log)
    return found


def pace(store: Store, engine: Engine) -> Pace:
    """Return the seconds of a step of each variant, from an interleaved pass that is kept."""

    def measured(condition: Condition) -> list[float]:
        arms = [_arm(v, condition) for v in condition.variants]
        key = digest([[v.id for v in condition.variants], arms[0]["train"], engine.to_dict()])
        speed = METRICS.resolve("train_speed")

        def measure() -> list[float]:
            values: list[dict[str, Any]] = processes.call(
                _measure, arms, [speed.entry()], engine.to_dict(), 5, log=store.log("measure")
            )
            speeds = [of[speed.name]["values"]["train_tokens_per_s"] for of in values]
            return [arm["train"]["batch"] * arm["spec"]["context"] / s
                    for arm, s in zip(arms, speeds, strict=True)]  # fmt: skip

        found: list[float] = store.kept("pace", key, measure)
        return found

    return measured


def run_grid(store: Store, plan: Plan, engine: Engine, workers: int, progress: Progress) -> None:
    """Train every run of the plan that has no final record.

    A run that diverges, fails, runs out of memory or is killed ends with a record that says so, and
    the others go on. On an interrupt the workers write checkpoints before it is raised again.
    """
    pending = deque(r for r in plan.runs if not _is_final(store.record(r.id)))
    progress.begin(total=len(plan.runs), done=len(plan.runs) - len(pending))
    gpus = torch.cuda.device_count() if engine.device == "cuda" else 0
    free = list(range(workers))[::-1]
    active: list[_Job] = []
    try:
        while pending or active:
            while pending and free:
                slot, run = free.pop(), pending.popleft()
                gpu = slot % gpus if gpus else None
                child = processes.start(
                    _train, str(store.root), run.id, gpu=gpu, log=store.log(run.id)
                )
                active.append(_Job(run, child, gpu, slot))
                tuned = "".join(f" {k}={v}" for k, v in run.tuned.items())
                progress.start(slot, f"{run.variant.label} s{run.seed}{tuned}", run.steps)
            wait([job.child.process.sentinel for job in active], timeout=0.25)
            for job in list(active):
                for _kind, value in job.child.messages():
                    if isinstance(value, tuple):
                        progress.step(job.slot, *value)
                if not job.child.process.is_alive():
                    active.remove(job)
                    free.append(job.slot)
                    _finish(store, plan, engine, job, progress)
    except BaseException:
        _stop(active)
        raise


def measure_variants(
    store: Store,
    plan: Plan,
    engine: Engine,
    progress: Callable[[int, int], None],
    rounds: int = 5,
) -> None:
    """Take the per-variant metrics of all variants in one interleaved pass.

    If any variant lacks any, all are measured again: ratios hold within a pass only.
    """
    choices = [c for c in plan.measures if METRICS.per(c.name) == "variant"]
    arms = [variant for variant, _ in plan.arms]
    mark = digest([v.id for v in arms] + [c.entry() for c in choices] + [rounds])
    if all(
        store.variant_measures(v.id).get(c.name, {}).get("pass") == mark
        for v in arms
        for c in choices
    ):
        return
    total = rounds * len(arms)
    found = processes.call(
        _measure,
        [_arm(variant, condition) for variant, condition in plan.arms],
        [c.entry() for c in choices],
        engine.to_dict(),
        rounds,
        log=store.log("measure"),
        report=lambda done: progress(done, total),
    )
    for variant, metrics in zip(arms, found, strict=True):
        for name, values in metrics.items():
            extra = {"pass": mark, "engine": engine.to_dict(), "environment": environment()}
            store.add_variant_measure(variant.label, variant.id, name, {**values, **extra})


def _arm(variant: Variant, condition: Condition) -> dict[str, Any]:
    """Return what a process needs to measure a variant, as plain values."""
    train = condition.experiment.train.model_dump(mode="json")
    return {"spec": variant.spec.to_dict(), "train": {**train, **condition.train, **variant.train},
            "data": condition.text}  # fmt: skip


def measure_again(store: Store, names: Sequence[str], progress: Callable[[int, int], None]) -> None:
    """Take metrics of what has finished: per-run ones from the weights, per-variant ones anew.

    Raises ConfigError for an unknown metric, or where the corpus has changed.
    """
    choices = [METRICS.resolve(name) for name in names]
    experiment = Experiment.model_validate(store.plan["experiment"])
    asked = [*experiment.measure, *(choice.entry() for choice in choices)]
    checked = make(Source.of(experiment.model_copy(update={"measure": asked})))
    plan = replace(checked, measures=tuple(choices))
    if store.engine is None:
        raise ConfigError(f"'{store.root}' has no finished runs to measure")
    engine = Engine.from_dict(store.engine)
    per_run = [c.entry() for c in choices if METRICS.per(c.name) == "run"]
    finished = list({r.id: r for t in store.tables for r in t.records() if r.ok}.values())
    for done, record in enumerate(finished if per_run else [], 1):
        arguments = (str(store.root), record.id, per_run)
        processes.call(_measure_run, *arguments, log=store.log("measure"))
        progress(done, len(finished))
    if len(per_run) < len(choices):
        measure_variants(store, plan, engine, progress)


def _measure_run(
    _report: Callable[[Any], None], root: str, run_id: str, entries: list[Any]
) -> None:
    worker.measure(Store(Path(root)), run_id, [METRICS.resolve(entry) for entry in entries])


def _is_final(record: Record | None) -> bool:
    return record is not None and record.outcome in FINAL


def _finish(store: Store, plan: Plan, engine: Engine, job: _Job, progress: Progress) -> None:
    """Take note of a process that ended; where it could not write a record, write one for it."""
    code = job.child.process.exitcode
    job.child.end()
    record = store.record(job.run.id)
    if code and not _is_final(record):
        record = _lost(store, plan, engine, job.run, code)
        store.commit(record, [], None)
    if record:
        progress.finish(job.slot, record.outcome, record.reason)


def _lost(store: Store, plan: Plan, engine: Engine, run: Run, code: int) -> Record:
    killed = code == -signal.SIGKILL
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    hint = " (what the system does when memory runs out)" if killed else ""
    return Record(
        id=run.id,
        label=run.variant.label,
        variant=run.variant.id,
        seed=run.seed,
        outcome="oom" if killed else "error",
        reason=f"the process ended by {name}{hint}; see {store.log(run.id).name}",
        steps_done=0,
        tokens_done=0,
        train_s=0.0,
        peak_memory_bytes=0,
        model=run.variant.spec.to_dict(),
        train={**plan.experiment.train.model_dump(mode="json"), **run.train},
        data=next(c for c in plan.conditions if run in c.runs).tokens.fingerprint,
        engine=engine.to_dict(),
        environment=environment(),
    )


def _stop(active: list[_Job]) -> None:
    """Ask the workers to write checkpoints and leave; end those that do not."""
    for job in active:
        if job.child.process.is_alive():
            os.kill(job.child.process.pid or 0, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    try:
        while any(job.child.process.is_alive() for job in active) and time.monotonic() < deadline:
            wait([job.child.process.sentinel for job in active], timeout=0.1)
    except KeyboardInterrupt:
        sys.stderr.write("stopping at once\n")  # a second interrupt: no more waiting
    for job in active:
        job.child.end()


def _train(report: Callable[[Any], None], root: str, run_id: str) -> str:
    return worker.run(Path(root), run_id, lambda step, loss: report((step, loss)))


def _choose(
    _report: Callable[[Any], None], spec: dict[str, Any], train: dict[str, Any], device: str
) -> Engine:
    return engines.choose(spec_from(spec), Train.model_validate(train), device)


def _measure(
    report: Callable[[Any], None],
    arms: list[dict[str, Any]],
    entries: list[Any],
    engine: dict[str, Any],
    rounds: int,
) -> list[dict[str, dict[str, Any]]]:
    return interleaved(
        [Arm(spec_from(arm["spec"]), Train.model_validate(arm["train"]), open_tokens(arm["data"]))
         for arm in arms],
        [METRICS.resolve(entry) for entry in entries],
        Engine.from_dict(engine),
        rounds=rounds,
        report=report,
    )  # fmt: skip
