"""The command `plan`: show what `run` would do, without training."""

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
    from llama_ablate.findings.power import Pilot
    from llama_ablate.results.plan_document import PlanDocument

HELP = "show variants, exact sizes, runs and predicted time; train nothing"
EXAMPLE = "plan experiments/first.yaml --set variants.match=flops"


@dataclass(frozen=True, kw_only=True)
class PlanOptions(RunOptions):
    """Options of `plan`: all options of `run`, and the difference for a power analysis."""

    power: str | None = option(
        None,
        "how many seeds would show X, and what they cost; with looks, how many runs to expect",
        '"X nats"',
        difference,
    )
    pilot: Path | None = option(
        None,
        "finished results whose noise to plan with (default: results/NAME)",
        "DIR",
    )


def run(options: PlanOptions) -> Answer:
    """Show an experiment's variants, sizes and runs, and forecast time, disk and memory."""
    from llama_ablate.config import experiment
    from llama_ablate.terminal import say

    say(f"reading {options.file}")
    return show_plan(experiment.load(options.file, options.sets), options)


def show_plan(source: "ExperimentFile", options: PlanOptions) -> Answer:
    """Show the plan of a loaded experiment.

    `source` comes from an experiment file, or from a ledger of the command `judge`.
    """
    from llama_ablate.data import tokens
    from llama_ablate.terminal import say

    tokens.check_corpora(source)
    say("planning")
    from llama_ablate.commands.shared import forecast_tables
    from llama_ablate.design import checks, forecast, variants
    from llama_ablate.design.plan import make
    from llama_ablate.launch import local
    from llama_ablate.report import warnings
    from llama_ablate.results import Settings
    from llama_ablate.training.compute import choose, free_bytes, measured, pick_device

    device = pick_device(options.launch.device)
    plan = make(source)
    spec, train, parallel = plan.baseline.spec, plan.experiment.train, plan.experiment.parallel
    with source.located():  # errors for settings that do not fit this machine
        checks.check_precisions(plan.tables, device)
        compute = replace(choose(spec, train, device), ranks=parallel.data)
        need = forecast.largest_memory(plan, compute)
        short = forecast.check_memory(need, device)
    say("timing a training step")
    compute = measured(spec, train, compute)
    # The forecast uses FLOPs in place of measured seconds per step.
    plan = plan.paced(lambda table: [table.counts[v.id].work for v in table.variants])
    workers = local.default_workers(device, parallel.data)
    fitting = max(1, free_bytes(device) // (need.bytes * parallel.data))
    workers = options.launch.workers or min(workers, fitting * local.devices(device))
    document = plan.document(compute, Settings()).named()
    predicted = forecast.forecast(document, compute, workers, need)
    pilot = _open_pilot(options.pilot, predicted)
    with source.located():  # errors for an equivalence that cannot be shown
        margin_values, needed = _margin(predicted, pilot)
    output = forecast_tables.list_forecast(predicted, needed)
    values = predicted.to_dict(warnings.planned) | margin_values
    resets = [
        str(source.locate(error))
        for error in variants.find_reset_options(plan.experiment.model, source.base_model)
    ]
    values["resets"] = resets
    values["notes"] = [*plan.notes]
    if notes := [*resets, *plan.notes]:
        output.append("\n".join(f"note: {line}" for line in notes))
    if short:
        output.append(f"warning: {short}")
    if options.power:
        power_values, said = _power(options.power, pilot, predicted)
        values |= power_values
        output += said
    return Answer(output, values)


def _power(
    effect_asked: str, pilot: "tuple[Pilot, Path] | None", predicted: "Forecast"
) -> "tuple[dict[str, Any], list[str | pd.DataFrame]]":
    """Compute the power analysis of `--power`, as values and as output for a terminal.

    Raises ConfigError without a pilot (finished results that give the noise), or if the effect has
    another unit than the losses.
    """
    from llama_ablate.commands.shared import forecast_tables
    from llama_ablate.config import margins
    from llama_ablate.findings import power

    effect, unit = margins.read(effect_asked)
    plan = predicted.plan
    if unit != (loss_unit := plan.tables[0].unit).name:
        raise ConfigError(f"--power '{effect_asked}': losses compare in {loss_unit.name} here")
    if pilot is None:
        raise ConfigError(
            f"--power needs noise to plan with: there are no results at "
            f"'results/{plan.experiment.slug}'; give finished results with --pilot"
        )
    promised, whose = power.promise(plan, pilot[0], effect), f"the noise of '{pilot[1]}'"
    values: dict[str, Any] = {"power": promised.rows, "noise": whose}
    cells = forecast_tables.power(
        promised.rows, effect_asked, predicted.seeds, predicted.most.predicted_s
    )
    output: list[str | pd.DataFrame] = [
        f"from {whose}; simulated with the rules of the report, power 0.8:",
        cells,
    ]
    if promised.runs:
        values["expected_runs"] = promised.runs
        output.append(
            f"expected runs with these looks, without controls: {promised.runs:.0f} of at most "
            f"{predicted.most.runs}"
        )
    return values, output


def _margin(
    predicted: "Forecast", pilot: "tuple[Pilot, Path] | None"
) -> tuple[dict[str, Any], str]:
    """Predict the half width of a variant's confidence interval, as values and as text.

    The text compares the half width with the equivalence margin that the experiment states.
    """
    from llama_ablate.commands.shared import forecast_tables
    from llama_ablate.config import margins
    from llama_ablate.findings import power

    margin_text = predicted.plan.experiment.margin
    margin, table = margins.loss_margin(margin_text), predicted.plan.tables[0]
    if margin is None:
        return {}, "none is stated, so no row can be equivalent"
    if len([variant for variant in table.variants if not variant.role]) == 1:
        return {}, f"{margin_text}; no variant is compared with the baseline"
    if table.unit.name != margins.NATS and pilot is None:
        return {}, f"{margin_text}; in {table.unit.name} a pilot tells the noise (see --pilot)"
    expected = power.expect(predicted.plan, pilot[0] if pilot else None, margin)
    expected["noise"] = f"the noise of '{pilot[1]}'" if pilot else "other experiments"
    expected["is_measured"] = pilot is not None
    if pilot:
        _refuse_equivalences(predicted.plan, pilot[0])
    return {"expected": expected}, forecast_tables.expected(expected, predicted)


def _refuse_equivalences(plan: "PlanDocument", pilot: "Pilot") -> None:
    """Raise ConfigError for hypotheses of equal loss that cannot be shown at the pilot's noise."""
    from llama_ablate.findings import power

    for i, entry in enumerate(plan.hypotheses):
        if entry.direction != "equivalent" or entry.measure or entry.force:
            continue
        expected = power.expect(plan, pilot, entry.size)
        if not expected["is_enough"]:
            need = expected["seeds_needed"]
            raise ConfigError(
                f"equivalence within {entry.margin} cannot be shown: by the pilot half an interval "
                f"is {expected['half_width']:.2g}; {f'take {need} seeds, ' if need else ''}"
                "state a larger margin, or 'force: true'",
                ("hypotheses", i, "margin"),
            )


def _open_pilot(stated: Path | None, predicted: "Forecast") -> "tuple[Pilot, Path] | None":
    """Return the noise estimate and folder of the pilot results.

    The pilot is the stated folder, or by default the folder of the experiment's own results. Return
    None if neither folder exists. Raises ConfigError for a stated pilot without an estimate of
    noise, and for a pilot whose losses have another unit.
    """
    from llama_ablate.findings.frames import Frames
    from llama_ablate.findings.power import Pilot
    from llama_ablate.results import Results

    path = stated or Path("results") / predicted.plan.experiment.slug
    if not (stated or path.exists()):
        return None
    table = Frames.of(Results.open(path)).table
    if table.unit != predicted.plan.tables[0].unit:
        raise ConfigError(f"--pilot: losses of '{path}' compare in {table.unit.name}")
    if not (stated or Pilot.can_be(table)):
        return None
    return Pilot.of(table, path), path
