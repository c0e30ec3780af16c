"""The command `judge`: a ledger of candidates, each judged against the best so far."""

from dataclasses import dataclass
from pathlib import Path

from llama_ablate.commands.run import LaunchOptions
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

HELP = "judge changes one after another against the best so far, under one error budget"
EXAMPLE = "judge wider.yaml --ledger ledger"


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(Options):
    """The candidate, its ledger, and what starts the runs."""

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
    dry_run: bool = option(False, "say level, power and cost; spend and train nothing")
    workers: int | None = option(None, "runs at a time (default: one a core, or one a GPU)", "N")
    device: Device = option("auto", DEVICE)
    wide: bool = option(False, WIDE)


def run(options: JudgeOptions) -> Answer:
    """Judge a candidate, open a ledger, take its best apart, or show it.

    The exit code is 0 where a candidate is accepted, 3 rejected, 4 inconclusive, 5 invalid.
    """
    if options.plugins:
        raise ConfigError("--plugin: a candidate brings its own, as 'plugin: FILE' in its YAML")
    asked = (options.candidate, options.new, options.leave_one_out)
    if sum(map(bool, asked)) > 1 or (options.dry_run and not options.candidate):
        raise ConfigError("one of CANDIDATE (--dry-run goes with it), --new, --leave-one-out")
    from llama_ablate.commands.shared import judging
    from llama_ablate.judge.ledger import Ledger

    launch = LaunchOptions(workers=options.workers, device=options.device)
    if options.new:
        return judging.opened(options.new, options.ledger, launch)
    ledger = Ledger.open(options.ledger)
    if options.leave_one_out:
        return judging.taken_apart(ledger, launch)
    if options.candidate:
        return judging.judged(ledger, options.candidate, launch, dry_run=options.dry_run)
    return judging.shown(ledger)
