"""Steps of a path."""

import math

from llama_ablate.evidence.written import Estimate
from llama_ablate.findings import effects
from llama_ablate.findings.frames import Frames
from llama_ablate.report.picture import FIGURES, Axis, Dot, Dots, Picture, over
from llama_ablate.report.section import SECTIONS, Section, section


@SECTIONS.register("steps", every_table=True)
def _steps_section(frames: Frames) -> Section | None:
    return section(
        "Steps",
        effects.steps(frames.table),
        """What each step changes against the step before it, over the n seeds that both finished,
        and all steps so far against the baseline. The intervals of the steps hold for all steps at
        once (Bonferroni); verdict and p are read off them.""",
    )


@FIGURES.register("steps", every_table=True)
def steps_picture(frames: Frames) -> Picture | None:
    """Show what each step of the path changes against the one before; left is better."""
    rows = effects.steps(frames.table)
    marks = [
        Dot(
            row.step,
            Estimate(row.marginal, row.marginal_low, row.marginal_high),
            row.verdict,
            told={"this step": row.of_step(), "all so far": row.so_far(), "p": row.p_corrected},
        )
        for row in rows
    ]
    if all(math.isnan(mark.at.value) for mark in marks):
        return None
    x = Axis(f"loss minus that of the step before ({frames.table.unit.name})", at=0)
    return Picture([Dots(marks, x)], "steps", over((row.n for row in rows), rows=True))
