"""Data classes that describe report figures, which `plots` draws for files, page and papers."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from llama_ablate.evidence.student import quantile, standard_error
from llama_ablate.evidence.written import Estimate
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.rows import grouped, mean
from llama_ablate.report.parts import Parts
from llama_ablate.results.plan_document import PlanDocument
from llama_ablate.terminal import plural

MAX_NAMED = 12  # most lines of a picture that its legend names
_BEST = 5  # best variants in the legend if there are many, in addition to the worst
_SAME = 1e-3  # relative difference up to which numbers look equal in a figure

#: Matplotlib marker of each verdict; markers of `better` and `worse` point to their side of 0.
VERDICTS = {
    "better": "<",
    "worse": ">",
    "equivalent": "s",
    "equal": "s",
    "lower together": "<",
    "higher together": ">",
    "add up": "s",
    "inconclusive": "o",
    "no verdict": "P",
    "too short": "^",
    "diverged": "X",
    "collapsed": "v",
    "failed": "x",
    "pending": "d",
    "baseline": "D",
    "": "o",
}
#: Colours with a contrast of at least 3 to white and to the page's dark background. Neighbours are
#: distinct for colour-blind readers, too (after Okabe & Ito 2008, Color Universal Design).
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#8a63c9"),
    *("#a06a00", "#cc79a7", "#2a9bd6", "#5b8c00"),
)
INK, BASELINE, GRID, WHITE = "#262626", "#555555", "#cccccc", "#ffffff"
DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Style:
    """Colour and dash of a variant, the same in all pictures of a report."""

    colour: str = INK
    dash: str = "-"


def style_names(names: Iterable[str]) -> dict[str, Style]:
    """Return a line style for each name: eight solid colours, then dashed, dotted, dash-dotted."""
    many = len(COLOURS)
    return {
        name: Style(COLOURS[i % many], DASHES[i // many % len(DASHES)])
        for i, name in enumerate(names)
    }


def key_variants(plan: PlanDocument) -> dict[str, str]:
    """Map each variant's label to a short key for the HTML page: `v0`, `v1`, ..."""
    labels = dict.fromkeys(variant.label for table in plan.tables for variant in table.variants)
    return {label: f"v{i}" for i, label in enumerate(labels)}


def style_variants(plan: PlanDocument) -> dict[str, Style]:
    """Return the line style of each variant by its label; baselines are grey."""
    baselines = {table.baseline.label: Style(BASELINE) for table in plan.tables}
    return style_names(label for label in key_variants(plan) if label not in baselines) | baselines


@dataclass(frozen=True)
class LineStyles:
    """Line styles of a picture by name, and the names in its legend."""

    styles: Mapping[str, Style]
    named: Collection[str]

    def __getitem__(self, name: str) -> Style:
        return self.styles.get(name, Style())

    @property
    def remark(self) -> str:
        """Remark on the number of lines that the legend does not name, or ""."""
        unnamed = len(self.styles) - len(self.named)
        if not unnamed:
            return ""
        return (
            f"{unnamed:,} of {len(self.styles):,} variants are thin and have no name: named are "
            "the baseline, those of the lowest losses, and that of the highest"
        )

    def without(self, name: str) -> "LineStyles":
        """Return a copy without the line called `name`."""
        styles = {key: style for key, style in self.styles.items() if key != name}
        return LineStyles(styles, [label for label in self.named if label != name])


def choose_styles(frames: Frames) -> LineStyles:
    """Return the line styles of a table's variants, without its positive control.

    The control's large effect would set the scale of the axis. If there are many variants, the
    legend names only the baseline, the variants with the lowest losses, and the variant with the
    highest loss.
    """
    table, styles = frames.table, style_variants(frames.plan)
    rows = [row for row in table.comparison if row.role != "positive"]
    named = [row.label for row in rows]
    if len(named) > MAX_NAMED + 1:
        trained = [row for row in rows if not (row.baseline or math.isnan(row.loss))]
        ranked = [row.label for row in sorted(trained, key=lambda row: row.loss)]
        chosen = {*ranked[:_BEST], *ranked[_BEST:][-1:], table.plan.baseline.label}
        named = [label for label in named if label in chosen]
    return LineStyles({row.label: styles[row.label] for row in rows}, named)


