"""One process, one run: build, train, measure, commit. It is told two strings.

Everything else is read from the results folder, so that any launcher can start it.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from llama_ablate import disk, plugins
from llama_ablate.data.tokens import DamagedError
from llama_ablate.errors import ConfigError
from llama_ablate.experiment import Experiment, Train
from llama_ablate.launch.environment import environment
from llama_ablate.launch.processes import REFUSED, leave_after
from llama_ablate.measure import METRICS, Subject
from llama_ablate.measure.memory import PeakMemory
from llama_ablate.model.decoder import Decoder, build, init_weights, spec_from
from llama_ablate.model.weights import load_weights, save_weights
from llama_ablate.plan import open_tokens
from llama_ablate.registry import Choice
from llama_ablate.results import Outcome, Record, Store
from llama_ablate.results.claims import Claim, Watch, lease
from llama_ablate.results.holders import alive, myself
from llama_ablate.training import checkpoint
from llama_ablate.training.engine import Engine, settle
from llama_ablate.training.loop import Trained, train
from llama_ablate.training.ranks import Ranks, is_lost, join

_STOPPED = 75  # "try again" in sysexits.h

Report = Callable[[int, float], None]


def run(root: Path, run_id: str, report: Report = lambda _step, _loss: None) -> Outcome | None:
    """Train one run of a planned experiment, and commit its record. Never raises for the run.

    A `cancelled` run commits nothing: its checkpoint is what it leaves, for the next process. None
    where another process has the run, or has taken it over from this one.
    """
    store = Store(root).table_of(run_id)
    plugins.again(store.settings.plugins)
    ranks = join()
    wanted = Engine.from_dict(store.engine or {}).ranks
    if wanted > ranks.count:
        return _spread(store, run_id, wanted)
    claim = store.claim(run_id) if ranks.first else None
    if not ranks.agreed(claim is not None)[0]:
        return None
    try:
        with claim or nullcontext():
            outcome = _run(store, run_id, claim, ranks, report)
    except _TakenOver:
        return None
    ranks.leave()
    return outcome


def _spread(store: Store, run_id: str, ranks: int) -> Outcome | None:
    """Start the ranks of a run, and wait for them. If one is lost, all end, and are lost together.

    They are started once: what is lost is tried again by the queue, from the checkpoint.
    """
    stop = _stop_signal(None)
    words = [
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        "--max-restarts",
        "0",
        "-m",
        "llama_ablate.launch.worker",
        str(store.root),
        run_id,
    ]
    # A rank's parent is torchrun, which does not look whether its own is still there.
    ours = {"LLAMA_ABLATE_PARENT": "", "LLAMA_ABLATE_SPREAD": myself()}
    with os.fdopen(disk.append(store.log(run_id)), "ab") as log:
        process = subprocess.Popen(  # noqa: S603  fixed words
            [sys.executable, "-m", *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env=os.environ | ours, start_new_session=True,
        )  # fmt: skip
    try:
        while process.poll() is None and not stop():
            time.sleep(0.1)
    finally:
        process.terminate()  # to it alone: it passes the word on, and waits
        process.wait()
    if process.returncode and not stop():
        raise ChildProcessError(f"torchrun ended with exit code {process.returncode}")
    record = store.record(run_id)
    return "cancelled" if stop() else record.outcome if record else None


def _run(
    store: Store, run_id: str, claim: Claim | None, ranks: Ranks, report: Report
) -> Outcome | None:
    stop = _stop_signal(claim)  # before anything that takes long
    plan = store.plan
    entry = next(r for r in plan["runs"] if r["id"] == run_id)
    variant = next(v for v in plan["variants"] if v["id"] == entry["variant"])
    experiment = Experiment.model_validate(plan["experiment"])
    recipe = Train.model_validate({**plan["experiment"]["train"], **entry["train"]})
    settings = store.settings
    engine = Engine.from_dict(store.engine or {})
    settle(engine.threads, engine.device)
    peak = PeakMemory(engine.device)
    model: Decoder | None = None
    measures: dict[str, dict[str, Any]] = {}
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
            saved=store.working(run_id),
            checkpoint_s=settings.checkpoint_s,
            progress=_at_most_every(0.2, report),
            stop=stop,
            ranks=ranks,
        )
        if claim is None or trained.outcome == "cancelled":
            return trained.outcome  # what is left to do is for the first rank, or for the next one
        memory = peak.read()
        if trained.outcome in ("ok", "collapsed"):  # the weights are sound, whatever they know
            subject = Subject(model, tokens, recipe, engine)
            choices = [METRICS.resolve(item) for item in experiment.measure]
            measures |= METRICS.measured([c for c in choices if METRICS.per(c.name) == "run"],
                                         subject)  # fmt: skip
        measures["training"] = trained.numbers
        tokens.check()
    except _TakenOver:
        raise
    except Exception as error:  # whatever it was, the other runs go on
        if claim is None or is_lost(error):
            raise
        memory = peak.read()
        trained = _failed(error, store.working(run_id))
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
    keep = model is not None and trained.outcome == "ok" and settings.keep_weights != "none"
    kept = partial(save_weights, model) if model is not None and keep else None
    return trained.outcome if store.commit(record, trained.curve, kept, claim) else None


def measure(store: Store, run_id: str, choices: Sequence[Choice]) -> dict[str, dict[str, Any]]:
    """Take per-run metrics of a finished run from its weights."""
    record, file = store.record(run_id), store.runs.weights(run_id)
    assert record is not None, run_id
    assert file is not None, run_id
    tokens = open_tokens(store.table_of(run_id).plan["data"])
    engine = Engine.from_dict(record.engine)
    model = engine.prepare(load_weights(build(spec_from(record.model)), file))
    subject = Subject(model, tokens, Train.model_validate(record.train), engine)
    found = METRICS.measured(choices, subject)
    tokens.check()
    return found


def _failed(error: Exception, saved: Path) -> Trained:
    """Give an exception its outcome. Running out of memory has several faces in torch."""
    if isinstance(error, DamagedError):  # the checkpoints may know the damaged text
        checkpoint.forget(saved)
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    torch_oom = isinstance(error, RuntimeError) and (
        "not enough memory" in text
        or "can't allocate memory" in text
        or "DefaultCPUAllocator" in text
    )
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or torch_oom:
        return Trained("oom", text)
    if isinstance(error, ConfigError):  # it says what is wrong, and where
        return Trained("error", text)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    traceback.print_exception(error, file=sys.stderr)
    return Trained("error", f"{type(error).__name__}: {text} ({where})")


class _TakenOver(Exception):  # noqa: N818  no error: another process has the run now
    """Somebody thought that this process was gone."""


def _stop_signal(claim: Claim | None) -> Callable[[], bool]:
    """Return a function that says whether this process was asked to stop.

    It raises _TakenOver where the claim is lost: then nothing more may be written.
    """
    asked: list[int] = []

    def remember(number: int, _frame: Any) -> None:
        asked.append(number)

    def stop() -> bool:
        if claim and not claim.held:
            raise _TakenOver
        return bool(asked)

    if threading.current_thread() is threading.main_thread():
        # USR2: a queue wants the machine back. HUP: the terminal was closed.
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, remember)
    return stop


def _parent() -> int:
    """Return whose child this is: an engine tells, since it may be gone before anybody looks."""
    return int(os.environ.get("LLAMA_ABLATE_PARENT") or os.getppid())


def _orphaned(parent: int, spread: str) -> None:
    """Wait until the parent of this process has ended, or the worker that started its ranks."""
    while os.getppid() == parent and alive(spread) is not False:
        time.sleep(0.2)


def _at_most_every(seconds: float, report: Report) -> Report:
    last = 0.0

    def maybe(step: int, loss: float) -> None:
        nonlocal last
        if time.monotonic() - last > seconds:
            last = time.monotonic()
            report(step, loss)

    return maybe


def main(arguments: Sequence[str] | None = None) -> int:
    """Do a run as a program: `python -m llama_ablate.launch.worker RESULTS RUN`.

    Exit codes: 0 it has a record; 2 it cannot be done; 75 it was stopped, or another has it: try
    again.
    """
    prog = "python -m llama_ablate.launch.worker"
    parser = ArgumentParser(prog=prog, description="Train, measure and commit one run of a plan.")
    parser.add_argument("results", type=Path, help="the results of an experiment that was planned")
    parser.add_argument("run", help="the id of a run of its plan")
    given = parser.parse_args(arguments)
    try:
        return _as_program(Store.open(given.results), given.run)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"{prog}: {error}\n")
        return REFUSED


def _as_program(store: Store, run_id: str) -> int:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        run(store.root, run_id)
        return 0  # else torchrun would call the others lost
    _wait_out(store.working(run_id))
    outcome = run(store.root, run_id)
    ended = outcome not in (None, "cancelled") or store.is_final(run_id)
    return 0 if ended else _STOPPED


def _wait_out(folder: Path) -> None:
    """Wait for the claim of a holder that may have died on another machine to run out."""
    watch, until = Watch(), time.monotonic() + 2 * lease()
    while watch.waits(folder) and time.monotonic() < until:
        time.sleep(lease() / 10)


if __name__ == "__main__":
    leave_after(partial(_orphaned, _parent(), os.environ.get("LLAMA_ABLATE_SPREAD", "")))
    sys.exit(main())
