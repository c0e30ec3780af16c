"""Worker process: train and measure the model of one run, and store its record.

The arguments are a results folder and a run id. All other settings are read from the results
folder, so that any launcher can start the worker.
"""

import os
import signal
import sys
import threading
import time
import traceback
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from llama_ablate.config import plugins
from llama_ablate.data.tokens import DamagedError, Tokens
from llama_ablate.design.plan_texts import open_batches, open_tokens
from llama_ablate.errors import ConfigError, dotted
from llama_ablate.files import disk
from llama_ablate.launch.environment import make_record
from llama_ablate.launch.processes import REFUSED, Program, leave_after
from llama_ablate.measure import METRICS, Subject
from llama_ablate.measure.live_bytes import PeakMemory
from llama_ablate.model.components import spec_from
from llama_ablate.model.decoder import Decoder, new_model
from llama_ablate.model.laws import predicts_from_prefix
from llama_ablate.model.weights import save_weights
from llama_ablate.results import Outcome, Record, Store
from llama_ablate.results.leases import Lease, Watch, alive, lease_timeout, myself
from llama_ablate.results.live import LiveNote
from llama_ablate.results.plan_document import PlanDocument
from llama_ablate.results.record import Measurement
from llama_ablate.track.sinks import SINKS, Sinks, TrackedRun
from llama_ablate.training import checkpoint
from llama_ablate.training.compute import Compute, configure_process, trim_memory
from llama_ablate.training.loop import CurvePoint, Progress, Trained, train
from llama_ablate.training.ranks import Ranks, is_lost, join

_STOPPED = 75  # "try again" in sysexits.h
_OUT_OF_MEMORY = ("not enough memory", "can't allocate memory", "DefaultCPUAllocator")


def run(root: Path, run_id: str) -> Outcome | None:
    """Train one planned run, and store its record; return its outcome.

    A failure becomes the record's outcome. A `cancelled` run stores no record, and leaves its
    checkpoint to the next process. Returns None if another process has the run's lease, or has
    acquired it after this process's lease expired. Raises ConfigError for a run that is not in the
    plan.
    """
    store = Store(root)
    store.table_of(run_id)  # raises for a run that is not planned
    plan = store.plan
    if plan.refused:
        keys = ", ".join(dotted(refusal.where) for refusal in plan.refused)
        what = f"'{store.plan_file}' states what this version does not know ({keys})"
        raise ConfigError(f"{what}: run the experiment file again")
    plugins.load_recorded(plan.settings.plugins)
    compute = Compute.of(plan.compute)
    ranks = join()
    if compute.ranks > ranks.count:
        return _launch_ranks(store, run_id, compute.ranks)
    lease = store.lease(run_id) if ranks.first else None
    if not ranks.agreed(lease is not None)[0]:
        return None
    try:
        with lease or nullcontext():
            outcome = _run(store, run_id, plan, lease, ranks)
    except _TakenOver:
        return None
    ranks.leave()
    return outcome


def _launch_ranks(store: Store, run_id: str, ranks: int) -> Outcome | None:
    """Start the data-parallel ranks of a run with torchrun, and wait for their end.

    The loss of a rank ends all ranks. torchrun does not retry: the queue retries the run from its
    checkpoint.
    """
    stop = _stop_signal(None)
    options = f"torch.distributed.run --standalone --nproc-per-node {ranks} --max-restarts 0"
    words = [*options.split(), "-m", "llama_ablate.launch.worker", str(store.root), run_id]
    # A rank's parent is torchrun, which does not watch its own parent.
    ours = {"LLAMA_ABLATE_PARENT": "", "LLAMA_ABLATE_SPREAD": myself()}
    with Program(words, store.log(run_id), **ours) as torchrun:
        code = torchrun.wait(stop)
    if code and not stop():
        raise ChildProcessError(f"torchrun ended with exit code {code}")
    record = store.record(run_id)
    return "cancelled" if stop() else record.outcome if record else None


