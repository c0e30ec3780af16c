"""The command `judge`: test candidate changes one after another against the best so far.

The ledger is the folder that records the candidates, their verdicts and the spent error budget.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ablate.commands.run import LaunchOptions, check_launcher
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import (
    DEVICE,
    WIDE,
    Device,
    Options,
    argument,
    folder,
    option,
)
from llama_ablate.errors import ConfigError

if TYPE_CHECKING:
    from llama_ablate.judge.ledger import Begun, Ledger

HELP = "judge changes one after another against the best so far, under one error budget"
EXAMPLE = "judge wider.yaml --ledger ledger"
CODES = {"accepted": 0, "rejected": 3, "inconclusive": 4, "invalid": 5}


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(Options):
    """Options of `judge`: the candidate, its ledger, and the launch of runs."""

    candidate: Path | None = argument(
        "CANDIDATE",
        "a YAML of differences, or a plug-in that registers one component; without one the ledger "
        "is shown",
        None,
        "?",
    )
    ledger: Path = option(Path("ledger"), "folder of the ledger (default: ledger)", "DIR", folder)
    new: Path | None = option(None, "open a ledger: an experiment file with 'judge'", "FILE")
    leave_one_out: bool = option(False, "leave each accepted change out of the best")
    trust: bool = option(False, "run the ledger's code, too, where others brought it")
    dry_run: bool = option(False, "say level, power and cost; spend and train nothing")
    workers: int | None = option(None, "runs at a time (default: one a core, or one a GPU)", "N")
    device: Device = option("auto", DEVICE)
    wide: bool = option(False, WIDE)


def run(options: JudgeOptions) -> Answer:
    """Judge a candidate, create or show a ledger, or remove accepted changes one by one.

    The exit code is 0 for an accepted candidate, 3 for a rejected, 4 for an inconclusive and 5 for
    an invalid one.
    """
    if options.plugins:
        raise ConfigError("--plugin: a candidate brings its own, as 'plugin: FILE' in its YAML")
    modes = (options.candidate, options.new, options.leave_one_out)
    if sum(map(bool, modes)) > 1 or (options.dry_run and not options.candidate):
        raise ConfigError("one of CANDIDATE (--dry-run goes with it), --new, --leave-one-out")
    from llama_ablate.judge import candidates
    from llama_ablate.judge.ledger import Ledger
    from llama_ablate.training.compute import pick_device

    check_launcher(LaunchOptions(workers=options.workers))
    flags = ["--device", pick_device(options.device)]
    flags += ["--workers", str(options.workers)] if options.workers else []
    if options.new:
        return _show(candidates.open_ledger(options.new, options.ledger, flags))
    ledger = Ledger.open(options.ledger)
    if options.leave_one_out:
        return _show(candidates.leave_one_out(ledger, flags, trust=options.trust))
    if not options.candidate:
        return _show(ledger)
    candidate = candidates.read_candidate(ledger, options.candidate, trust=options.trust)
    if not options.dry_run:
        return _show(*candidates.judge_candidate(ledger, candidate, flags))
    if not candidate.is_new:
        what = "has begun, its level is spent: judge it without --dry-run"
        raise ConfigError(f"candidate {candidate.begun.number} {what}")
    texts, launch = candidates.first_text(ledger), LaunchOptions(workers=options.workers)
    given = ledger, candidate.begun, replace(launch, device=options.device)
    forecast: Answer = candidates.run_apart(forecast_gates, candidate.files, texts, *given)
    return forecast


def _show(ledger: "Ledger", begun: "Begun | None" = None) -> Answer:
    """Write a ledger's HTML page; return its state as text and values."""
    from llama_ablate.findings.rows import cells
    from llama_ablate.judge import ledger_page

    state = ledger_page.write_state(ledger, begun)
    rows = state.candidates
    said = [f"candidate {state.number} is {state.verdict}: {state.why}"] if begun else []
    lines = "\n".join([*said, *ledger_page.describe_ledger(ledger, rows), f"page: {state.page}"])
    table = [cells(rows)] if rows else []
    return Answer([*table, lines], asdict(state), code=CODES[state.verdict] if begun else 0)


def forecast_gates(ledger: "Ledger", begun: "Begun", launch: LaunchOptions) -> Answer:
    """Forecast a candidate's first test: cost, significance levels, and power to show the margin.

    A candidate passes two tests ("gates"), the second with more seeds. The noise is estimated from
    earlier runs of the ledger. The forecast does not affect the verdict.
    """
    from llama_ablate.commands import plan
    from llama_ablate.config import experiment
    from llama_ablate.judge import candidates

    source = experiment.from_mapping(ledger.gate(begun, 1))
    pilot = candidates.find_pilot(ledger)
    power, file = source.experiment.margin if pilot else None, Path(begun.label)
    plan_options = plan.PlanOptions(file=file, launch=launch, power=power, pilot=pilot)
    planned = plan.show_plan(source, plan_options)
    first_level, two = (ledger.alpha(begun, gate) / 2 for gate in (1, 2))
    said = f"candidate {begun.number} '{begun.label}': level {begun.level:.2g} (one-sided), "
    said += (
        f"{first_level:.2g} of it at gate one, as below; {ledger.terms.confirm} more seeds at gate "
    )
    said += f"two, at {two:.2g}"
    return Answer([said, *planned.shown], {**planned.values, "level": begun.level})
