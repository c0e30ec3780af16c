"""A ladder of sizes: laws, gaps, best learning rates, the surface."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from llama_ablate.evidence.written import Estimate
from llama_ablate.findings import ladder
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.ladder import RateRow
from llama_ablate.findings.rows import grouped
from llama_ablate.report.picture import (
    FIGURES,
    Axis,
    Cast,
    Lines,
    Picture,
    Point,
    cast,
    over,
    over_seeds,
    styles,
)
from llama_ablate.report.section import SECTIONS, Section, section

_SIZE = Axis("parameters without embeddings", "count", log=True)
_MANY = 6  # variants, beyond which panels are too small to read
_FURTHER = 10  # times the largest size, to which a law is drawn


@SECTIONS.register("ladder")
def _ladder_section(frames: Frames) -> Section | None:
    return section(
        "Ladder",
        ladder.laws(frames),
        """Loss = floor + scale / size^exponent, fitted to the means over seeds, with profile
        intervals; 'at most' and 'at least' where the losses bound a number on one side. It takes
        four sizes, or three where the floor is known; with fewer the exponent is that of a power
        law without a floor over these sizes alone. As a check, the law through all other sizes
        predicts the largest; where that cannot be done, or fails, nothing is projected. The trend
        is that of the paired gap to the baseline per tenfold parameters, in intervals that hold for
        all variants at once. Where its slope leaves out 0, the gap reverses if it is surely on
        opposite sides of 0 at the smallest and the largest size, grows or closes if it is surely
        other than 0 at the end that is farther from it, and else moves; it holds where the slope
        lies within the margin, else undecided. What is projected beyond the largest size was not
        measured.""",
    )


@SECTIONS.register("transfer")
def _transfer_section(frames: Frames) -> Section | None:
    rows = ladder.optima(frames)
    return section(
        "Best learning rate by size",
        rows,
        """The rate with the lowest mean validation loss at each size, and in brackets by how many
        points of the grid it lies above (+) or below (-) that of the first size. At an end of the
        grid (*) the best may lie beyond it. A rate that stays can be tuned at the smallest size
        (Yang et al. 2022, arXiv:2203.03466).""",
        cells=_by_size(rows),
    )


def _by_size(rows: Sequence[RateRow]) -> pd.DataFrame:
    """Return best rates, a column a size, with how far each moves."""
    of_label: dict[str, dict[str, str]] = {}
    for row in rows:
        shown = of_label.setdefault(row.label, {"variant": row.label})
        shown[row.rung] = f"{row.lr:g}{'*' if row.edge else ''} ({row.moved:+d})"
    return pd.DataFrame(of_label.values())


@SECTIONS.register("surface")
def _surface_section(frames: Frames) -> Section | None:
    return section(
        "Surface",
        ladder.surface(frames),
        """Loss = E + A / parameters^alpha + B / tokens^beta (Hoffmann et al. 2022, equation 2),
        fitted to the means over seeds of all sizes and of the branches of their runs; intervals are
        of a bootstrap over seeds. With a compute of 6 x parameters x tokens, the lowest loss takes
        parameters in proportion to compute^(beta / (alpha + beta)), and tokens to the rest.""",
    )


@FIGURES.register("ladder")
def ladder_picture(frames: Frames) -> Picture | None:
    """Show the loss of each variant against its size, with the law through its sizes.

    Means over seeds with 95% intervals. The thin line is the law, dotted where it is a projection:
    too few sizes have no law, and one that cannot be checked on its largest size no projection.
    """
    if not frames.ladder:
        return None
    shown = cast(frames.table)
    floor = ladder.floor_of(frames.table)
    means = over_seeds(
        (point.label, point.parameters, point.seed, point.loss)
        for point in ladder.at_end(frames.ladder)
        if point.label in shown.named
    )
    laws = [
        point
        for label in shown.named
        for point in _law(label, [p for p in means if p.name == label], floor)
    ]
    left = f"{len(shown.thin):,} of {len(shown.all):,} variants are left out" * bool(shown.thin)
    y = Axis(f"loss ({frames.table.unit.full})")
    panel = Lines([*means, *laws], _SIZE, y, Cast(shown.named), remark=left)
    return Picture([panel], "ladder", over(point.n for point in means))


def _law(label: str, means: Sequence[Point], floor: float | None) -> Iterator[Point]:
    """Yield points along the law through a variant's sizes, and along its projection."""
    law = ladder.law_through({p.x: p.at.value for p in means}, floor)
    if law is None:
        return
    smallest, largest = means[0].x, means[-1].x
    parts = {"law": np.geomspace(smallest, largest, 24)}
    if ladder.can_be_checked(len(means), floor):
        parts["projection"] = np.geomspace(largest, _FURTHER * largest, 24)
    for part, sizes in parts.items():
        for size in sizes:
            yield Point(label, float(size), Estimate(law(float(size))), part=part)


@FIGURES.register("gaps")
def gaps_picture(frames: Frames) -> Picture | None:
    """Show each variant's difference from the baseline by size, with the interval of its table."""
    drawn = [
        Point(row.label, row.non_embedding, Estimate(row.difference, row.low, row.high), row.n)
        for rung in frames.rungs
        for row in rung.comparison
        if not (row.baseline or row.role or math.isnan(row.difference))
    ]
    if len({point.x for point in drawn}) < 2:
        return None
    base, unit = frames.table.plan.baseline.label, frames.table.unit.name
    shown = cast(frames.table)
    others = Cast({k: v for k, v in shown.named.items() if k != base}, shown.thin)
    panel = Lines(drawn, _SIZE, Axis(f"loss minus that of {base} ({unit})", at=0), others)
    return Picture([panel], "ladder", over((point.n for point in drawn), rows=True))


@FIGURES.register("transfer")
def transfer_picture(frames: Frames) -> Picture | None:
    """Show loss against learning rate, a panel for each variant and a line for each size."""
    losses = ladder.by_rate(frames)
    if not losses:
        return None
    rungs = Cast(styles(dict.fromkeys(one.rung for one in losses)))
    y = Axis(f"{frames.table.split_name} loss ({frames.table.unit.full})")
    panels = []
    for label, own in list(grouped(losses, lambda one: one.rate.label).items())[:_MANY]:
        best = {(one.rung, one.rate.lr) for one in own if one.best}
        means = over_seeds((one.rung, one.rate.lr, one.rate.seed, one.rate.loss) for one in own)
        drawn = [replace(point, chosen=(point.name, point.x) in best) for point in means]
        panels.append(Lines(drawn, Axis("learning rate", log=True), y, rungs, title=label))
    note = over(point.n for panel in panels for point in panel.points)
    return Picture(panels, "transfer", note, interactive=False)
