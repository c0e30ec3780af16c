"""The command `report`: write the report of finished runs, or files for a paper."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import TableOptions, argument, folder, option, seconds
from llama_ablate.errors import ConfigError
from llama_ablate.terminal import in_one_line, say

if TYPE_CHECKING:
    import pandas as pd

    from llama_ablate.results import Results

HELP = "write tables, figures and the page again, or the files of a paper"
EXAMPLE = "report results/first"
_EVERY_S = 60.0  # seconds between two reports of results that are watched
_EVERY_TABLE = ("comparison", "stability")  # sections that are printed for each table


@dataclass(frozen=True, kw_only=True)
class ReportOptions(TableOptions):
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
    watch: float | None = option(
        None,
        f"write the report every SECONDS (default: {_EVERY_S:.0f}) until all runs have ended",
        "SECONDS",
        seconds,
        const=_EVERY_S,
    )


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
    if not options.watch:
        return write(results)
    from llama_ablate.commands.status import follow

    return follow(results, options.watch, lambda now, _: write(now))


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


def write(results: "Results", command: str = "", *, aloud: bool = True) -> Answer:
    """Write the report of the finished runs, and return its contents for printing.

    The exit code is 1 if a run did not end ok, or if a part of the report could not be made. If
    `command`, the command line that trains, is given, the output suggests next steps, such as more
    seeds. Warnings are printed to standard error, if `aloud`.
    """
    say("writing the report")
    from llama_ablate.commands.shared import notes
    from llama_ablate.files import disk
    from llama_ablate.findings.answer import headline
    from llama_ablate.findings.frames import Frames
    from llama_ablate.findings.warnings import warnings
    from llama_ablate.report import page
    from llama_ablate.report.next_steps import next_steps
    from llama_ablate.report.sections import sections

    lock = results.lock_report()
    frames = Frames.of(results)
    every, notices = sections(frames, strict=False), [str(warning) for warning in warnings(frames)]
    with lock:
        for partial in results.report.rglob(f"{disk.PARTIAL}*"):  # left by a killed process
            disk.remove(partial)
        path, faults = page.write(frames, every, notices, results.report)
    notes.odd_files(results)
    said = [f"note: {notice}" for notice in notices] if aloud else []
    for line in (*said, *(f"error: the report lacks {fault}" for fault in faults)):
        sys.stderr.write(f"{in_one_line(line)}\n")
    output: list[str | pd.DataFrame] = []
    for section in (section for section in every if section.printed):
        if section.table in ("", frames.table.plan.name) or section.key in _EVERY_TABLE:
            output += [section.title] * (section.title != "Comparison")
            output.append(section.cells)
    values: dict[str, Any] = {"comparison": [], "factors": [], "hypotheses": []}
    for section in (part for part in every if part.key != "metrics" and not part.error):
        rows = section.frame.to_dict("records")
        table = {"table": section.table} if section.table else {}
        values.setdefault(section.key, []).extend([{**table, **row} for row in rows])
    further = next_steps(frames, command) if command else []
    answer = headline(frames)
    values |= {"headline": answer, "report": str(path), "warnings": notices, "next": further}
    lines = [answer, *(f"next: {line}" for line in further), f"report: {path}"]
    failed = int((~frames.runs["outcome"].isin(["ok", "pending"])).sum())
    if failed:
        lines.append(f"exit code 1: {failed} of {len(frames.runs)} runs did not end ok")
    output.append("\n".join(lines))
    return Answer(output, values, code=1 if failed or faults else 0)
