"""The command `plan`: what `run` would do, without training."""

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_ablate.commands import options as shared
from llama_ablate.commands.answer import Answer
from llama_ablate.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from llama_ablate.report.forecast import Forecast

HELP = "show variants, exact sizes, runs and predicted time; train nothing"
EXAMPLE = "plan experiments/quickstart.yaml --set variants.match=flops"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the experiment, and which difference it is to show."""
    shared.add_experiment(parser)
    shared.add_wide(parser)
    shared.add_device(parser)
    parser.add_argument(
        "--power",
        type=shared.difference,
        metavar='"X nats"',
        help="how many seeds would show X, and what they cost; with looks, how many runs to expect",
    )
    parser.add_argument(
        "--pilot",
        type=Path,
        metavar="DIR",
        help="with --power: whose noise to plan with (results/NAME)",
    )


def run(options: Namespace) -> Answer:
    """Show the variants, sizes and runs of an experiment, and what they would take."""
    from llama_ablate.config import experiment
    from llama_ablate.data import tokens
    from llama_ablate.terminal import say

    if options.pilot is not None and options.power is None:
        raise ConfigError("--pilot: its noise is for --power: give one, such as --power 0.02")
    say(f"reading {options.file}")
    source = experiment.load(options.file, tuple(options.sets))
    tokens.look(source)
    say("planning")
    from llama_ablate.design import grid, memory
    from llama_ablate.design.plan import make
    from llama_ablate.launch import local
    from llama_ablate.model.decoder import REGISTRIES
    from llama_ablate.model.memory import free_bytes
    from llama_ablate.report import forecast, forecast_tables
    from llama_ablate.results import Settings
    from llama_ablate.training.compute import Work, choose, measured, pick_device

    device = pick_device(options.device)
    plan = make(source)
    spec, train = plan.baseline.spec, plan.experiment.train
    try:
        compute = choose(spec, train, device)
    except ConfigError as error:  # it does not fit this machine
        raise source.locate(error) from None
    say("timing a training step")
    compute = measured(spec, train, compute, Work(*plan.work))
    # A forecast: FLOPs stand in for measured seconds.
    plan = plan.paced(lambda table: [table.counts[v.id].flops_per_token for v in table.variants])
    workers = local.default_workers(device, plan.experiment.parallel.data)
    parallel = plan.experiment.parallel
    compute = replace(compute, ranks=parallel.data, shards=parallel.shard)
    say("forecasting memory")
    need = memory.needed(plan, compute)
    if need:
        workers = min(
            workers, memory.fitting(need, free_bytes(device), compute) * local.devices(device)
        )
    predicted = forecast.forecast(plan.document(compute, Settings()), compute, workers, need)
    shown, values = forecast_tables.shown(predicted), predicted.to_dict()
    resets = [
        str(source.locate(error))
        for error in grid.resets(plan.experiment.model, source.base_model, REGISTRIES)
    ]
    values["resets"] = resets
    if resets:
        shown.append("\n".join(f"note: {line}" for line in resets))
    if options.power is not None:
        of_power, said = _power(options, predicted)
        values |= of_power
        shown += said
    return Answer(shown, values)


def _power(
    options: Namespace, predicted: "Forecast"
) -> "tuple[dict[str, Any], list[str | pd.DataFrame]]":
    """Return what `--power` asks for, as values and for a terminal."""
    from llama_ablate.config import margins
    from llama_ablate.report import forecast, forecast_tables
    from llama_ablate.report.frames import Frames
    from llama_ablate.results import Results

    effect, unit = margins.read(options.power)
    pilot = options.pilot or Path("results") / predicted.plan.experiment.slug
    try:
        frames = Frames.of(Results.open(pilot))
    except ConfigError as error:
        raise ConfigError(
            f"--power takes the noise of a finished pilot: {error}; give one with --pilot"
        ) from None
    if unit != frames.table.unit.name:
        raise ConfigError(f"--power: losses of {pilot} compare in {frames.table.unit.name}")
    values: dict[str, Any] = {"power": forecast.power(frames, effect, predicted)}
    seeds = forecast_tables.power(values["power"], options.power, predicted.seeds)
    shown: list[str | pd.DataFrame] = [f"from the noise of {pilot}, with a power of 0.8:", seeds]
    if expected := forecast.expected_runs(frames, effect, predicted.plan):
        values["expected_runs"] = expected
        shown.append(
            f"expected runs with these looks, without controls: {expected:.0f} of at most "
            f"{predicted.most.runs}"
        )
    return values, shown
