"""One process, one run: build, train, measure, commit. It is told two strings and a device index.

Everything else is read from the results folder, so that any launcher can start it.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from llama_ablate.experiment import Experiment, Train
from llama_ablate.launch.environment import environment
from llama_ablate.measure import METRICS, Subject
from llama_ablate.measure.memory import PeakMemory
from llama_ablate.model.decoder import Decoder, build, init_weights, spec_from
from llama_ablate.model.weights import load_weights, save_weights
from llama_ablate.plan import open_tokens
from llama_ablate.registry import Choice
from llama_ablate.results import Outcome, Record, Store
from llama_ablate.training.engine import Engine, settle
from llama_ablate.training.loop import Trained, train

Report = Callable[[int, float], None]


def run(root: Path, run_id: str, report: Report = lambda _step, _loss: None) -> Outcome:
    """Train one run of a planned experiment, and commit its record. Never raises for the run.

    A `cancelled` run commits nothing: its checkpoint is what it leaves, for the next process.
    """
    store = Store(root).table_of(run_id)
    plan = store.plan
    entry = next(r for r in plan["runs"] if r["id"] == run_id)
    variant = next(v for v in plan["variants"] if v["id"] == entry["variant"])
    experiment = Experiment.model_validate(plan["experiment"])
    recipe = Train.model_validate({**plan["experiment"]["train"], **entry["train"]})
    engine = Engine.from_dict(store.engine or {})
    settle(engine.threads)
    peak = PeakMemory(engine.device)
    model: Decoder | None = None
    measures: dict[str, dict[str, float]] = {}
    try:
        tokens = open_tokens(plan["data"])
        model = init_weights(build(spec_from(variant["model"])), entry["init_seed"])
        trained = train(
            model,
            tokens,
            recipe,
            steps=entry["steps"],
            seed=entry["order_seed"],
            engine=engine,
            saved=store.checkpoint(run_id),
            progress=_at_most_every(0.2, report),
            stop=_stop_signal(),
        )
        memory = peak.read()
        if trained.outcome == "ok":
            subject = Subject(model, tokens, recipe, engine)
            for item in experiment.measure:
                choice = METRICS.resolve(item)
                if METRICS.per(choice.name) == "run":
                    measures[choice.name] = METRICS.measure(choice, subject)
        measures["training"] = trained.numbers
    except Exception as error:  # noqa: BLE001  whatever it was, the other runs go on
        memory = peak.read()
        trained = _failed(error)
    if trained.outcome == "cancelled":
        return trained.outcome
    record = Record(
        id=run_id,
        label=variant["label"],
        variant=variant["id"],
        seed=entry["seed"],
        outcome=trained.outcome,
        reason=trained.reason,
        steps_done=trained.steps_done,
        tokens_done=trained.steps_done * recipe.batch * variant["model"]["context"],
        train_s=trained.train_s,
        peak_memory_bytes=memory,
        model=variant["model"],
        train=recipe.model_dump(mode="json"),
        data=plan["data"]["fingerprint"],
        engine=engine.to_dict(),
        environment=environment(),
        measures=measures,
    )
    kept = partial(save_weights, model) if model is not None and trained.outcome == "ok" else None
    store.commit(record, trained.curve, kept)
    return trained.outcome


def measure(store: Store, run_id: str, choices: Sequence[Choice]) -> None:
    """Take per-run metrics of a finished run from its weights, and add them to it."""
    record, file = store.record(run_id), store.weights(run_id)
    assert record is not None, run_id
    assert file is not None, run_id
    tokens = open_tokens(store.table_of(run_id).plan["data"])
    engine = Engine.from_dict(record.engine)
    model = engine.prepare(load_weights(build(spec_from(record.model)), file))
    subject = Subject(model, tokens, Train.model_validate(record.train), engine)
    for choice in choices:
        store.add_run_measure(run_id, choice.name, METRICS.measure(choice, subject))


def _failed(error: Exception) -> Trained:
    """Give an exception its outcome. Running out of memory has several faces in torch."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    torch_oom = isinstance(error, RuntimeError) and (
        "not enough memory" in text
        or "can't allocate memory" in text
        or "DefaultCPUAllocator" in text
    )
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or torch_oom:
        return Trained("oom", text)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    traceback.print_exception(error, file=sys.stderr)
    return Trained("error", f"{type(error).__name__}: {text} ({where})")


def _stop_signal() -> Callable[[], bool]:
    """Return a function that says whether this process was asked to stop, or lost its parent."""
    asked: list[int] = []
    parent = os.getppid()

    def remember(number: int, _frame: Any) -> None:
        asked.append(number)

    try:
        signal.signal(signal.SIGTERM, remember)
    except ValueError:  # not the main thread: a program that embeds us handles its own signals
        return lambda: False
    return lambda: bool(asked) or os.getppid() != parent


def _at_most_every(seconds: float, report: Report) -> Report:
    last = 0.0

    def maybe(step: int, loss: float) -> None:
        nonlocal last
        if time.monotonic() - last > seconds:
            last = time.monotonic()
            report(step, loss)

    return maybe
