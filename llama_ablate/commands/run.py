"""The command `run`: train and measure an experiment's runs, and write its report."""

import math
import re
import shutil
from argparse import ArgumentTypeError
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import (
    DEVICE,
    Device,
    ExperimentOptions,
    folder,
    option,
    seconds,
)
from llama_ablate.errors import ConfigError, nearest, require
from llama_ablate.terminal import say

if TYPE_CHECKING:
    from llama_ablate.config.experiment import ExperimentFile
    from llama_ablate.launch.queue import Launcher, Queue
    from llama_ablate.results import Store
    from llama_ablate.results.plan_document import PlanDocument

HELP = "train, measure and report; a grid that was stopped goes on"
EXAMPLE = "run experiments/first.yaml --results results --workers 2"
_PACKAGES = {"ray": "ray", "slurm": "submitit"}


def _sbatch_option(text: str) -> tuple[str, str | bool]:
    """Parse an option for sbatch: KEY=VALUE, or KEY alone, whose value is True."""
    match = re.fullmatch(r"-{0,2}([a-z][a-z-]*)(?:=([^\n]*))?", text)
    if match is None:
        raise ArgumentTypeError(f"'{text}' is not KEY=VALUE or KEY")
    return match[1], True if match[2] is None else match[2]


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Options for where runs train."""

    workers: int | None = option(None, "runs at a time (default: one a core, or one a GPU)", "N")
    device: Device = option("auto", DEVICE)
    launcher: Literal["local", "ray", "slurm"] = option(
        "local", "what starts the runs: see docs/launchers.md"
    )
    slurm: tuple[tuple[str, str | bool], ...] = option(
        (), "an option of sbatch, such as time=4:00:00; repeatable", "KEY[=VALUE]", _sbatch_option
    )

    def check(self) -> None:
        """Raise ConfigError for options that do not fit each other."""
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers {self.workers}: must be 1 or more")
        if self.slurm and self.launcher != "slurm":
            raise ConfigError(f"--slurm goes with --launcher slurm, not {self.launcher}")

    def describe_jobs(self, plan: "PlanDocument", device: str, hours: float) -> str:
        """Describe the jobs that a cluster would get; return "" for the local launcher.

        `hours` are the predicted hours of all runs, one after another.
        """
        if self.launcher == "local":
            return ""
        most = f", {self.workers} at a time" if self.workers else ""
        time = f"about {hours:.2g} node hours at this machine's speed"
        ranks, runs = plan.experiment.parallel.data, len(plan.runs)
        if self.launcher == "ray":
            task, there = plan.experiment.ray, "has" if find_spec("ray") else "lacks"
            gpus = f"{ranks * task.gpus:g} GPU(s) and " * (device == "cuda")
            each = f"{gpus}{task.cpus or ranks:g} CPU(s)"
            return f"{runs} task(s) of {each}{most}, {time}; this Python {there} 'ray'"
        from llama_ablate.launch import slurm

        there = "has" if shutil.which("sbatch") else "has no"
        script = slurm.script(device, self.workers, dict(self.slurm), ranks, runs)
        return f"{runs} job(s){most}, {time}; this machine {there} command 'sbatch'\n\n{script}"


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(MachineOptions):
    """Options for launching runs and keeping their files."""

    keep_weights: Literal["none", "best", "all"] = option(
        "all",
        "of finished runs: none, each variant's best in every table, or all "
        "(default), to add metrics later",
    )
    checkpoint_every: float = option(
        30.0, "seconds between checkpoints (default: 30)", "SECONDS", seconds
    )
    ray_address: str | None = option(
        None, "a Ray cluster's head, or auto (default: a Ray of this machine)", "HOST:PORT"
    )
    track: tuple[str, ...] = option(
        (),
        "send curves, metrics and recipes to tensorboard, wandb or mlflow while runs train; "
        "repeatable: see docs/tracking.md",
        "SINK",
    )

    @property
    def is_elsewhere(self) -> bool:
        """True if runs train on a cluster, through Slurm or a Ray address."""
        return self.launcher == "slurm" or bool(self.ray_address)

    def check(self) -> None:
        """Raise ConfigError for a launcher that is not available, or another launcher's options."""
        super().check()
        if self.launcher in _PACKAGES:
            require(_PACKAGES[self.launcher], f"--launcher {self.launcher}")
        if self.launcher == "slurm" and shutil.which("sbatch") is None:
            raise ConfigError("--launcher slurm: this machine has no command 'sbatch'")
        if self.ray_address and self.launcher != "ray":
            raise ConfigError(f"--ray-address goes with --launcher ray, not {self.launcher}")
        if self.ray_address not in (None, "auto"):  # before anything is written
            from llama_ablate.launch.ray import answers

            if not answers(self.ray_address):
                raise ConfigError(f"--ray-address {self.ray_address}: nobody answers there")


