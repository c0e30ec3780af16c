"""Factors of a factorial design: what each changes, alone and with another."""

from llama_ablate.evidence.written import Estimate
from llama_ablate.findings import contrasts
from llama_ablate.findings.frames import Frames
from llama_ablate.report.picture import FIGURES, Axis, Dot, Dots, Picture
from llama_ablate.report.section import SECTIONS, Section, section, with_half


@SECTIONS.register("factors", every_table=True)
def _factors_section(frames: Frames) -> Section | None:
    rows = contrasts.factors(frames.table)
    if not rows:
        return None
    return section(
        "Factors",
        with_half(rows, [row.effect for row in rows], frames.table),
        f"""What each change does to the {frames.table.split_name} loss ({frames.table.unit.full};
        below 0 is better), on average over all settings of the other factors: every run counts in
        every row. A row of two factors is half of what one changes about the other's effect. The
        intervals hold for all rows at once (Bonferroni); verdict and p are read off them.
        {contrasts.confounding(frames.table)}""",
    )


@FIGURES.register("factors", every_table=True)
def factors_picture(frames: Frames) -> Picture | None:
    """Show what each factor does to the loss on average, and what two do beyond their sum.

    Left of the line is better. Main effects stand above, interactions of two below and hollow, each
    sorted by size. The grey band is the margin within which an effect counts as none.
    """
    table = frames.table
    marks = [
        Dot(
            row.effect,
            Estimate(row.difference, row.low, row.high),
            row.verdict,
            hollow=bool(row.changed),
            told={"interval": row.of_difference(), "p": row.p_corrected},
        )
        for row in contrasts.factors(table)
    ]
    if not marks:
        return None
    runs = sum(row.n for row in table.comparison)
    return Picture(
        [Dots(marks, Axis(f"effect on the loss ({table.unit.name})", at=0), margin=table.margin)],
        "factors",
        f"Bars are 95% intervals that hold for all rows at once, n = {runs} runs.",
    )
