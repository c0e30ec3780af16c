"""Effective speed-ups."""

from llama_ablate.findings import speed_up
from llama_ablate.findings.frames import Frames
from llama_ablate.report.section import SECTIONS, Section, section


@SECTIONS.register("speed_up")
def _speed_up_section(frames: Frames) -> Section | None:
    return section(
        "Effective speed-up",
        speed_up.speed_ups(frames),
        """How many times the variant's tokens, training FLOPs or training seconds the baseline
        needs for the same loss (Hernandez & Brown 2020, arXiv:2005.04305): above 1 the variant is
        cheaper. The curve of the better one, through the mean losses at the ends of its runs or
        branches whose schedule ended there, is read where the worse one ends; the interval is that
        of the table's difference in loss, read the same way. No curve is extended: a multiple
        beyond the runs is above or below the bound that they show. Each inner length is also left
        out and read off the others: within how much the worst is found stands beside, and widens
        the interval; with three lengths the form is unchecked. FLOPs use the ratio of FLOPs per
        token, seconds that of measured training speeds.""",
    )
