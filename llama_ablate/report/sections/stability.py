"""Stability of training."""

from llama_ablate.findings import outcomes
from llama_ablate.findings.frames import Frames
from llama_ablate.report.section import SECTIONS, Section, section


@SECTIONS.register("stability", every_table=True)
def _stability_section(frames: Frames) -> Section | None:
    rows = outcomes.stability(frames.table.runs)
    lost = sum(row.diverged.value + row.collapsed.value for row in rows)
    unseen = max((row.diverged.high for row in rows), default=0)
    runs = sum(row.runs for row in rows)
    none = f"None of {runs} runs diverged or collapsed: of a variant's at most {unseen:.0%} (95%)."
    return section(
        "Stability",
        rows,
        """Over all finished runs of a variant, at every tuned point. A run diverged if its loss or
        gradient was not finite, or its training loss ended above chance and above where it began;
        it collapsed if its held-out loss stopped near or above that of token frequencies. One that
        still fell there counts as too short, and so does one whose loss another run of its seed,
        that did not end so, never went below. Shares have exact intervals. A spike is a step
        seven deviations above the hundred before.""",
        printed=lost > 0,
        answer="" if lost else none,
    )
