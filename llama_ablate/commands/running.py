"""The command `run`: from an experiment file to records and a report."""

import shutil
import sys
from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from llama_ablate.commands import notes
from llama_ablate.commands.answer import Answer
from llama_ablate.config import plugins
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.results import Results, Settings, Still, Store, folders
from llama_ablate.results.plan import PlanDocument
from llama_ablate.results.still import legacy
from llama_ablate.terminal import in_one_line

if TYPE_CHECKING:
    from llama_ablate.config.experiment import Source
    from llama_ablate.design.plan import Plan
    from llama_ablate.launch.queue import Launcher
    from llama_ablate.training.compute import Compute

_BARS = 32  # more would fill any terminal
_EXTRAS = {"ray": "ray", "slurm": "submitit"}


def run(options: Namespace) -> Answer:
    """Train, measure and report an experiment; continue one that was stopped."""
    from llama_ablate.config import experiment
    from llama_ablate.launch import processes

    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"--workers {options.workers}: must be 1 or more")
    _check_launcher(options)
    source = experiment.load(options.file, tuple(options.sets))
    processes.warm()  # before the imports below, which take as long as the server's own
    from llama_ablate.design.plan import make
    from llama_ablate.launch import measurement
    from llama_ablate.launch.progress import Bar, Progress
    from llama_ablate.launch.queue import Queue
    from llama_ablate.training.compute import pick_device

    device = pick_device(options.device)
    made = make(source)
    if options.keep_weights == "best" and all(c.name != "perplexity" for c in made.measures):
        raise ConfigError(
            "--keep-weights best: the best are chosen by the validation loss; "
            "'measure' needs 'perplexity'"
        )
    store = Store(options.results / made.experiment.slug)
    store.prepare()
    try:
        made, compute, settings = _planned(options, source, made, store, device)
    except (ConfigError, OSError):
        if not store.plan_file.exists():
            folders.remove_empty(store.root)
        raise
    ids = [run.id for run in made.runs]
    notes.left_out(store, set(ids))
    with Bar("verifying what is there") as bar:
        for damaged in store.verify(ids, lambda done: bar.update(done, len(ids))):
            notes.note(f"damaged, kept as '{damaged}', and trained again")
    store.sweep()
    with (
        _launcher(options, store, device, compute.ranks, _workers(options, made)) as launcher,
        Progress(made.experiment.name, min(launcher.slots, len(ids), _BARS)) as progress,
    ):
        Queue(store, made, compute, settings, progress).work(launcher)
    store.sweep(unfinished=False)  # where a worker came late to what another had finished
    with Bar("measuring, variants in turn") as bar:
        measurement.measure_variants(store, made, compute, bar.update)
    return reported(Results(store))


def _workers(options: Namespace, made: "Plan") -> int | None:
    """Return how many runs at a time were asked for, if any: at most as many as there are."""
    asked: int | None = options.workers
    return asked and min(asked, len(made.runs))


def _planned(
    options: Namespace, source: "Source", made: "Plan", store: Store, device: str
) -> "tuple[Plan, Compute, Settings]":
    """Choose how to compute, and write down the plan. Raises ConfigError where that fails."""
    from llama_ablate.launch import local, measurement
    from llama_ablate.training.compute import Compute

    notes.mend(store)
    train = made.experiment.train
    try:
        chosen = store.kept(
            "compute",
            f"device {device}, precision {train.precision}, kernel {train.kernel}",
            lambda: measurement.choose_compute(made, device, store.log("compute")).to_dict(),
        )
    except ConfigError as error:  # it does not fit this machine
        raise source.locate(error) from None
    compute = replace(Compute.from_dict(chosen), ranks=made.experiment.parallel.data)
    made = made.paced(measurement.pace(store, compute))
    settings = Settings(options.keep_weights, options.checkpoint_every, plugins.loaded())
    planned = made.document(compute, settings)
    # How many a cluster will take at a time is not known before: perhaps all.
    elsewhere = options.launcher == "slurm" or options.ray_address
    most = len(made.runs) if elsewhere else local.default_workers(device, compute.ranks)
    _check_room(store, planned, min(_workers(options, made) or most, len(made.runs)))
    overrides = "".join(f"# --set {text}\n" for text in options.sets)
    store.create(planned, overrides + source.text)
    return made, compute, settings


