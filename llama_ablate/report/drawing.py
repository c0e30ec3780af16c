"""Matplotlib figures for report pictures: style, shortened names, and tick labels.

Figures have 72 pixels per inch and a fixed size, so that a letter of ten points is ten pixels high
in the HTML page. Artists that show a variant or a run have a gid, by which the page finds the
attributes of their SVG elements.
"""

import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis as Ruler
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator, NullLocator

from llama_ablate.config.labels import shorten_labels
from llama_ablate.report import tables
from llama_ablate.report.picture import GRID, INK, Axis
from llama_ablate.terminal import visible

POINTS = 10  # font size
LETTER = 0.62  # average width of a letter, relative to its font size


@dataclass
class Drawing:
    """Matplotlib figure with the attributes that its artists get in the HTML page.

    `keys` maps variant labels to short keys of the page, `points` is the font size, and `about`
    holds the attributes by the artists' gids.
    """

    figure: Figure
    keys: Mapping[str, str]
    points: float
    about: dict[str, dict[str, str]] = field(default_factory=dict)
    #: Full names by the shortened names that are drawn.
    shortened: dict[str, str] = field(default_factory=dict)

    @property
    def width(self) -> float:
        """Width of the figure in pixels."""
        return float(self.figure.bbox.width)

    def tag(self, artist: Artist, name: str, title: str, **more: str) -> None:
        """Set the HTML attributes of an artist: its variant's key, a hover title, and `more`."""
        gid = f"a{len(self.about)}"
        artist.set_gid(gid)
        attributes = {"data-v": self.keys[name]} if name in self.keys else {}
        self.about[gid] = attributes | {"title": visible(title)} | more

    def measure(self, text: str) -> float:
        """Return the width of a text's longest line in pixels."""
        canvas = self.figure.canvas
        assert isinstance(canvas, FigureCanvasAgg)
        renderer: Any = canvas.get_renderer()  # type: ignore[no-untyped-call] # as matplotlib has it
        font = FontProperties(size=self.points)
        lines = text.split("\n")
        sizes = (renderer.get_text_width_height_descent(line, font, ismath=False) for line in lines)
        return max(float(width) for width, _height, _descent in sizes)

    def shorten(self, names: Iterable[str], room: float) -> dict[str, str]:
        """Shorten names to fit `room` pixels, and keep them distinct."""
        plain = shorten_labels([*names])
        most = int(room / (LETTER * self.points))
        with quiet():
            short = shorten_names([*plain.values()], most, lambda text: self.measure(text) <= room)
        shortened = {name: short[text] for name, text in plain.items()}
        self.shortened |= {text: name for name, text in shortened.items() if text != visible(name)}
        return shortened

    def wrap(self, text: str, room: float) -> str:
        """Break text into lines of at most `room` pixels."""
        return textwrap.fill(visible(text), max(8, int(room / (LETTER * self.points))))


def shorten_names(
    names: Sequence[str], most: int, fits: Callable[[str], bool] = lambda _: False
) -> dict[str, str]:
    """Shorten names to `most` letters; number names that would be equal after shortening.

    A longer name for which `fits` is true is not shortened.
    """
    most = max(most, 8)
    plain = {name: visible(name).replace("\n", " ").replace("\t", " ") for name in names}
    short = {
        name: text if len(text) <= most or fits(text) else f"{text[: most - 1]}…"
        for name, text in plain.items()
    }
    taken = [text.casefold() for text in short.values()]
    for number, (name, text) in enumerate(short.items(), 1):
        if taken.count(text.casefold()) > 1 and text != name:
            short[name] = f"{plain[name][: most - 2 - len(str(number))]}… {number}"
    return short


@contextmanager
def style(points: float = POINTS) -> Iterator[None]:
    """Set seaborn's white-grid style with a single font size, in points."""
    sizes = ("font.size", "axes.labelsize", "axes.titlesize", "xtick.labelsize", "ytick.labelsize")
    ink = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    style_values: Any = dict.fromkeys((*sizes, "legend.fontsize"), points) | dict.fromkeys(ink, INK)
    style_values |= {"axes.spines.right": False, "axes.spines.top": False, "grid.color": GRID}
    style_values |= {"axes.edgecolor": GRID, "xtick.major.size": 0, "ytick.major.size": 0}
    style_values |= {"text.parse_math": False}  # a label is no formula
    with (
        sns.axes_style("whitegrid"),
        mpl.rc_context(style_values | {"path.simplify_threshold": 0.3}),
    ):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress matplotlib's warnings about characters without a glyph, which it draws as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def blank(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches.

    It is made without pyplot, so that it needs no display and need not be closed.
    """
    figure = Figure(figsize=(width, height), dpi=72, layout="constrained")
    # The canvas keeps one renderer; without it, matplotlib makes one for every measured label.
    FigureCanvasAgg(figure)
    return figure


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure of a size in inches, and its axes."""
    with style():
        figure = blank(width, height)
        return figure, figure.subplots()


def rule_axis(ruler: Ruler, axis: Axis, places: Sequence[float], room: float) -> None:
    """Set the scale, ticks and tick labels of an axis.

    `room` is the number of letters that fit along the axis. On an x axis, each position in `places`
    gets a tick if there are at most eight positions and their labels fit.
    """
    is_x = ruler is ruler.axes.xaxis
    if axis.log:
        (ruler.axes.set_xscale if is_x else ruler.axes.set_yscale)("log", base=2)
    write = tables.size if axis.form == "bytes" else tables.shorten_number
    if axis.form or axis.log:
        ruler.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
    ruler.set_minor_locator(NullLocator())
    low, high = sorted(ruler.get_view_interval())
    if axis.whole or (axis.form == "bytes" and not axis.log):
        (ruler.axes.set_xlim if is_x else ruler.axes.set_ylim)(0, high)
        low = 0.0
    most = max(2, int(room / 7))
    letters = sum(len(write(place)) + 1.5 for place in places)
    if is_x and 1 < len(places) <= 8 and letters * LETTER < room and _are_apart(places, axis, room):
        ruler.set_ticks(places, [write(place) for place in places])
    elif axis.log and low > 0:
        first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
        if last - first > 1:
            steps = max(1, math.ceil((last - first) / most))
            ruler.set_ticks([2.0**n for n in range(first, last + 1, steps)])
        else:
            ruler.set_major_locator(MaxNLocator(4))
    elif axis.form == "bytes":  # two to four steps of a power of two
        ruler.set_major_locator(MultipleLocator(2 ** math.floor(math.log2((high - low) / 2))))
    else:
        ruler.set_major_locator(MaxNLocator(min(most, 7)))


def _are_apart(places: Sequence[float], axis: Axis, room: float) -> bool:
    """Return whether tick labels at some positions of an axis do not overlap."""
    at = np.log(places) if axis.log else np.array(places, float)
    least = float(np.diff(at).min()) / float(at[-1] - at[0])
    return least * room * 0.9 > LETTER * max(
        len(tables.shorten_number(place)) + 1.5 for place in places
    )
