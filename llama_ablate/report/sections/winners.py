"""Who wins each table."""

from llama_ablate.findings.frames import Frames
from llama_ablate.findings.winners import find_winners
from llama_ablate.report.section import SECTIONS, Section, section


@SECTIONS.register("winners")
def _winners_section(frames: Frames) -> Section | None:
    return section(
        "Who wins where",
        find_winners({table.plan.name: table.comparison for table in frames.tables}),
        """The variant of the lowest loss in each table, with its row's interval. No winner: the
        interval of the lowest holds 0. Flips: the winner is not that of the tables before.""",
    )
