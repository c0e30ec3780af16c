"""The command `report`: write the report of finished runs, or files for a paper."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import WIDE, ResultsOptions, argument, folder, option
from llama_ablate.errors import ConfigError
from llama_ablate.terminal import in_one_line, say

if TYPE_CHECKING:
    import pandas as pd

    from llama_ablate.findings.frames import Frames
    from llama_ablate.report.sections import Section
    from llama_ablate.results import Results

HELP = "write tables, figures and the page again, or the files of a paper"
EXAMPLE = "report results/first"
_TENTHS = 10  # parts of the runs, after each of which a watched page is written
_EVERY_S = 2.0  # seconds between two readings of the results
_TRIES = 3  # consecutive failures to read the results before an error
_NICEST = 19  # lowest priority


@dataclass(frozen=True, kw_only=True)
class ReportOptions(ResultsOptions):
    """Options of `report`: the results, and whether to write files for a paper."""

    others: tuple[Path, ...] = argument(
        "MORE", "with --paper, further results with the same baseline", (), nargs="*"
    )
    paper: bool = option(
        False,
        "write what a paper takes to a new folder: one table, a paragraph of set-up, and three "
        "figures as PDF, 3.25 and 6.75 inches wide",
    )
    out: Path | None = option(None, "the paper's folder (default: DIR-paper)", "DIR", folder)
    watch: bool = option(
        False, "write the page anew after each tenth of the runs, until all have ended"
    )
    wide: bool = option(False, WIDE)


def run(options: ReportOptions) -> Answer:
    """Write the report of finished runs; with `--paper`, files for a paper."""
    from llama_ablate.results import Results

    if options.paper and options.watch:
        raise ConfigError("--paper is written once: leave out --watch")
    if options.paper:
        return _paper(options)
    if options.others or options.out:
        given = f"'{options.others[0]}'" if options.others else "--out"
        raise ConfigError(f"{given}: allowed with --paper alone; a report is of one DIR, in it")
    results = Results.open(options.folder)
    return write(_watch(results) if options.watch else results)


def _watch(results: "Results") -> "Results":
    """Write the HTML page each time a further tenth of the runs has ended.

    Returns the last state of the results once all runs have ended. The process takes the lowest
    priority and at most 1% of the machine's CPU time, so that pages are delayed or skipped while
    runs use all cores.
    """
    from llama_ablate.launch.environment import cores
    from llama_ablate.launch.live_page import LIVE_SHARE

    os.nice(_NICEST)
    if hasattr(os, "SCHED_IDLE"):  # Linux
        with suppress(OSError):  # a container may refuse it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    last_tenth, failed, rest_until = -1, 0, 0.0
    while True:
        try:
            ended, needed, line = describe_progress(results)
            if ended == needed:
                return results
            tenth, before = _TENTHS * ended // needed, time.process_time()
            if last_tenth < tenth and time.monotonic() > rest_until:
                write_files(results, f"{line}. Written at {time.strftime('%H:%M')}.")
                cost_s = time.process_time() - before
                last_tenth, rest_until = tenth, time.monotonic() + cost_s / (LIVE_SHARE * cores())
            failed = 0
        except (ConfigError, OSError):  # files move while they are read
            failed += 1
            if failed == _TRIES:
                raise
        time.sleep(_EVERY_S)
        results = results.reopen()


def describe_progress(results: "Results") -> tuple[int, int, str]:
    """Return the counts of ended and of needed runs, and a sentence on progress."""
    from llama_ablate.commands.shared import progress
    from llama_ablate.commands.status import find_asked, list_needed

    runs = list_needed(results, find_asked(results))
    ended = sum(run.outcome not in ("pending", "running") for run in runs)
    left = progress.seconds_left(results, runs)
    words = f"{ended:,} of {len(runs):,} runs have ended"
    return ended, len(runs), words + (f", about {progress.duration(left)} left" if left else "")


def _paper(options: ReportOptions) -> Answer:
    """Write files for a paper, from one or several experiments with a common baseline."""
    from llama_ablate.findings.frames import Frames
    from llama_ablate.findings.union import union
    from llama_ablate.report import paper
    from llama_ablate.results import Results

    roots = [root.resolve() for root in (options.folder, *options.others)]
    if twice := [root for root in {*roots} if roots.count(root) > 1]:
        raise ConfigError(f"'{twice[0]}' is given twice: its rows would stand twice")
    say("writing the paper")
    target = options.out or roots[0].with_name(f"{roots[0].name}-paper")
    every = [Frames.of(Results.open(root)) for root in roots]
    names = paper.write(union(every) if len(every) > 1 else every[0], target)
    text = f"{target}: {', '.join(names)}"
    return Answer(text, {"paper": str(target), "files": names})


def write(results: "Results", command: str = "") -> Answer:
    """Write the report of the finished runs, and return its contents for printing.

    The exit code is 1 if a run did not end ok. If `command`, the command line that trains, is
    given, the output suggests next steps, such as more seeds.
    """
    say("writing the report")
    from llama_ablate.commands.shared import notes
    from llama_ablate.report.headline import headline
    from llama_ablate.report.next_steps import next_steps

    frames, every, notices, paths = write_files(results)
    notes.odd_files(results)
    for notice in notices:
        sys.stderr.write(f"note: {in_one_line(notice)}\n")
    # With several comparison tables, the sections `comparison` and `stability` are printed for each
    # table, and all other sections for the first only.
    output: list[str | pd.DataFrame] = []
    for section in every:
        first = section.table in ("", frames.table.plan.name)
        if section.printed and (first or section.key in ("comparison", "stability")):
            output += [section.title] * (section.title != "Comparison")
            output.append(section.cells)
    values: dict[str, Any] = {"comparison": [], "factors": [], "hypotheses": []}
    for section in (section for section in every if not section.folded):
        rows = section.frame.to_dict("records")
        table = {"table": section.table} if section.table else {}
        values.setdefault(section.key, []).extend([{**table, **row} for row in rows])
    answer = headline(frames)
    further = next_steps(frames, command) if command else []
    values |= {"headline": answer, "report": str(paths), "warnings": notices, "next": further}
    lines = [answer, *(f"next: {line}" for line in further), f"report: {paths}"]
    failed = sum(run.outcome not in ("ok", "pending") for run in frames.runs)
    if failed:
        lines.append(f"exit code 1: {failed} of {len(frames.runs)} runs did not end ok")
    output.append("\n".join(lines))
    return Answer(output, values, code=1 if failed else 0)


def write_files(
    results: "Results", live: str = ""
) -> "tuple[Frames, Sequence[Section], Sequence[str], Path]":
    """Write tables, figures and page; return their contents and the page's path.

    With `live`, a text on the progress of the runs, only the page is written: it shows the text,
    and reloads itself.
    """
    from llama_ablate.files import disk
    from llama_ablate.findings.frames import Frames
    from llama_ablate.report import page
    from llama_ablate.report.sections import sections
    from llama_ablate.report.warnings import warnings

    lock = results.lock_report()
    frames = Frames.of(results)
    every, notices = sections(frames), warnings(frames)
    with lock:
        for partial in results.report.rglob(f"{disk.PARTIAL}*"):  # left by a killed process
            disk.remove(partial)
        given = frames, every, notices, results.report
        paths = page.write_live(*given, live) if live else page.write(*given)
    return frames, every, notices, paths