@dataclass(frozen=True, kw_only=True)
class RunOptions(ExperimentOptions):
    """Options of `run`: the experiment, its results folder, and the launch."""

    results: Path = option(
        Path("results"), "folder of all results (default: results)", "DIR", folder
    )
    only: tuple[str, ...] = option(
        (), "train the runs of this variant alone, by label or id; repeatable", "VARIANT"
    )
    redo: tuple[str, ...] = option(
        (),
        "train the runs of this variant again; earlier records are moved to redone/, and the "
        "report says so; repeatable",
        "VARIANT",
    )
    launch: LaunchOptions


def run(options: RunOptions) -> Answer:
    """Train, measure and report an experiment; continue one that was stopped."""
    from llama_ablate.config import experiment

    say(f"reading {options.file}")
    return run_source(experiment.load(options.file, options.sets), options)


def run_source(source: "ExperimentFile", options: RunOptions) -> Answer:
    """Train, measure and report a loaded experiment.

    `source` comes from an experiment file, or from a mapping in Python.
    """
    from llama_ablate.commands import report
    from llama_ablate.commands.shared import notes
    from llama_ablate.data import tokens
    from llama_ablate.launch import processes
    from llama_ablate.results import Results, Store, snapshot

    launch = options.launch
    launch.check()
    sinks = _installed_sinks(launch.track)
    tokens.check_corpora(source)
    say("planning")
    processes.warm()  # start the fork server, whose imports run parallel to those below
    from llama_ablate.design import forecast
    from llama_ablate.design.plan import make
    from llama_ablate.launch import local, measurement
    from llama_ablate.launch.progress import Progress
    from llama_ablate.launch.queue import Queue
    from llama_ablate.training.compute import pick_device

    device = pick_device(launch.device)
    plan = make(source)
    metrics = measurement.metrics_of(plan)
    if launch.keep_weights == "best" and all(c.name != "perplexity" for c in metrics):
        raise ConfigError(
            "--keep-weights best: the best are chosen by the validation loss; "
            "'measure' needs 'perplexity'"
        )
    only, redo = (
        _runs_of(plan, names, flag)
        for names, flag in ((options.only, "--only"), (options.redo, "--redo"))
    )
    # Import the report now, while the fork server still imports torch: it takes two seconds, which
    # would otherwise be added after the last run.
    from llama_ablate.report import page as _  # noqa: F401

    store = Store(notes.followed(options.results / plan.experiment.slug))
    store.prepare()
    try:
        plan = _write_plan(launch, source, plan, store, device, sinks)
    except (ConfigError, OSError):
        if not store.plan_file.exists():
            snapshot.remove_empty(store.root)
        raise
    notes.take_failures(store, sinks)  # of an earlier command
    if limits := local.describe_limits():
        notes.note(limits)
    _verify(store, list(plan.runs), redo)
    measuring_s = forecast.measuring_seconds(plan, math.inf)
    with Progress(plan.experiment.name, measuring_s) as progress:
        with _launcher(launch, store, device, plan) as launcher:
            wanted = {run for runs in only.values() for run in runs} if only else None
            _work(Queue(store, plan, progress), launcher, store, plan, wanted)
        store.sweep(unfinished=False)  # a late worker may have left files of a finished run
        if only and not plan.runs.keys() <= store.final_ids():
            notes.note("speeds are measured of all variants together: run without --only for them")
        else:
            if measuring_s:  # the page need not wait for speeds, which may take minutes
                report.write(Results(store.root), aloud=False)
            measurement.measure(store, store.plan, metrics, progress.measure)
    _send_results(store, sinks)
    return report.write(Results(store.root), f"llama-ablate run {options.file}")


