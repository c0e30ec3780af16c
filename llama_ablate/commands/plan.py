"""The command `plan`: show what `run` would do, without training."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_ablate.commands.run import MachineOptions
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import ExperimentOptions, folder, option
from llama_ablate.errors import ConfigError
from llama_ablate.terminal import say

if TYPE_CHECKING:
    from llama_ablate.design.forecast import Cost
    from llama_ablate.findings.precision import Noise
    from llama_ablate.results.plan_document import PlanDocument

HELP = "show variants, exact sizes, runs and predicted time; train nothing"
EXAMPLE = "plan experiments/first.yaml --set variants.match=flops"


@dataclass(frozen=True, kw_only=True)
class PlanOptions(ExperimentOptions):
    """Options of `plan`: the experiment, the machine, and earlier results to take noise from."""

    results: Path = option(
        Path("results"), "folder of all results (default: results)", "DIR", folder
    )
    pilot: Path | None = option(
        None, "finished results whose noise to plan with (default: those of this name)", "DIR"
    )
    machine: MachineOptions = field(default_factory=MachineOptions)


def run(options: PlanOptions) -> Answer:
    """Show an experiment's variants, sizes and runs, and forecast time, disk and memory."""
    from llama_ablate.config import experiment
    from llama_ablate.data import tokens

    say(f"reading {options.file}")
    source = experiment.load(options.file, options.sets)
    tokens.check_corpora(source)
    say("planning")
    from llama_ablate.commands.shared import forecast_tables
    from llama_ablate.design import checks, forecast
    from llama_ablate.design.plan import make, paced
    from llama_ablate.design.variants import find_reset_options
    from llama_ablate.findings.warnings import planned
    from llama_ablate.launch import local
    from llama_ablate.training.compute import choose, free_bytes, measured, pick_device

    machine = options.machine
    machine.check()
    device = pick_device(machine.device)
    plan = make(source)
    spec, train = plan.tables[0].baseline.spec, plan.experiment.train
    ranks = plan.experiment.parallel.data
    with source.located():  # errors for settings that do not fit this machine
        checks.check_precisions(plan.tables, device)
        compute = replace(choose(spec, train, device), ranks=ranks)
        need = forecast.largest_memory(plan, compute)
        short = forecast.check_memory(need, device)
    say("timing a training step")
    compute = measured(spec, train, compute)
    # The forecast uses FLOPs in place of measured seconds per step.
    plan = paced(plan, lambda table: [variant.work for variant in table.variants])
    fitting = max(1, free_bytes(device) // (need.bytes * ranks))
    most = local.default_workers(device, ranks)
    workers = machine.workers or min(most, fitting * local.devices(device))
    document = plan.model_copy(update={"compute": compute}).named()
    predicted = forecast.forecast(document, compute, workers, need)
    values = predicted.to_dict(lambda *of: [str(warning) for warning in planned(*of)])
    pilot = _pilot(document, options)
    with source.located():  # errors for an equivalence that cannot be shown
        more, margin = _precision(document, *pilot, predicted.most)
    jobs = machine.describe_jobs(document, device, predicted.most.worker_s / 3600)
    resets = find_reset_options(plan.experiment.model, source.base_model)
    values["notes"] = [str(source.locate(error)) for error in resets]
    read = (tokens for table in plan.tables for tokens in table.text.opened.values())
    values["notes"] += dict.fromkeys(note for tokens in read for note in tokens.notes)
    output = forecast_tables.list_forecast(predicted, margin)
    output += [note if note.startswith("warning") else f"note: {note}" for note in values["notes"]]
    output += filter(None, [short and f"warning: {short}", jobs])
    return Answer(output, {**values, **more, "jobs": jobs})


def _precision(
    plan: "PlanDocument", noise: "Noise | None", whose: str, cost: "Cost"
) -> tuple[dict[str, Any], str]:
    """Return values, and a sentence on the margin, for a plan of predicted cost.

    Raises ConfigError for an equivalence that cannot be shown at the pilot's noise.
    """
    from llama_ablate.config import margins
    from llama_ablate.findings.precision import expect

    for i, entry in enumerate(plan.hypotheses if noise else ()):
        if entry.direction != "equivalent" or entry.measure or entry.force:
            continue
        expected = expect(plan, noise, entry.size)
        if not expected["is_enough"]:
            seeds = f"take {expected['seeds_needed']} seeds, " if expected["seeds_needed"] else ""
            raise ConfigError(
                f"equivalence within {entry.margin} cannot be shown: by the pilot half an interval "
                f"is {expected['half_width']:.2g}; {seeds}state a larger margin, or 'force: true'",
                ("hypotheses", i, "margin"),
            )
    values: dict[str, Any] = {"noise": whose}
    table = plan.tables[0]
    margin = margins.loss_margin(plan.experiment.margin)
    if margin is None:
        return values, "none is stated, so no row can be equivalent"
    if len([variant for variant in table.variants if not variant.role]) == 1:
        sentence = "no variant is compared with the baseline"
    elif table.unit.name != margins.NATS and noise is None:
        sentence = f"in {table.unit.name} a pilot tells the noise (see --pilot)"
    else:
        expected = expect(plan, noise, margin) | {"noise": whose}
        sentence = _expectation(expected, len(plan.experiment.seed_list), cost, sure=bool(noise))
        values["expected"] = expected
    return values, f"{plan.experiment.margin}; {sentence}"


def _expectation(expected: dict[str, Any], seeds: int, cost: "Cost", *, sure: bool) -> str:
    """Compare the expected half width of an interval with the equivalence margin."""
    from llama_ablate.commands.shared.forecast_tables import duration
    from llama_ablate.evidence.written import plain
    from llama_ablate.findings.precision import MORE_TEXT

    if seeds < 2:
        return "one seed has no interval, so no row can be equivalent"
    half, low, high = (plain(expected[name], 2) for name in ("half_width", "half_low", "half_high"))
    line = f"expected half width {half} ({low} to {high}) with {seeds} seeds, "
    line += f"from {expected['noise']}"
    if not expected["is_enough"]:
        wanted = expected["seeds_needed"]
        would_do = f"{wanted:,} seeds would do" if wanted else "no number of seeds would do"
        line += f": {'no row can be equivalent' if sure else 'equivalence is unlikely'}; {would_do}"
    if "text_share" in expected:
        line += f"; the held-out text makes {expected['text_share']:.0%} of its square, and "
        line += f"{MORE_TEXT} times as much text {plain(expected['half_width_with_more_text'], 2)} "
        line += f"for {duration((MORE_TEXT - 1) * cost.evaluation_s)} more of evaluation"
    return line


def _pilot(plan: "PlanDocument", options: PlanOptions) -> "tuple[Noise | None, str]":
    """Return the noise of the pilot, and whose it is; None for the noise of other experiments.

    The pilot is `--pilot`, or by default the experiment's own results. Raises ConfigError for a
    stated pilot without noise, and for a pilot whose losses have another unit.
    """
    from llama_ablate.findings.frames import Frames
    from llama_ablate.findings.precision import find_noise
    from llama_ablate.results import Results

    path = options.pilot or options.results / plan.experiment.slug
    if options.pilot or path.exists():
        table = Frames.of(Results.open(path)).table
        if table.unit != plan.tables[0].unit:
            raise ConfigError(f"--pilot: losses of '{path}' compare in {table.unit.name}")
        if noise := find_noise(table):
            return noise, f"the noise of '{path}'"
        if options.pilot:
            raise ConfigError(f"'{path}' has no variant that differs over two seeds: no noise")
    return None, "other experiments"
