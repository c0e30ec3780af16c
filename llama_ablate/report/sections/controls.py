"""Controls: what they bound, and what they show."""

from llama_ablate.findings import controls
from llama_ablate.findings.frames import Frames
from llama_ablate.report.section import SECTIONS, Section, section


@SECTIONS.register("controls", every_table=True)
def _controls_section(frames: Frames) -> Section | None:
    table = frames.table
    return section(
        "Controls",
        controls.told(table.plan, table.comparison, table.margin, table.runs),
        """Bias: the baseline repeated under another name with nothing changed must be equal bit for
        bit; then no fault sets all other arms apart. Positive: a change of known harm must be seen,
        its interval above 0 and its mean at most ten margins; "equivalent", "not worse" and
        "undecided" rest on it, a difference that was seen does not. Calibration: the baseline with
        other draws shows noise; of 20 such intervals one leaves out 0. All speeds' intervals are
        widened by that of an A/A arm's speed.""",
    )