@dataclass(frozen=True)
class Axis:
    """Axis of a panel: title, number format and scale."""

    title: str
    #: Number format: `count` (1.2M), `bytes` (4 KiB), or "" for plain numbers.
    form: str = ""
    log: bool = False
    #: Value at which a reference line is drawn.
    at: float | None = None
    #: Whether the axis begins at 0.
    whole: bool = False


@dataclass(frozen=True)
class Dot:
    """Mark in a row of a panel: an estimate with name and verdict."""

    name: str
    at: Estimate
    verdict: str = ""
    #: Text next to the mark.
    remark: str = ""
    hollow: bool = False
    #: Positions on the cost axes of a figure against costs, by the costs' names.
    cost: Mapping[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True)
class Tick:
    """Value of one run, drawn as a thin stroke or a curve's point."""

    name: str
    value: float
    seed: int
    #: Outcome of the run if it did not end ok, else "".
    outcome: str = ""


@dataclass(frozen=True)
class Dots:
    """Panel of rows, each with a mark, its interval, and strokes for seeds."""

    marks: Sequence[Dot]
    x: Axis
    ticks: Sequence[Tick] = ()
    #: Equivalence margin: half the width of a grey band around 0.
    margin: float | None = None
    title: str = ""
    #: Line styles of the names that are variants.
    styles: Mapping[str, Style] = field(default_factory=dict)
    remark = ""


@dataclass(frozen=True)
class Point:
    """Point of a line: mean and interval over `n` seeds."""

    name: str
    x: float
    at: Estimate
    n: int = 0
    #: Whether a ring marks the point.
    chosen: bool = False


@dataclass(frozen=True)
class Lines:
    """Panel of lines along a numeric x axis, with intervals."""

    points: Sequence[Point]
    x: Axis
    y: Axis
    cast: LineStyles
    #: Curves of single runs, as pairs of x coordinate and value.
    ticks: Sequence[tuple[float, Tick]] = ()
    #: Values that the comparison table reports, drawn to the right of each line.
    reported: Sequence[Point] = ()
    title: str = ""
    #: Whether the y axis is limited to the range of the last three quarters of training.
    zoom: bool = False
    #: Remark on lines that are not drawn.
    remark: str = ""
    #: Whether the page's script has the values of all runs, and can smooth the curves.
    raw: bool = False


@dataclass(frozen=True)
class Costs:
    """Panel of marks: each variant's difference in loss against a cost."""

    marks: Sequence[Dot]
    cost: str
    x: Axis
    y: Axis
    styles: Mapping[str, Style]
    remark: str = ""
    title: str = ""


Panel = Dots | Lines | Costs


@dataclass(frozen=True)
class Picture:
    """Figure of one or several panels of one kind."""

    panels: Sequence[Panel]
    #: Key of the report section that shows the figure.
    section: str = ""
    #: End of the caption: the meaning of the bars, and the number of seeds.
    note: str = ""
    #: Number of panels per row.
    columns: int = 1


#: Registry of functions that make report figures; their docstrings, without "Show", are captions.
FIGURES = Parts[Picture]("figure")


def over_seeds(values: Iterable[tuple[str, float, float, float]]) -> list[Point]:
    """Return means over seeds with Student's 95% intervals, ordered by x.

    `values` are tuples of a line's name, x, seed and value. The interval is NaN for one seed.
    """
    finite = [value for value in values if math.isfinite(value[3])]
    means = []
    for (name, x), points in grouped(finite, lambda one: one[:2]).items():
        each, n = [value for *_, value in points], len({seed for _, _, seed, _ in points})
        half = math.nan
        if n > 1:
            half = float(quantile(0.975, n - 1)) * standard_error(each)
        middle = mean(each)
        means.append(Point(name, float(x), Estimate(middle, middle - half, middle + half), n))
    return sorted(means, key=lambda point: point.x)


def differ(values: Iterable[float], share: float = _SAME) -> bool:
    """Return whether numbers differ by more than a share of the largest absolute value."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and max(finite) - min(finite) > share * max(map(abs, finite))


def over(seeds: Iterable[float], *, rows: bool = False) -> str:
    """Write the sentence of a caption that explains the bars: 95% intervals over n seeds.

    If `rows` is set, the intervals hold simultaneously for all rows of the figure. A single seed
    has no intervals.
    """
    counts = sorted({int(n) for n in seeds if n > 0})
    if not counts or counts[-1] < 2:
        return "One seed: no intervals."
    what = "intervals that hold for all rows at once," if rows else "intervals over"
    some = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"Bars are 95% {what} n = {some} {plural(counts[-1], 'seed')}."
