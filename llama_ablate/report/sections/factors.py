"""Factors of a grid: which matters, what each change does, alone and with another."""

from llama_ablate.evidence.written import Estimate
from llama_ablate.findings import effects
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.report.picture import FIGURES, Axis, Dot, Dots, Picture
from llama_ablate.report.section import SECTIONS, Section, section, with_half

_MANY = 10  # interactions, beyond which they are folded away


def _has_ranges(table: TableFrames) -> bool:
    """Return whether an axis has more than two levels; of two the range is their effect."""
    return any(row.levels > 2 for row in effects.axes(table))


@SECTIONS.register("axes", every_table=True)
def _axes_section(frames: Frames) -> Section | None:
    table = frames.table
    rows = effects.axes(table)
    if not _has_ranges(table):
        return None
    return section(
        "Which axis matters",
        rows,
        f"""How far apart the {table.split_name} losses ({table.unit.full}) of an axis' levels lie,
        on average over the settings of the others: the highest less the lowest, with an interval
        that holds for all axes at once, read off those of all pairs of levels below. Where the
        intervals of two axes do not meet, one surely matters more.""",
    )


@SECTIONS.register("factors", every_table=True)
def _factors_section(frames: Frames) -> Section | None:
    rows = [row for row in effects.factors(frames.table) if not row.changed]
    if not rows:
        return None
    return section(
        "Factors",
        with_half(rows, frames.table),
        f"""What each change does to the {frames.table.split_name} loss ({frames.table.unit.full};
        below 0 is better), on average over all settings of the other factors: every run counts in
        every row. The intervals hold for all rows, and those of interactions, at once (Bonferroni);
        verdict and p are read off them. {effects.confounding(frames.table)}""",
    )


@SECTIONS.register("interactions", every_table=True)
def _interactions_section(frames: Frames) -> Section | None:
    rows = [row for row in effects.factors(frames.table) if row.changed]
    return section(
        "Interactions",
        with_half(rows, frames.table),
        """What the second change does to the effect of the first: the difference of the two
        differences. 0 where effects add up.""",
        printed=len(rows) <= _MANY,
        folded=len(rows) > _MANY,
    )


@FIGURES.register("factors", every_table=True)
def factors_picture(frames: Frames) -> Picture | None:
    """Show what each change does to the loss on average, and what two do beyond their sum.

    Left of the line is better. Effects of one factor stand above, interactions of two below and
    hollow, those of the factors that matter most first. The grey band is the margin within which an
    effect counts as none. Of more than ten interactions none is drawn but those that are decided.
    """
    table = frames.table
    rows = [row for row in effects.factors(table) if row.verdict != "not estimable"]
    few = sum(bool(row.changed) for row in rows) <= _MANY
    marks = [
        Dot(
            row.effect,
            Estimate(row.difference, row.low, row.high),
            row.verdict,
            hollow=bool(row.changed),
            told={"interval": row.of_difference(), "p": row.p_corrected},
        )
        for row in rows
        if few or not row.changed or "together" in row.verdict
    ]
    if not marks:
        return None
    runs = sum(row.n for row in table.comparison)
    return Picture(
        [Dots(marks, Axis(f"effect on the loss ({table.unit.name})", at=0), margin=table.margin)],
        "axes" if _has_ranges(table) else "factors",
        f"Bars are 95% intervals that hold for all rows at once, n = {runs} runs.",
    )
