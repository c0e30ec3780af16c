"""The command `report`: tables, figures and the page, from what has finished."""

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from llama_ablate.commands import options as shared
from llama_ablate.commands.answer import Answer

if TYPE_CHECKING:
    from llama_ablate.results import Results

HELP = "write tables, figures and the page again"
EXAMPLE = "report results/quickstart"

add_arguments = shared.add_results


def run(options: Namespace) -> Answer:
    """Write the report of what has finished so far."""
    from llama_ablate.results import Results

    return write(Results.open(options.folder))


def write(results: "Results") -> Answer:
    """Write the report of what has finished, and return what is in it.

    The exit code is 1 where a run did not end ok.
    """
    from llama_ablate.commands import notes
    from llama_ablate.files import disk
    from llama_ablate.report import frames, page, tables, warned
    from llama_ablate.report.sections import sections
    from llama_ablate.results import Still
    from llama_ablate.terminal import in_one_line

    lock = results.lock_report()
    store = Still(results.root, plan=results.plan_name, results=results)
    everything = sections(store)
    with lock:
        for partial in store.report.rglob(f"{disk.PARTIAL}*"):  # left by a killed process
            disk.remove(partial)
        written = page.write(store, everything)
    notes.odd_files(results)
    failed = not frames.every_run(store)["outcome"].isin(["ok", "pending"]).all()
    warnings = warned.warnings(store)
    for warning in warnings:
        sys.stderr.write(f"note: {in_one_line(warning)}\n")
    first = everything[0].table
    shown = [
        ("" if section.title == "Comparison" else f"{section.title}\n\n")
        + tables.text(section.cells)
        for section in everything
        if section.key == "comparison" or section.table in ("", first)
        if section.key != "steadiness"
    ]
    lines = [*shown, f"{page.answer(frames.comparison(store))}\nreport: {written}"]
    values: dict[str, Any] = {"comparison": [], "factors": [], "hypotheses": []}
    for section in everything:
        rows = section.frame.to_dict("records")
        table = {"table": section.table} if section.table else {}
        values.setdefault(section.key, []).extend([{**table, **row} for row in rows])
    values |= {"report": str(written), "warnings": warnings}
    return Answer("\n\n".join(lines), values, code=1 if failed else 0)
