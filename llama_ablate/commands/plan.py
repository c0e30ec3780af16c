"""The command `plan`: what `run` would do, without training."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_ablate.commands.run import RunOptions
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import (
    difference,
    option,
)
from llama_ablate.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

    from llama_ablate.config.experiment import ExperimentFile
    from llama_ablate.design.forecast import Forecast
    from llama_ablate.evidence.noise import NoiseMemory
    from llama_ablate.findings.power import Known

_MOST_ARMS = 40  # whose tables are drawn in a second or two
HELP = "show variants, exact sizes, runs and predicted time; train nothing"
EXAMPLE = "plan experiments/quickstart.yaml --set variants.match=flops"


@dataclass(frozen=True, kw_only=True)
class PlanOptions(RunOptions):
    """Options of `run`, and the difference for a power analysis."""

    power: str | None = option(
        None,
        "how many seeds would show X, and what they cost; with looks, how many runs to expect",
        '"X nats"',
        difference,
    )
    pilot: Path | None = option(
        None,
        "with --power: whose noise to plan with (default: results/NAME, else that of earlier "
        "experiments)",
        "DIR",
    )


def run(options: PlanOptions) -> Answer:
    """Show the variants, sizes and runs of an experiment, with their forecast."""
    from llama_ablate.config import experiment
    from llama_ablate.terminal import say

    if options.pilot is not None and options.power is None:
        raise ConfigError(
            "--pilot: its noise is for --power: give one, such as --power '0.02 nats'"
        )
    say(f"reading {options.file}")
    return of_source(experiment.load(options.file, options.sets), options)


def of_source(source: "ExperimentFile", options: PlanOptions) -> Answer:
    """Show the plan of a loaded experiment, from a file or a ledger."""
    from llama_ablate.data import tokens
    from llama_ablate.terminal import say

    tokens.look(source)
    say("planning")
    from llama_ablate.commands.shared import forecast_tables
    from llama_ablate.design import checks, forecast, variants
    from llama_ablate.design.plan import make
    from llama_ablate.findings import noise
    from llama_ablate.launch import local
    from llama_ablate.report import warnings
    from llama_ablate.results import Settings
    from llama_ablate.training.compute import choose, free_bytes, measured, pick_device

    device = pick_device(options.launch.device)
    plan = make(source)
    spec, train, parallel = plan.baseline.spec, plan.experiment.train, plan.experiment.parallel
    with source.located():  # what does not fit this machine
        checks.check_precisions(plan.tables, device)
        compute = replace(choose(spec, train, device), ranks=parallel.data)
        need = forecast.largest_memory(plan, compute)
        short = forecast.check_memory(need, device)
    say("timing a training step")
    compute = measured(spec, train, compute)
    # A forecast: FLOPs stand in for measured seconds.
    plan = plan.paced(lambda table: [table.counts[v.id].work for v in table.variants])
    workers = local.default_workers(device, parallel.data)
    fitting = max(1, free_bytes(device) // (need.bytes * parallel.data))
    workers = options.launch.workers or min(workers, fitting * local.devices(device))
    expected = noise.stated(source)
    document = noise.expecting(plan.document(compute, Settings()).named(), expected)
    predicted = forecast.forecast(document, compute, workers, need)
    of_margin, needed = _margin(predicted, expected)
    shown = forecast_tables.shown(predicted, needed)
    values = predicted.to_dict(warnings.planned) | of_margin
    resets = [
        str(source.locate(error))
        for error in variants.find_reset_options(plan.experiment.model, source.base_model)
    ]
    values["resets"] = resets
    if resets:
        shown.append("\n".join(f"note: {line}" for line in resets))
    if short:
        shown.append(f"warning: {short}")
    if options.power:
        of_power, said = _power(options.power, options.pilot, predicted, expected)
        values |= of_power
        shown += said
    return Answer(shown, values)


def _power(
    effect_asked: str, pilot: Path | None, predicted: "Forecast", expected: "NoiseMemory | None"
) -> "tuple[dict[str, Any], list[str | pd.DataFrame]]":
    """Return what `--power` asks for, as values and for a terminal."""
    from llama_ablate.commands.shared import forecast_tables
    from llama_ablate.config import margins
    from llama_ablate.findings import power

    effect, unit = margins.read(effect_asked)
    plan = predicted.plan
    if unit != (own := plan.tables[0].unit).name:
        raise ConfigError(f"--power '{effect_asked}': losses compare in {own.name} here")
    known, whose = _noise(pilot, predicted, expected)
    found = power.promise(plan, known, effect)
    values: dict[str, Any] = {"power": found.rows, "noise": whose}
    cells = forecast_tables.power(
        found.rows, effect_asked, predicted.seeds, predicted.most.predicted_s
    )
    shown: list[str | pd.DataFrame] = [
        f"from {whose}; simulated with the rules of the report, power 0.8:",
        cells,
    ]
    if found.runs:
        values["expected_runs"] = found.runs
        shown.append(
            f"expected runs with these looks, without controls: {found.runs:.0f} of at most "
            f"{predicted.most.runs}"
        )
    return values, shown


def _margin(predicted: "Forecast", expected: "NoiseMemory | None") -> tuple[dict[str, Any], str]:
    """Predict the interval widths for the stated margin, where the noise is known."""
    from llama_ablate.commands.shared import forecast_tables
    from llama_ablate.config import margins
    from llama_ablate.findings import power

    stated = predicted.plan.experiment.margin
    margin = margins.of_loss(stated)
    if margin is None:
        return {}, "none is stated, so no row can be equivalent"
    arms = [variant for variant in predicted.plan.tables[0].variants if not variant.role]
    if len(arms) == 1:
        return {}, f"{stated}; no variant is compared with the baseline"
    if predicted.seeds < 2 or len(arms) > _MOST_ARMS:
        return {}, f"{stated}; --power '{stated}' says what it takes"
    try:
        known, whose = _noise(None, predicted, expected)
    except ConfigError:
        return {}, f"{stated}; no noise is known by which to say what it takes (see --pilot)"
    found = {**power.glance(predicted.plan, known, margin), "noise": whose}
    return {"expected": found}, forecast_tables.expected(found, predicted)


def _noise(
    stated: Path | None, predicted: "Forecast", expected: "NoiseMemory | None"
) -> "tuple[Known, str]":
    """Return the noise for planning and its origin: a pilot, otherwise earlier experiments.

    Raises ConfigError without either, and for a pilot whose losses compare in another unit.
    """
    from llama_ablate.findings.frames import Frames
    from llama_ablate.findings.power import Known
    from llama_ablate.results import Results

    pilot = stated or Path("results") / predicted.plan.experiment.slug
    table = predicted.plan.tables[0]
    if stated or pilot.exists():
        frames = Frames.of(Results.open(pilot))
        if frames.table.plan.has_tokenizers != table.has_tokenizers:
            raise ConfigError(f"--pilot: losses of '{pilot}' compare in {frames.table.unit.name}")
        return Known.of_pilot(frames.table, expected, pilot), f"the noise of '{pilot}'"
    kept = expected and expected.without(predicted.plan.experiment.name)
    if known := kept and Known.of_memory(table, kept):
        return known, (
            f"the noise of {kept.experiments} earlier experiments, nearest in size, length and "
            "kind of change"
        )
    why = (
        "earlier experiments are unlike this one" if expected else "`noise: none` leaves out others"
    )
    raise ConfigError(
        f"--power needs noise to plan with: there are no results at '{pilot}', and {why}; give "
        "finished results with --pilot"
    )
