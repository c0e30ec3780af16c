"""Held-out text."""

from llama_ablate.findings import heldout
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.rows import grouped
from llama_ablate.report.section import SECTIONS, Section, section


@SECTIONS.register("heldout")
def _heldout_section(frames: Frames) -> Section | None:
    of_text = grouped(frames.tables, lambda table: table.plan.evaluated_on)
    rows = [
        row
        for of in of_text.values()
        for row in heldout.splits(of, of[0].plan.name if len(of_text) > 1 else "")
    ]
    return section(
        "Held-out text",
        rows,
        """Other held-out documents would give another difference: the intervals contain that error
        too. It is computed between documents, or between blocks of a text that has few.""",
        printed=False,
    )
