"""Drawing of report figures by matplotlib in seaborn's style, for files, page and papers."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.text import Text

from llama_ablate.files import disk
from llama_ablate.report.drawing import POINTS, Drawing, blank, canvas, quiet, style
from llama_ablate.report.panels import draw_panels, draw_rows
from llama_ablate.report.picture import Dots, Picture
from llama_ablate.terminal import visible

__all__ = ["blank", "canvas", "draw", "for_paper", "save", "write_svg"]

#: Width of a figure on a screen and on a phone, in pixels.
WIDTH, NARROW_WIDTH = 700, 328
#: Figures for a paper: font size in points, and largest height in inches.
_PAPER_POINTS, _PAGE = 7, 7.2


def draw(
    picture: Picture,
    width: float = WIDTH,
    keys: Mapping[str, str] | None = None,
    points: float = POINTS,
) -> Drawing:
    """Draw a picture as a matplotlib figure, with HTML attributes for its artists.

    `picture` describes the panels. `width` is in pixels, `points` is the font size, and `keys` maps
    variant labels to the short keys that variants have in the HTML page.
    """
    with style(points), quiet():
        drawing = Drawing(blank(width / 72, 1), keys or {}, points)
        first = picture.panels[0]
        if isinstance(first, Dots):
            draw_rows(drawing, picture)
        else:
            draw_panels(drawing, picture)
    return drawing


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as SVG and PNG files, each atomically; return both paths."""
    base = path.with_suffix("") if path.suffix in (".svg", ".png") else path
    disk.make(path.parent)
    contents = {".svg": write_svg(figure), ".png": _save(figure, "png", dpi=144)}
    paths = [base.with_name(base.name + ending) for ending in contents]
    for target, content in zip(paths, contents.values(), strict=True):
        disk.replace(target, content)
    return paths


def write_svg(figure: Figure) -> bytes:
    """Return a figure as SVG; equal figures give equal bytes."""
    return _save(figure, "svg", metadata={"Date": None})


def for_paper(picture: Picture, width: float) -> bytes:
    """Return a picture as PDF for a paper, `width` inches wide, in 7-point letters.

    Fonts are embedded as TrueType outlines, which publishers require.
    """
    figure = draw(picture, 72 * width, points=_PAPER_POINTS).figure
    height = figure.get_size_inches()[1]
    if height > _PAGE:
        figure.set_size_inches(width, _PAGE)
    content = _save(figure, "pdf", metadata={"CreationDate": None})
    figure.clear()
    return content


def _save(figure: Figure, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    _turn_off_formulas(figure)
    settings: Any = {"svg.hashsalt": "llama_ablate", "svg.fonttype": "path", "pdf.fonttype": 42}
    with mpl.rc_context(settings), quiet():
        figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()


def _turn_off_formulas(figure: Figure) -> None:
    """Turn off TeX math in all texts of a figure, and escape control characters."""
    for text in figure.findobj(Text):
        if isinstance(text, Text) and "$\\mathdefault" not in text.get_text():
            text.set_parse_math(False)
            text.set_text(visible(text.get_text()))