def _run(
    store: Store, run_id: str, plan: PlanDocument, lease: Lease | None, ranks: Ranks
) -> Outcome | None:
    stop = _stop_signal(lease)  # before anything slow
    planned, table = plan.runs[run_id], plan.table_of(run_id)
    variant = table.variant(planned.variant)
    text = table.text_of(variant)
    train_config, readings = planned.train_config(plan.experiment.train), plan.readings(table)
    compute = Compute.of(plan.compute).trained_as(train_config)
    configure_process(compute.threads, compute.device)
    peak = PeakMemory(compute.device)
    weights: dict[str, torch.Tensor] = {}
    metrics: dict[str, Measurement] = {}
    per_step = train_config.batch * variant.model["context"]
    working = store.working(run_id)
    sinks = _open_sinks(store, run_id) if lease else None
    about = working, run_id, planned.steps, per_step, peak.read
    noted = LiveNote(*about) if lease else nullcontext()
    try:
        tokens = open_tokens(text)
        model = new_model(spec_from(variant.model), planned.init_seed)
        with noted as note:
            trained = train(
                model,
                tokens,
                train_config,
                steps=planned.steps,
                seed=planned.order_seed,
                init_seed=planned.init_seed,
                compute=compute,
                saved=working,
                checkpoint_s=plan.settings.checkpoint_s,
                progress=_progress(note, sinks),
                stop=stop,
                ranks=ranks,
                batches=open_batches(plan, text, variant, tokens),
                reading=readings[""],
            )
            if trained.outcome == "cancelled" or lease is None:
                return trained.outcome  # the first rank, or the next process, does the rest
            memory = peak.read()
            trim_memory()
            if trained.outcome in ("ok", "collapsed"):  # the weights are finite
                if plan.settings.plugins:
                    _check_prefixes(model, tokens, compute)
                subject = Subject(model, tokens, train_config, compute)
                choices = [METRICS.resolve(entry) for entry in plan.experiment.measure]
                choices = [c for c in choices if METRICS.per(c.name) == "run"]
                metrics |= METRICS.measure_all(choices, subject, readings)
            weights = model.state_dict()
        metrics["training"] = Measurement(tuple(trained.values))
        tokens.check()
    except _TakenOver:
        raise
    except Exception as error:  # the other runs go on
        if lease is None or is_lost(error):
            raise
        memory = peak.read()
        trained = _failed(error, working)
    record = make_record(
        plan,
        run_id,
        compute,
        outcome=trained.outcome,
        reason=trained.reason,
        steps_done=trained.steps_done,
        tokens_done=trained.steps_done * per_step,
        train_s=trained.train_s,
        peak_memory_bytes=memory,
        metrics=metrics,
    )
    keep = trained.outcome == "ok" and plan.settings.keep_weights != "none"
    write_weights = partial(save_weights, weights, tied=variant.model["tie"]) if keep else None
    if not store.commit(record, trained.curve, write_weights, lease):
        return None
    if sinks:
        _close_sinks(sinks, store, trained, record)
    return trained.outcome


def _open_sinks(store: Store, run_id: str) -> Sinks:
    """Open the sinks of a run, without those that failed in an earlier run."""
    names = [
        name
        for name in store.plan.settings.track
        if not (getattr(SINKS.get(name), "at_end", False) or store.track_log(name).exists())
    ]
    return Sinks(names, store.track, TrackedRun.of(store.plan, run_id))


def _close_sinks(sinks: Sinks, store: Store, trained: Trained, record: Record) -> None:
    """Send the end of a run to its sinks, and note each failure in the sink's log."""
    sinks.send(trained.curve)
    sinks.finish(record)
    for name, reason in sinks.failures.items():
        with suppress(OSError), os.fdopen(disk.append(store.track_log(name)), "a") as log:
            log.write(f"{reason}\n")