def _check_room(store: Store, plan: PlanDocument, workers: int) -> None:
    """Raise ConfigError where the disk has less room than the runs will need."""
    from llama_ablate.report import planned

    done = store.runs.final_ids()
    needed = planned.disk_bytes(legacy(plan), workers, done)
    free = shutil.disk_usage(store.root).free
    keep = plan.settings.keep_weights
    if needed[keep] > free:
        raise ConfigError(
            f"the runs need up to {planned.size(needed[keep])} in '{store.root}', and "
            f"{planned.size(free)} are free; with --keep-weights best "
            f"{planned.size(needed['best'])}, with none {planned.size(needed['none'])}"
        )


def _check_launcher(options: Namespace) -> None:
    """Raise ConfigError for a launcher that is not installed, and for options of another one."""
    name = options.launcher
    if name in _EXTRAS and find_spec(_EXTRAS[name]) is None:
        raise ConfigError(f"--launcher {name} needs the extra: pip install 'llama-ablate[{name}]'")
    if name == "slurm" and shutil.which("sbatch") is None:
        raise ConfigError("--launcher slurm: this machine has no command 'sbatch'")
    for given, flag, of in (
        (options.ray_address, "--ray-address", "ray"),
        (options.slurm, "--slurm", "slurm"),
    ):
        if given and name != of:
            raise ConfigError(f"{flag} goes with --launcher {of}, not {name}")


def _launcher(
    options: Namespace, store: Store, device: str, ranks: int, workers: int | None
) -> "AbstractContextManager[Launcher]":
    """Return the launcher that is asked for; it is there inside `with`."""
    if options.launcher == "ray":
        from llama_ablate.launch.ray import Ray

        return Ray(store, device, workers, options.ray_address, ranks)
    if options.launcher == "slurm":
        from llama_ablate.launch.slurm import Slurm

        return Slurm(store, device, workers, dict(options.slurm), ranks)
    from llama_ablate.launch import local

    workers = workers or local.default_workers(device, ranks)
    return nullcontext(local.Local(store, device, workers, ranks))


def reported(results: Results) -> Answer:
    """Write the report of what has finished, and say what is in it."""
    from llama_ablate.report import frames, page, tables, warned
    from llama_ablate.report.sections import sections

    lock = results.lock_report()
    store = Still(results.root, plan=results.plan_name, results=results)
    found = sections(store)
    with lock:
        for partial in store.report.rglob(f"{disk.PARTIAL}*"):  # of one that was killed
            disk.remove(partial)
        written = page.write(store, found)
    notes.tell(results)
    failed = not frames.every_run(store)["outcome"].isin(["ok", "pending"]).all()
    warnings = warned.warnings(store)
    for warning in warnings:
        sys.stderr.write(f"note: {in_one_line(warning)}\n")
    first = found[0].table
    shown = [
        ("" if section.title == "Comparison" else f"{section.title}\n\n")
        + tables.text(section.cells)
        for section in found
        if section.key == "comparison" or section.table in ("", first)
        if section.key != "steadiness"
    ]
    lines = [*shown, f"{page.answer(frames.comparison(store))}\nreport: {written}"]
    values: dict[str, Any] = {"comparison": [], "factors": [], "hypotheses": []}
    for section in found:
        rows = section.frame.to_dict("records")
        of = {"table": section.table} if section.table else {}
        values.setdefault(section.key, []).extend([{**of, **row} for row in rows])
    values |= {"report": str(written), "warnings": warnings}
    return Answer("\n\n".join(lines), values, code=1 if failed else 0)