def _installed_sinks(names: Sequence[str]) -> tuple[str, ...]:
    """Return the sinks of `--track` whose packages are installed; print a note for each other."""
    from llama_ablate.commands.shared import notes
    from llama_ablate.track.sinks import SINKS, checked

    installed = []
    for name in checked(names, "--track"):
        try:
            if package := getattr(SINKS.get(name), "package", ""):
                require(package, f"--track {name}")
            installed.append(name)
        except ConfigError as error:
            notes.note(f"{error.message}; the runs train without it")
    return tuple(installed)


def _send_results(store: "Store", sinks: Sequence[str]) -> None:
    """Send trackers what only one process may send at the end; print a note for each failure."""
    from llama_ablate.commands.shared import notes
    from llama_ablate.results import Results
    from llama_ablate.track.replay import replay, send_comparison
    from llama_ablate.track.sinks import SINKS

    failures = notes.take_failures(store, sinks)
    results = Results(store.root)
    late = [name for name in sinks if getattr(SINKS.get(name), "at_end", False)]
    failures |= replay(results, late)[1] if late else {}
    if able := [name for name in sinks if name not in failures]:
        failures |= send_comparison(results, able)
    for name, reason in failures.items():
        resend = f"llama-ablate track '{store.root}' --to {name} sends the finished runs again"
        notes.note(f"--track {name}: {reason}; {resend}")


def _verify(store: "Store", ids: Sequence[str], redo: Mapping[str, Sequence[str]]) -> None:
    """Move damaged runs, and the runs that `redo` lists, aside to be trained again.

    Prints a note for each moved run.
    """
    from llama_ablate.commands.shared import notes
    from llama_ablate.terminal import Bar

    notes.left_out(store, set(ids))
    with Bar("verifying what is there") as bar:
        for damaged in store.verify(ids, lambda done: bar.update(done, len(ids))):
            notes.note(f"damaged, kept as '{damaged}', and trained again")
    for label, runs in redo.items():
        for moved in store.redo(label, runs):
            notes.note(f"trained again; its earlier record is kept as '{moved}'")
    store.sweep()


def _runs_of(plan: "PlanDocument", names: Sequence[str], flag: str) -> dict[str, list[str]]:
    """Return the run ids of the named variants, by variant label.

    Names are labels or ids. Raises ConfigError, which states the command-line `flag`, for an
    unknown name.
    """
    run_ids: dict[str, list[str]] = {}
    for name in names:
        called = plan.called(name)
        labels = {variant.id: variant.label for variant, _ in plan.arms}
        if not called:
            hint = nearest(name, labels.values())
            raise ConfigError(f"{flag} {name}: no variant is called so{hint}")
        runs = [run.id for run in plan.runs.values() if run.variant in called]
        run_ids[labels[plan.runs[runs[0]].variant]] = runs
    return run_ids


def _work(
    queue: "Queue",
    launcher: "Launcher",
    store: "Store",
    plan: "PlanDocument",
    only: Collection[str] | None,
) -> None:
    """Train the runs, in one or several stages, until no further run is needed.

    In an experiment with stages, the results so far decide which runs are needed. `only` restricts
    training to the given run ids; None allows all runs.
    """
    from llama_ablate.findings.frames import Frames
    from llama_ablate.results import Results

    if not plan.experiment.is_staged:
        return queue.work(launcher, only)
    tried: set[str] = set()
    while True:
        stage = Frames.of(Results(store.root)).stage
        final = store.final_ids()
        wanted = {run for run in stage.runs if run in final or run not in tried}
        wanted = wanted if only is None else wanted & {*only}
        if wanted <= final:
            return None
        least, most = len(stage.runs), stage.most
        queue.work(launcher, wanted, f"{stage.name}: {least} runs so far, at most {most}")
        tried |= wanted


