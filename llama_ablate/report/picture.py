"""Pictures, described once: `plots` draws them to files, `charts` on the page."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llama_ablate.evidence.student import quantile, standard_error
from llama_ablate.evidence.written import Estimate
from llama_ablate.findings.frames import TableFrames
from llama_ablate.findings.rows import grouped, mean
from llama_ablate.report.parts import Parts
from llama_ablate.terminal import plural

MANY = 12  # variants beyond which a legend no longer helps
_BEST = 5  # of many variants, which are named beside the worst
_SAME = 1e-3  # of the largest, within which numbers are drawn alike


class Look(NamedTuple):
    """How a verdict is drawn: its colour, its marker in files and its shape on the page."""

    colour: str
    marker: str
    shape: str


#: Colours that all eyes tell apart (Okabe & Ito 2008, Color Universal Design); the shapes of better
#: and worse point to their side of the line. A terminal's colours are in `terminal`.
VERDICTS = {
    "better": Look("#0072b2", "<", "triangle-left"),
    "worse": Look("#d55e00", ">", "triangle-right"),
    "equivalent": Look("#009e73", "s", "square"),
    "equal": Look("#009e73", "s", "square"),
    "lower together": Look("#0072b2", "<", "triangle-left"),
    "higher together": Look("#d55e00", ">", "triangle-right"),
    "add up": Look("#009e73", "s", "square"),
    "inconclusive": Look("#808080", "o", "circle"),
    "no verdict": Look("#808080", "P", "cross"),
    "too short": Look("#808080", "^", "triangle-up"),
    "diverged": Look("#cc79a7", "X", "cross"),
    "collapsed": Look("#e69f00", "v", "triangle-down"),
    "failed": Look("#707070", "x", "cross"),
    "pending": Look("#a0a0a0", "d", "diamond"),
    "baseline": Look("#808080", "o", "circle"),
    "": Look("#0072b2", "o", "circle"),
}
BASELINE, FAINT = "#555555", "#c4c4c4"
#: Colours of lines, without yellow, which is lost on white.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9")
MARKERS = ("^", "s", "v", "D", "X", "<", "P", ">", "p", "*", "h", "d")


@dataclass(frozen=True)
class Style:
    """How a line is drawn: no two of one picture have the same marker."""

    colour: str
    marker: str = ""
    dash: str = "-"


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Return a style for each of some names, twelve at most: six colours, solid and then dashed."""
    return {
        name: Style(COLOURS[i % len(COLOURS)], marker, "--" if i >= len(COLOURS) else "-")
        for i, (name, marker) in enumerate(zip(names, MARKERS, strict=False))
    }


@dataclass(frozen=True)
class Cast:
    """The lines that a picture shows: those with a style of their own, and all others, thin."""

    named: Mapping[str, Style]
    thin: Collection[str] = ()

    @property
    def all(self) -> list[str]:
        """The names, the thin ones first: they are drawn below the others."""
        return [*self.thin, *self.named]

    def __getitem__(self, name: str) -> Style:
        return self.named.get(name, Style(FAINT))

    @property
    def remark(self) -> str:
        """What a reader must know of the lines that have no name."""
        if not self.thin:
            return ""
        return (
            f"{len(self.thin):,} of {len(self.all):,} variants are thin and light: named are the "
            "baseline, those of the lowest losses, and that of the highest"
        )


def cast(table: TableFrames) -> Cast:
    """Return the variants of a table: all but the positive control, which would set the scale.

    Of many the baseline, the best and the worst are named.
    """
    others = [row for row in table.comparison if not row.baseline and row.role != "positive"]
    named = [row.label for row in others]
    if len(named) > MANY:
        known = [row for row in others if not math.isnan(row.loss)]
        ranked = [row.label for row in sorted(known, key=lambda row: row.loss)]
        chosen = {*ranked[:_BEST], *ranked[_BEST:][-1:]}
        named = [label for label in named if label in chosen]
    base = {table.plan.baseline.label: Style(BASELINE, "o")}
    return Cast(base | styles(named), [row.label for row in others if row.label not in named])


@dataclass(frozen=True)
class Axis:
    """An axis: its title, and how its numbers are written."""

    title: str
    #: `count` (1.2M), `bytes` (4 KiB), or as they are.
    form: str = ""
    log: bool = False
    #: Where a line stands with which others are compared.
    at: float | None = None
    #: Whether it begins at 0.
    whole: bool = False


