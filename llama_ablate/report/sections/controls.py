"""Controls: what they bound, and what they show."""

from llama_ablate.findings import controls
from llama_ablate.findings.frames import Frames
from llama_ablate.report.section import SECTIONS, Section, section


@SECTIONS.register("controls", every_table=True)
def _controls_section(frames: Frames) -> Section | None:
    table = frames.table
    return section(
        "Controls",
        controls.check_controls(table),
        """Repeat: the baseline trained again with nothing changed; equal bit for bit, the harness
        adds no difference between arms, else every row is wider by its interval. Positive: a change
        of known harm; without a control that is seen to hurt, "no difference" proves nothing.
        Redraw: the baseline with other random draws; 1 in 20 such intervals is wrong by chance.""",
    )
