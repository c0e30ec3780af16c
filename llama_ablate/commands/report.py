"""The command `report`: tables, figures and the page, from what has finished."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import WIDE, ResultsOptions, option
from llama_ablate.terminal import in_one_line, say

if TYPE_CHECKING:
    import pandas as pd

    from llama_ablate.results import Results

HELP = "write tables, figures and the page again"
EXAMPLE = "report results/quickstart"


@dataclass(frozen=True, kw_only=True)
class ReportOptions(ResultsOptions):
    """The results."""

    wide: bool = option(False, WIDE)


def run(options: ReportOptions) -> Answer:
    """Write the report of what has finished so far."""
    from llama_ablate.results import Results

    return write(Results.open(options.folder))


def write(results: "Results") -> Answer:
    """Write the report of what has finished, and return what is in it.

    The exit code is 1 where a run did not end ok.
    """
    say("writing the report")
    from llama_ablate.commands.shared import notes
    from llama_ablate.files import disk
    from llama_ablate.findings.frames import Frames
    from llama_ablate.report import page
    from llama_ablate.report.headline import headline
    from llama_ablate.report.sections import sections
    from llama_ablate.report.warnings import warnings

    lock = results.lock_report()
    frames = Frames.of(results)
    every, notices = sections(frames), warnings(frames)
    with lock:
        for partial in results.report.rglob(f"{disk.PARTIAL}*"):  # left by a killed process
            disk.remove(partial)
        written = page.write(frames, every, notices, results.report)
    notes.odd_files(results)
    for notice in notices:
        sys.stderr.write(f"note: {in_one_line(notice)}\n")
    # Of several tables every comparison is printed, how often runs were lost, and the other
    # sections of the first.
    shown: list[str | pd.DataFrame] = []
    for section in every:
        first = section.table in ("", frames.table.plan.name)
        if section.printed and (first or section.key in ("comparison", "stability")):
            shown += [section.title] * (section.title != "Comparison")
            shown.append(section.cells)
    values: dict[str, Any] = {"comparison": [], "factors": [], "hypotheses": []}
    for section in (section for section in every if not section.folded):
        rows = section.frame.to_dict("records")
        table = {"table": section.table} if section.table else {}
        values.setdefault(section.key, []).extend([{**table, **row} for row in rows])
    answer = headline(frames)
    values |= {"headline": answer, "report": str(written), "warnings": notices}
    shown.append(f"{answer}\nreport: {written}")
    failed = any(run.outcome not in ("ok", "pending") for run in frames.runs)
    return Answer(shown, values, code=1 if failed else 0)