@dataclass(frozen=True)
class Dot:
    """An estimate of something that has a name, with its verdict where it has one."""

    name: str
    at: Estimate
    verdict: str = ""
    #: A text beside the mark.
    remark: str = ""
    hollow: bool = False
    #: Where it stands along the other axis, of marks with two.
    cost: Mapping[str, Estimate] = field(default_factory=dict)
    #: Its tooltip on the page: values by their names.
    told: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Tick:
    """The value of one seed, beside a mark."""

    name: str
    value: float
    seed: int = 0
    run: str = ""


@dataclass(frozen=True)
class Dots:
    """A row for each of some names: its mark with the interval, and a tick for each seed."""

    marks: Sequence[Dot]
    x: Axis
    ticks: Sequence[Tick] = ()
    #: Half the width of the band in which a difference counts as none.
    margin: float | None = None
    title: str = ""


#: Parts of a line that are fitted, and how they are drawn in files and on the page.
LAWS: Mapping[str, tuple[str, Sequence[int]]] = {"law": ("-", (1, 0)), "projection": (":", (2, 4))}


@dataclass(frozen=True)
class Point:
    """A mean along a line, with its interval; of a `part` that is drawn otherwise, without one."""

    name: str
    x: float
    at: Estimate
    n: int = 0
    #: One of `LAWS`, or how a run ended that did not end ok; else "".
    part: str = ""
    #: Whether a ring is drawn around it.
    chosen: bool = False


@dataclass(frozen=True)
class Lines:
    """A line for each of some names along a number, with intervals."""

    points: Sequence[Point]
    x: Axis
    y: Axis
    cast: Cast
    #: Single seeds.
    ticks: Sequence[tuple[float, Tick]] = ()
    title: str = ""
    #: Whether the first steep part is left out of sight.
    zoom: bool = False
    #: What is not drawn.
    remark: str = ""


@dataclass(frozen=True)
class Costs:
    """Dots against a cost, of which there are several: each has a panel, or a choice."""

    marks: Sequence[Dot]
    costs: Mapping[str, Axis]
    y: Axis
    cast: Cast
    remark: str = ""


Panel = Dots | Lines | Costs


@dataclass(frozen=True)
class Picture:
    """Panels beside one another; the page draws the first one anew for those who have scripts."""

    panels: Sequence[Panel]
    #: The section that it stands beside.
    section: str = ""
    #: What is added to the caption: what the bars are, and over how many seeds.
    note: str = ""
    #: Panels of a row; 0: all.
    columns: int = 0
    #: Whether the page draws it, or shows its file.
    interactive: bool = True


#: The pictures of a report: functions of frames; what their docstring says first is the caption.
FIGURES = Parts[Picture]("figure")


def over_seeds(values: Iterable[tuple[str, float, float, float]]) -> list[Point]:
    """Return the mean over seeds at each place, with Student's 95% interval, by place.

    `values` are a line's name, a place, a seed and a number. The interval is NaN for one seed.
    """
    finite = [one for one in values if math.isfinite(one[3])]
    found = []
    for (name, x), own in grouped(finite, lambda one: one[:2]).items():
        each, n = [value for *_, value in own], len({seed for _, _, seed, _ in own})
        half = math.nan
        if n > 1:
            half = float(quantile(0.975, n - 1)) * standard_error(each)
        middle = mean(each)
        found.append(Point(name, float(x), Estimate(middle, middle - half, middle + half), n))
    return sorted(found, key=lambda point: point.x)


def differ(values: Iterable[float], share: float = _SAME) -> bool:
    """Return whether numbers differ by more than a share of the largest."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and max(finite) - min(finite) > share * max(map(abs, finite))


def counted(seeds: Iterable[float]) -> str:
    """Write over how many seeds intervals are: `12 seeds`, `3 to 12 seeds`."""
    counts = sorted({int(n) for n in seeds if n > 0})
    if not counts:
        return "no seeds"
    some = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{some} {plural(counts[-1], 'seed')}"


def over(seeds: Iterable[float], *, rows: bool = False) -> str:
    """Say what bars are: intervals over so many seeds, of `rows` at once; none for one seed."""
    known = [n for n in seeds if n > 0]
    if max(known, default=0) < 2:
        return "One seed: no intervals."
    what = "intervals that hold for all rows at once," if rows else "intervals over"
    return f"Bars are 95% {what} n = {counted(known)}."
