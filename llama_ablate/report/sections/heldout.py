"""Held-out text."""

from llama_ablate.findings import heldout
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.report.section import SECTIONS, Section, section


@SECTIONS.register("heldout")
def _heldout_section(frames: Frames) -> Section | None:
    of_text: dict[tuple[str, str, str], list[TableFrames]] = {}
    for table in frames.tables:
        of_text.setdefault(table.plan.evaluated_on, []).append(table)
    rows = [
        row
        for of in of_text.values()
        for row in heldout.splits(
            of[0].plan,
            of[0].metrics,
            [row for table in of for row in table.comparison],
            of[0].split,
            of[0].plan.name if len(of_text) > 1 else "",
        )
    ]
    return section(
        "Held-out text",
        rows,
        """Other held-out documents would give another difference: the intervals contain that error
        too. It is computed between documents, or between blocks of a text that has few.""",
        printed=False,
    )
