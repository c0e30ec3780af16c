"""The command `status`: count finished, failed and pending runs, with their progress."""

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from llama_ablate import terminal
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import TableOptions, argument, option
from llama_ablate.errors import ConfigError

if TYPE_CHECKING:
    from pandas import DataFrame

    from llama_ablate.results import Results
    from llama_ablate.results.snapshot import RunStatus

HELP = "count finished, failed and pending runs; watch those that are running"
EXAMPLE = "status results/first --watch"
_EVERY_S = 2.0  # seconds between two readings of the results
_TRIES = 3  # consecutive failures before an error: files may move while they are read
_AROUND = 7  # lines of the watched view in addition to its rows
Shown = TypeVar("Shown")


@dataclass(frozen=True, kw_only=True)
class StatusOptions(TableOptions):
    """Options of `status`: the results, and whether to watch the progress."""

    others: tuple[Path, ...] = argument("MORE", "further results", (), nargs="*")
    watch: bool = option(
        False, "show the runs' progress until all have ended, from any terminal; Ctrl-C leaves"
    )
    pending: bool = option(
        False, "print the ids of the runs that wait to be trained by now, one a line, and no more"
    )
    verify: bool = option(
        False, "compute the hashes of all tokens in the cache, of which runs compare size and times"
    )


def run(options: StatusOptions) -> Answer:
    """Count the runs of each variant by outcome.

    The exit code is 1 if a run did not end ok.
    """
    from llama_ablate.results import Results

    if options.others:
        if options.watch or options.pending or options.verify:
            raise ConfigError("--watch, --pending and --verify are of one DIR")
        folders = [options.folder, *options.others]
        answers = [_once(Results.open(folder)) for folder in folders]
        said = [each.values for each in answers]  # noqa: PD011  no frame's
        values = dict(zip(map(str, folders), said, strict=True))
        text = "\n\n".join(each.text for each in answers)
        return Answer(text, values, max(each.code for each in answers))
    if options.watch and options.pending:
        raise ConfigError("--pending lists what waits now: leave out --watch")
    results = Results.open(options.folder)
    if options.verify:
        return _verify_tokens(results)
    if options.pending:
        waiting = [
            run.id for run in list_needed(results, find_asked(results)) if run.outcome == "pending"
        ]
        return Answer("\n".join(waiting), waiting)
    if options.watch:
        if options.json or terminal.width() is None or terminal.dumb():
            raise ConfigError("--watch draws on a terminal: leave it out to get the status once")
        results = _watch(results)
    return _once(results)


def _once(results: "Results") -> Answer:
    runs = list_needed(results, find_asked(results))
    counts = Counter(run.outcome for run in runs)
    bad = [run for run in runs if run.outcome not in ("ok", "running", "pending")]
    # A run that ended `ok` with a reason was too short to compare, and is listed as in reports.
    listed_runs = [replace(run, outcome="too short") if _is_short(run) else run for run in runs]
    by_label: dict[str, Counter[str]] = {}
    for run in listed_runs:
        table = results.plan.table_of(run.id).name
        label = f"{run.label}, {table}" if table else run.label
        by_label.setdefault(label, Counter())[run.outcome] += 1
    width = max(map(len, by_label), default=0)
    lines = [f"{label:{width}}  {_listed(counted)}" for label, counted in by_label.items()]
    output: list[str | DataFrame] = [f"{results.root}: {_summary(listed_runs)}", "\n".join(lines)]
    if running := [run for run in runs if run.outcome == "running"]:
        from llama_ablate.commands.shared import progress

        output.append(progress.cells(results, running))
    if why := [run for run in listed_runs if run.outcome not in ("ok", "running", "pending")]:
        output.append("\n".join(f"{r.name}: {r.outcome}: {r.reason}" for r in why))
    values = {"runs": [_plain(run) for run in runs], "outcomes": counts}
    return Answer(output if running else "\n\n".join(map(str, output)), values, 1 if bad else 0)


