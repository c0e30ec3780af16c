"""Figures that pictures are drawn on: style, names that fit, numbers along axes.

A figure has 72 pixels to the inch and a fixed size, so that a letter of ten points is ten pixels
high in the page. Each artist about a variant or a run has attributes for the page, by its gid.
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

POINTS = 10  # of a letter
LETTER = 0.62  # of its points that a letter is wide, on average


@dataclass
class Drawing:
    """Figure, with page attributes of its artists by gid."""

    figure: Figure
    keys: Mapping[str, str]
    points: float
    about: dict[str, dict[str, str]] = field(default_factory=dict)
    #: The names in full of those that are drawn shortened.
    shortened: dict[str, str] = field(default_factory=dict)

    @property
    def width(self) -> float:
        """The width in pixels."""
        return float(self.figure.bbox.width)

    def tag(self, artist: Artist, name: str, title: str, **more: str) -> None:
        """Tag an artist with its variant and its hover title."""
        gid = f"a{len(self.about)}"
        artist.set_gid(gid)
        attributes = {"data-v": self.keys[name]} if name in self.keys else {}
        self.about[gid] = attributes | {"title": visible(title)} | more

    def measure(self, text: str) -> float:
        """Measure the width of a line of text in pixels."""
        canvas = self.figure.canvas
        assert isinstance(canvas, FigureCanvasAgg)
        renderer: Any = canvas.get_renderer()  # type: ignore[no-untyped-call] # as matplotlib has it
        font = FontProperties(size=self.points)
        lines = text.split("\n")
        sizes = (renderer.get_text_width_height_descent(line, font, ismath=False) for line in lines)
        return max(float(width) for width, _height, _descent in sizes)

    def shorten(self, names: Iterable[str], room: float) -> dict[str, str]:
        """Return names that fit a number of pixels, no two alike."""
        plain = shorten_labels([*names])
        most = int(room / (LETTER * self.points))
        with quiet():
            short = shorten_names([*plain.values()], most, lambda text: self.measure(text) <= room)
        shortened = {name: short[text] for name, text in plain.items()}
        self.shortened |= {text: name for name, text in shortened.items() if text != visible(name)}
        return shortened

    def wrap(self, text: str, room: float) -> str:
        """Return text in lines of at most so many pixels."""
        return textwrap.fill(visible(text), max(8, int(room / (LETTER * self.points))))


def shorten_names(
    names: Sequence[str], most: int, fits: Callable[[str], bool] = lambda _: False
) -> dict[str, str]:
    """Shorten names to a number of letters, and number those that would be equal.

    A longer name that `fits` stays as it is.
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
    """Draw in seaborn's style, with letters of one size."""
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
    """Draw a box for a character without a glyph, and warn of none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def blank(width: float, height: float) -> Figure:
    """Return an empty figure, in inches, without pyplot: nothing to close, no display needed."""
    figure = Figure(figsize=(width, height), dpi=72, layout="constrained")
    # Its one renderer is kept: without, matplotlib makes another for every label that is measured.
    FigureCanvasAgg(figure)
    return figure


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty figure and its axes, in inches."""
    with style():
        figure = blank(width, height)
        return figure, figure.subplots()


def rule_axis(ruler: Ruler, axis: Axis, places: Sequence[float], room: float) -> None:
    """Choose the tick labels of an axis with room for a number of letters.

    Few places have each its own.
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
    elif axis.form == "bytes":  # two to four steps, which are round in KiB
        ruler.set_major_locator(MultipleLocator(2 ** math.floor(math.log2((high - low) / 2))))
    else:
        ruler.set_major_locator(MaxNLocator(min(most, 7)))


def _are_apart(places: Sequence[float], axis: Axis, room: float) -> bool:
    """Return whether the numbers at some places along an axis do not touch."""
    at = np.log(places) if axis.log else np.array(places, float)
    least = float(np.diff(at).min()) / float(at[-1] - at[0])
    return least * room * 0.9 > LETTER * max(
        len(tables.shorten_number(place)) + 1.5 for place in places
    )