def _write_plan(
    launch: LaunchOptions,
    source: "ExperimentFile",
    plan: "PlanDocument",
    store: "Store",
    device: str,
    sinks: tuple[str, ...],
) -> "PlanDocument":
    """Choose device, precision and kernel, and write the plan to the results folder.

    Raises ConfigError for an experiment that this machine cannot run, and if writing fails.
    """
    from llama_ablate.commands.shared import notes
    from llama_ablate.config import plugins
    from llama_ablate.design import checks, forecast
    from llama_ablate.design.plan import paced
    from llama_ablate.launch import local, measurement
    from llama_ablate.results import Settings
    from llama_ablate.training.compute import Compute, choose

    train = plan.experiment.train
    request = f"device {device}, precision {train.precision}, kernel {train.kernel}"
    request += f", compile {train.compile}" * (train.compile != "never")
    spec = plan.tables[0].baseline.spec
    sizes = f"dim {spec.dim}, context {spec.context}, batch {train.batch // train.accumulate}"
    with source.located():  # errors for settings that do not fit this machine
        checks.check_precisions(plan.tables, device)
        needed = forecast.largest_memory(plan, choose(spec, train, device))
        forecast.check_memory(needed, device)
        chosen = store.measure_once(
            "compute",
            f"{request}, {sizes}",
            lambda: choose(spec, train, device).to_dict(),
        )
    compute = replace(Compute.from_dict(chosen), ranks=plan.experiment.parallel.data)
    plan = paced(plan, measurement.measure_step_times(store, plan, compute))
    settings = Settings(launch.keep_weights, launch.checkpoint_every, plugins.loaded(), sinks)
    plan = plan.model_copy(update={"compute": compute, "settings": settings})
    # On a cluster the number of concurrent runs is unknown beforehand: at most, all runs.
    most = len(plan.runs) if launch.is_elsewhere else local.default_workers(device, compute.ranks)
    _check_room(store, plan, min(launch.workers or most, len(plan.runs)))
    notes.changed_texts(store, plan.tables)
    store.create(plan, source.text)
    texts = {text.fingerprint: text for table in plan.tables for text in table.texts}
    store.keep_tokenizers(
        {key: text.opened["corpus"].tokenizer.to_json() for key, text in texts.items()}
    )
    say(f"{len(plan.runs):,} runs of {len(plan.arms):,} variants")
    return plan


def _check_room(store: "Store", plan: "PlanDocument", workers: int) -> None:
    """Raise ConfigError if the disk has less free space than the runs may need."""
    from llama_ablate.design.forecast import disk_bytes
    from llama_ablate.evidence.written import size

    needed = disk_bytes(plan, workers, store.final_ids())
    free = shutil.disk_usage(store.root).free
    needed_bytes = needed[plan.settings.keep_weights]
    if needed_bytes > free:
        fits = [kind for kind in ("best", "none") if needed[kind] <= free]
        instead = [f"; --keep-weights {kind} takes {size(needed[kind])}" for kind in fits]
        raise ConfigError(
            f"the runs need up to {size(needed_bytes)} in '{store.root}', and {size(free)} are free"
            + "".join(instead)
        )


def _launcher(
    launch: LaunchOptions,
    store: "Store",
    device: str,
    plan: "PlanDocument",
) -> "AbstractContextManager[Launcher]":
    """Return the launcher that `--launcher` names, as a context manager."""
    ranks = plan.experiment.parallel.data
    workers = launch.workers and min(launch.workers, len(plan.runs))
    if launch.launcher == "ray":
        from llama_ablate.launch.ray import Ray

        return Ray(store, device, workers, launch.ray_address, ranks, plan.experiment.ray)
    if launch.launcher == "slurm":
        from llama_ablate.launch.slurm import Slurm

        return Slurm(store, device, workers, dict(launch.slurm), ranks)
    from llama_ablate.launch import local

    workers = workers or min(local.default_workers(device, ranks), len(plan.runs))
    return nullcontext(local.Local(store, device, workers, ranks))
