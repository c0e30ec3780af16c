"""Guarded numbers."""

from llama_ablate.findings.frames import Frames
from llama_ablate.report.section import SECTIONS, Section, section


@SECTIONS.register("guards", every_table=True)
def _guards_section(frames: Frames) -> Section | None:
    return section(
        "Guards",
        frames.table.guards,
        """Numbers in which no variant may be worse by more than the file allows, whatever its loss:
        variant minus baseline, paired by seed (by process for a speed). Worse: the whole interval
        lies beyond what is allowed; holds: it lies within; else undecided; too short as in the
        comparison. The intervals hold for all rows at once (Bonferroni).""",
    )