def _check_prefixes(model: Decoder, tokens: Tokens, compute: Compute) -> None:
    """Check on held-out text that the trained model's predictions depend on no later tokens.

    Raises ConfigError if a prediction depends on tokens after its position.
    """
    context = model.spec.context
    for split in tokens.heldout:
        text = torch.from_numpy(tokens.split(split)[: 2 * context].astype("int64"))
        windows = text[: len(text) // context * context].view(-1, context)
        if len(windows) and (fault := predicts_from_prefix(model, windows.to(compute.device))):
            raise ConfigError(f"{split} text: {fault}")


def _failed(error: Exception, saved: Path) -> Trained:
    """Convert an exception to a run's outcome: `oom` if memory ran out, else `error`.

    torch reports a lack of memory by several types of exceptions and messages. If tokens were
    damaged, the checkpoints in `saved` are deleted.
    """
    if isinstance(error, DamagedError):  # the checkpoints may come from damaged tokens
        checkpoint.forget(saved)
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    is_torch_oom = isinstance(error, RuntimeError) and any(
        words in text for words in _OUT_OF_MEMORY
    )
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or is_torch_oom:
        return Trained("oom", text)
    if isinstance(error, ConfigError):  # its message is complete
        return Trained("error", text)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    traceback.print_exception(error, file=sys.stderr)
    return Trained("error", f"{type(error).__name__}: {text} ({where})")


class _TakenOver(Exception):  # noqa: N818  not an error: another process has the run now
    """Signal that the run's lease expired, and that another process has acquired the run."""


def _stop_signal(lease: Lease | None) -> Callable[[], bool]:
    """Return a function that checks whether this process has received a stop signal.

    The returned function raises _TakenOver if the lease is lost, since nothing more may be written
    then.
    """
    signals: list[int] = []

    def remember(number: int, _frame: Any) -> None:
        signals.append(number)

    def stop() -> bool:
        if lease and not lease.held:
            raise _TakenOver
        return bool(signals)

    if threading.current_thread() is threading.main_thread():
        # SIGUSR2 means that a batch system reclaims the machine, SIGHUP that the terminal closed.
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, remember)
    return stop


def _parent() -> int:
    """Return the parent's process id from the environment, or else from the system.

    The launcher sets the variable, since it may have ended before the system is asked.
    """
    return int(os.environ.get("LLAMA_ABLATE_PARENT") or os.getppid())


def _orphaned(parent: int, spread: str) -> None:
    """Block until this process's parent, or the worker that started its ranks, has ended."""
    while os.getppid() == parent and alive(spread) is not False:
        time.sleep(0.2)


def _progress(note: LiveNote | None, sinks: Sinks | None) -> Progress:
    """Return the training loop's callback, which updates the run's live note and its sinks."""

    def update(step: int, loss: float, curve: Sequence[CurvePoint]) -> None:
        if note:
            note(step, loss, curve)
        if sinks:
            sinks.send(curve)

    return update


def main(arguments: Sequence[str] | None = None) -> int:
    """Process entry point: `python -m llama_ablate.launch.worker RESULTS RUN`.

    Exit codes: 0 if the run has a record; 2 if it is refused; 75 (retry) if it was stopped or
    another process has leased it.
    """
    prog = "python -m llama_ablate.launch.worker"
    parser = ArgumentParser(prog=prog, description="Train, measure and commit one run of a plan.")
    parser.add_argument("results", type=Path, help="the results of an experiment that was planned")
    parser.add_argument("run", help="the id of a run of its plan")
    options = parser.parse_args(arguments)
    try:
        return _as_program(Store.open(options.results), options.run)
    except (ConfigError, OSError) as error:
        sys.stderr.write(f"{prog}: {error}\n")
        return REFUSED


def _as_program(store: Store, run_id: str) -> int:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        run(store.root, run_id)
        return 0  # otherwise torchrun would report the other ranks as lost
    _wait_out(store.working(run_id))
    outcome = run(store.root, run_id)
    ended = outcome not in (None, "cancelled") or store.is_final(run_id)
    return 0 if ended else _STOPPED


def _wait_out(folder: Path) -> None:
    """Wait until the lease of a dead process on another machine has expired."""
    watch, until = Watch(), time.monotonic() + 2 * lease_timeout()
    while watch.waits(folder) and time.monotonic() < until:
        time.sleep(lease_timeout() / 10)


if __name__ == "__main__":
    leave_after(partial(_orphaned, _parent(), os.environ.get("LLAMA_ABLATE_SPREAD", "")))
    sys.exit(main())