def _verify_tokens(results: "Results") -> Answer:
    """Verify the hashes of all tokens that the runs read; the exit code is 1 if some changed."""
    from llama_ablate.data.tokens import verify

    tables = results.plan.tables
    texts = {text.fingerprint for table in tables for text in table.texts}
    texts |= {part.fingerprint for table in tables for v in table.variants for part in v.mixture}
    found = {fingerprint: verify(fingerprint) for fingerprint in sorted(texts)}
    lines = [f"tokens {fingerprint}: {state}" for fingerprint, state in found.items()]
    is_damaged = any("damaged" in state for state in found.values())
    return Answer("\n".join(lines), {"tokens": found}, int(is_damaged))


def _is_short(run: "RunStatus") -> bool:
    return run.outcome == "ok" and bool(run.reason)


def find_asked(results: "Results") -> Collection[str]:
    """Return the ids of the runs that are needed by now.

    An experiment with a tuning race or with planned interim analyses ("looks") needs only some of
    its planned runs.
    """
    if not results.plan.experiment.is_staged:
        return results.plan.runs
    from llama_ablate.findings.frames import Frames

    return Frames.of(results).stage.runs


def list_needed(results: "Results", asked: Collection[str]) -> "list[RunStatus]":
    """Return the status of every run that is needed or has started.

    `asked` are the ids of the needed runs. The outcomes are the same as in reports.
    """
    runs = [run for run in results.statuses if run.id in asked or run.outcome != "pending"]
    if {run.outcome for run in runs}.isdisjoint(("diverged", "collapsed")):
        return runs
    from llama_ablate.findings.outcomes import milder_outcomes

    outcomes = milder_outcomes(runs, results.curve, results.plan.tables)
    return [
        replace(run, outcome=counts[0], reason=counts[1])
        if (counts := outcomes.get(run.id))
        else run
        for run in runs
    ]


def _plain(run: "RunStatus") -> dict[str, Any]:
    live = run.live
    noted = live and live.model_dump(exclude={"run"}) | {"seconds_left": live.seconds_left}
    return vars(run) | {"live": noted}


def _summary(runs: "Sequence[RunStatus]") -> str:
    return f"{len(runs)} runs: {_listed(Counter(run.outcome for run in runs))}"


def _listed(counts: "Counter[str]") -> str:
    order = sorted(counts, key=lambda outcome: (outcome != "ok", outcome))
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in order)


def follow(
    results: "Results", every_s: float, show: "Callable[[Results, list[RunStatus]], Shown]"
) -> Shown:
    """Show results at intervals until all needed runs have ended; return what was shown last.

    `show` gets the results and their needed runs. Raises the error of reading or showing if it
    occurs several times in a row.
    """
    failed, ended = 0, [""]
    needed: Collection[str] = ()
    while True:
        try:
            if ended != (now := [*results.finished]):  # else the needed runs are the same
                needed, ended = find_asked(results), now
            runs = list_needed(results, needed)
            shown = show(results, runs)
            if not any(run.outcome in ("pending", "running") for run in runs):
                return shown
            failed = 0
        except (ConfigError, OSError):
            failed += 1
            if failed == _TRIES:
                raise
        time.sleep(every_s)
        results = results.reopen()


def _watch(results: "Results") -> "Results":
    """Draw the progress until all runs have ended or Ctrl-C; return the last results."""
    with terminal.screen() as draw, contextlib.suppress(KeyboardInterrupt):
        follow(results, _EVERY_S, lambda *of: draw(_draw_progress(*of)))
    return results.reopen()


def _draw_progress(results: "Results", runs: "Sequence[RunStatus]") -> str:
    from llama_ablate.commands.shared import progress
    from llama_ablate.report import tables

    width, height = shutil.get_terminal_size()
    visible = progress.fitting(runs, max(1, height - _AROUND))
    left = progress.seconds_left(results, runs)
    head = f"{results.plan.experiment.name}: {_summary(runs)}"
    head += f"; {progress.duration(left)} left" if left else ""
    table = tables.text(progress.cells(results, visible), width, least=len(progress.COLUMNS))
    more = f"{len(runs) - len(visible)} more; " if len(visible) < len(runs) else ""
    idle = "running" not in {run.outcome for run in runs}
    rest = "nobody trains now: `llama-ablate run FILE` goes on" if idle else "the runs go on"
    foot = f"{more}every {_EVERY_S:g} s; Ctrl-C leaves, {rest}"
    return f"{tables.filled(head, width)}\n\n{table}\n\n{tables.filled(foot, width)}"
