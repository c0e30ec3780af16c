"""Sections and figures over model sizes: gaps to the baseline, best learning rates."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from llama_ablate.evidence.written import Estimate, interval
from llama_ablate.findings import sizes
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.rows import grouped
from llama_ablate.findings.sizes import RateRow, SizeRow
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
MAX_PANELS = 6  # more are too small to read


@SECTIONS.register("sizes")
def _sizes_section(frames: Frames) -> Section | None:
    rows = sizes.by_size(frames)
    return section(
        "By size",
        rows,
        """Differences from the baseline at each size, with the intervals of the size's table, and
        their change per tenfold parameters without embeddings: a line for each seed, in intervals
        that hold for all variants at once. Where its slope leaves out 0, the gap reverses if it is
        surely on opposite sides of 0 at the smallest and the largest size, grows or closes if it is
        surely other than 0 at the end that is farther from it, and else moves; it holds where the
        slope lies within the margin, else undecided. Scaling laws: analysis/scaling_laws.py.""",
        cells=_differences_by_size(rows),
    )


def _differences_by_size(rows: Sequence[SizeRow]) -> pd.DataFrame:
    """Lay out differences with a column for each size, then the trend."""
    by_label = grouped(rows, lambda row: row.label)
    shown: dict[str, list[str]] = {"variant": [*by_label]}
    for rung in dict.fromkeys(row.rung for row in rows):
        own = {
            row.label: f"{interval(row.difference, row.low, row.high)} {row.verdict}"
            for row in rows
            if row.rung == rung
        }
        shown[rung] = [own.get(label, "") for label in by_label]
    if any(row.trend for row in rows):
        shown["gap"] = [own[0].trend for own in by_label.values()]
        shown["per tenfold size"] = [str(own[0].slope) for own in by_label.values()]
    return pd.DataFrame(shown)


@SECTIONS.register("transfer")
def _transfer_section(frames: Frames) -> Section | None:
    rows = sizes.optima(frames)
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


@FIGURES.register("sizes")
def sizes_picture(frames: Frames) -> Picture | None:
    """Show the loss of each variant against its size: means over seeds with 95% intervals."""
    ends = [point for point in frames.ladder if not (point.branch or point.role)]
    if not ends:
        return None
    shown = cast(frames.table)
    means = over_seeds(
        (point.label, point.parameters, point.seed, point.loss)
        for point in ends
        if point.label in shown.named
    )
    left = f"{len(shown.thin):,} of {len(shown.all):,} variants are left out" * bool(shown.thin)
    y = Axis(f"loss ({frames.table.unit.full})")
    panel = Lines(means, _SIZE, y, Cast(shown.named), remark=left)
    return Picture([panel], "sizes", over(point.n for point in means))


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
    return Picture([panel], "sizes", over((point.n for point in drawn), rows=True))


@FIGURES.register("transfer")
def transfer_picture(frames: Frames) -> Picture | None:
    """Show loss against learning rate, a panel for each variant and a line for each size."""
    losses = sizes.by_rate(frames)
    if not losses:
        return None
    rungs = Cast(styles(dict.fromkeys(one.rung for one in losses)))
    y = Axis(f"{frames.table.split_name} loss ({frames.table.unit.full})")
    panels = []
    for label, own in list(grouped(losses, lambda one: one.rate.label).items())[:MAX_PANELS]:
        best = {(one.rung, one.rate.lr) for one in own if one.best}
        means = over_seeds((one.rung, one.rate.lr, one.rate.seed, one.rate.loss) for one in own)
        drawn = [replace(point, chosen=(point.name, point.x) in best) for point in means]
        panels.append(Lines(drawn, Axis("learning rate", log=True), y, rungs, title=label))
    note = over(point.n for panel in panels for point in panel.points)
    return Picture(panels, "transfer", note, interactive=False)
