"""Pictures as readers see them: no text overlaps or is cut, and a page shows those of files."""

import base64
import itertools
from io import BytesIO
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import seaborn as sns
from matplotlib.patches import Circle
from matplotlib.text import Text
from PIL import Image, ImageChops

from llama_ablate.evidence.written import Estimate
from llama_ablate.report import embedding, plots
from llama_ablate.report.drawing import shorten_names
from llama_ablate.report.picture import (
    Axis,
    Costs,
    Dot,
    Dots,
    Lines,
    LineStyles,
    Picture,
    Point,
    Tick,
    style_names,
)
from tests.report.test_page import CHROMIUM, FLAGS

DRAW = np.random.default_rng(0)
MAX_DIFFERENCE = 96  # of 255, of any pixel


def names(count, letters=73):
    """Labels of up to 73 letters, of which the first are alike."""
    words = "norm=rmsnorm,position=rope-theta-500000,attention=gqa-kv-heads-2,ffn=swiglu"
    return ["baseline", *(f"{words[: letters - 3]}{n:03}" for n in range(1, count))]


def rows(count):
    marks = [
        Dot(name, Estimate(d, d - 0.02, d + 0.02), verdict, "2 ok, 1 diverged" if d > 0.09 else "")
        for name, d, verdict in zip(
            names(count),
            DRAW.normal(0, 0.05, count),
            itertools.cycle(["baseline", "better", "worse", "equivalent", "inconclusive"]),
        )
    ]
    ticks = [Tick(mark.name, mark.at.value + 0.01, seed) for mark in marks for seed in range(3)]
    x = Axis("loss minus that of a baseline with a long name (nats)", at=0)
    return Picture([Dots(marks, x, ticks, 0.03, styles=style_names(names(count)))])


def lines(count):
    styles = style_names(names(count))
    points = [
        Point(name, x, Estimate(2 + 5 / x**0.3 + at / 50), n=3)
        for at, name in enumerate(styles)
        for x in (1e5, 2e5, 4e5, 8e5)
    ]
    shown = LineStyles(styles, [*styles][:12])
    x, y = Axis("training tokens", "count"), Axis("loss on validation tokens (nats per token)")
    return Picture([Lines(points, x, y, shown), Lines(points, x, y, shown)], columns=2)


def costs(count):
    styles = style_names(names(count))
    marks = [
        Dot(
            name,
            Estimate(d, d - 0.02, d + 0.02),
            "inconclusive",
            cost={"bytes": Estimate(2.0 ** (10 + at % 5))},
        )
        for at, (name, d) in enumerate(zip(styles, DRAW.normal(0, 0.05, count), strict=True))
    ]
    x = Axis("state of one sequence", "bytes", whole=True)
    return Picture(
        [Costs(marks, "bytes", x, Axis("loss minus that of the baseline", at=0), styles)]
    )


@pytest.mark.parametrize("width", [plots.NARROW_WIDTH, plots.WIDTH])
@pytest.mark.parametrize("count", [2, 24, pytest.param(64, marks=pytest.mark.full)])
@pytest.mark.parametrize("make", [rows, lines, costs])
def test_no_text_overlaps_another_or_is_cut(make, count, width):
    drawing = plots.draw(make(count), width)
    figure = drawing.figure
    figure.draw_without_rendering()
    hidden = find_undrawn(figure)
    boxes = [
        (text.get_text(), text.get_window_extent())
        for text in figure.findobj(Text)
        if text.get_text().strip() and text.get_visible() and id(text) not in hidden
    ]
    whole = figure.bbox.padded(1)
    for text, box in boxes:
        assert whole.x0 <= box.x0, text
        assert box.x1 <= whole.x1, text
        assert whole.y0 <= box.y0, text
        assert box.y1 <= whole.y1, text
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        assert not a.padded(-1.5).overlaps(b.padded(-1.5)), (one, other)


@pytest.mark.parametrize("width", [plots.NARROW_WIDTH, plots.WIDTH])
def test_of_each_row_the_picture_knows_the_whole_label_of_a_name_of_its_own(width):
    drawing = plots.draw(rows(24), width)
    labels = [about["title"] for about in drawing.about.values() if "data-y" in about]
    assert labels == names(24)
    shown = [label.get_text() for label in drawing.figure.axes[0].get_yticklabels()]
    assert len({*shown}) == 24
    assert all(drawing.shortened.get(text, text) in labels for text in shown)


def find_undrawn(figure):
    """Return the ids of numbers along axes that lie beyond their ends."""
    found = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.majorTicks, *axis.minorTicks):
                if not low - 1e-9 <= tick.get_loc() <= high + 1e-9:
                    found |= {id(tick.label1)}
                found |= {id(tick.label2)}
    return found


@pytest.mark.parametrize("count", [24, pytest.param(64, marks=pytest.mark.full)])
def test_points_of_costs_are_named(count):
    written = {text.get_text() for text in plots.draw(costs(count)).figure.axes[0].texts}
    assert len(written) >= 0.85 * count


def test_beyond_24_points_of_costs_are_numbered():
    drawing = plots.draw(costs(25))
    assert all(text.get_text().isdigit() for text in drawing.figure.axes[0].texts)
    assert drawing.shortened["1"] == "baseline"


def test_short_names_are_unique_and_fit():
    short = shorten_names(names(64), 20)
    assert len({*short.values()}) == 64
    assert all(len(text) <= 20 for text in short.values())
    assert shorten_names(["a", "b"], 8) == {"a": "a", "b": "b"}


# ---- embedded in a page


def test_a_style_without_an_attribute_is_refused_by_name():
    path = '<path style="fill: none; blend: x" d="M 0 0"/>'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1">{path}</svg>'
    with pytest.raises(ValueError, match="no attribute for 'blend: x'"):
        embedding.Sheet().add(svg.encode(), {}, "x")


def test_steps_of_a_path_end_where_the_path_ends():
    points = np.cumsum(DRAW.normal(0, 3.3, (500, 2)), axis=0)
    path = "M " + "\nL ".join(f"{x:.6f} {y:.6f}" for x, y in points)
    steps = embedding.write_steps(path)[1:].replace("-", " -").split()
    ends = np.reshape([float(step) for step in steps], (-1, 2)).sum(axis=0)
    assert ends == pytest.approx(points[-1], abs=0.051)
    assert embedding.write_steps("M 1 1 L 2 1 L 2 2 z L 5 5") == "m1 1 1 0 0 1zl4 4"


def test_what_a_label_holds_is_text_in_the_page_and_ids_of_two_pictures_differ():
    hostile = '</title><script>alert(1)</script>"&'
    marks = [Dot(hostile, Estimate(0.1, 0.0, 0.2), "better")]
    sheet = embedding.Sheet()
    ids = []
    for _ in range(2):
        drawing = plots.draw(Picture([Dots(marks, Axis("x"))]), keys={hostile: "v0"})
        text = sheet.add(plots.write_svg(drawing.figure), drawing.about, hostile)
        assert "<script" not in text
        root = ET.fromstring(text)  # noqa: S314 (our own)
        assert {mark.get("data-v") for mark in root.iter()} == {None, "v0"}
        titles = {title.text for title in root.iter("title")}
        assert f"{hostile}: +0.10 [+0.00, +0.20], better" in titles
        ids.append({mark.get("id") for mark in root.iter()} - {None})
    assert ids[0]
    assert not ids[0] & ids[1]
    assert "style" not in text


def draw_clipped(axes):
    """Draw a line that only shows within a circle."""
    (line,) = axes.plot(DRAW.random(50), lw=3)
    line.set_clip_path(Circle((25, 0.5), 15, transform=axes.transData))


CONSTRUCTS = {
    "hatch": lambda a: a.bar([1, 2], [3, 4], hatch=["//", "oo"], color=["#0072b2", "#d55e00"]),
    "powers": lambda a: (a.loglog([1, 10, 1000], [1e-3, 1, 5], "o-"), a.set_title(r"$\sqrt{b}$")),
    "points": lambda a: sns.scatterplot(x=DRAW.normal(size=20), y=DRAW.normal(size=20), ax=a),
    "heat": lambda a: sns.heatmap(DRAW.random((6, 8)), annot=True, fmt=".1f", ax=a),
    "image": lambda a: a.imshow(DRAW.random((5, 9)), aspect="auto"),
    "band": lambda a: sns.lineplot(x=np.tile(np.arange(20), 5), y=DRAW.normal(size=100), ax=a),
    "bars": lambda a: a.errorbar([0.2, 0.5], [0.5, 0.2], yerr=0.1, fmt="s--", capsize=4),
    "arrow": lambda a: a.annotate("at", (0.2, 0.2), (0.7, 0.8), arrowprops={"arrowstyle": "->"}),
    "clipped": draw_clipped,
    "text": lambda a: a.set(xlabel="two\nlines", ylabel="ünïcode ∆ → ≤", title="a <b> & 'c'"),
    "contours": lambda a: a.contourf(DRAW.random((8, 8)), hatches=["/", "."]),
}


def measure_differences(files):
    """Return the greatest difference of a pixel between each file and its embedded picture."""
    api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not there")
    if CHROMIUM is None:
        pytest.skip("chromium is not there")
    sheet = embedding.Sheet()
    inside = [sheet.add(svg, {}, name, 2) for name, svg in files.items()]
    urls = [f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}" for svg in files.values()]
    sizes = [ET.fromstring(svg).get("viewBox").split()[2:] for svg in files.values()]  # noqa: S314
    rules = "".join(f".p{i} > *{{width:{w}px;height:{h}px}}" for i, (w, h) in enumerate(sizes))
    style = f"body{{margin:0}}svg,img{{display:block}}[hidden]{{display:none!important}}{rules}"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{embedding.policy(style, [])}">'
    found, said = {}, []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for i, (name, (w, h)) in enumerate(zip(files, sizes, strict=True)):
            shots = []
            for body in (
                sheet.letters + f'<div class="p{i}">{inside[i]}</div>',
                f'<div class="p{i}"><img src="{urls[i]}"></div>',
            ):
                size = {"width": round(float(w)), "height": round(float(h))}
                tab = browser.new_page(viewport=size)
                tab.on("console", lambda message: said.append(message.text))
                tab.set_content(f"<!doctype html>{policy}<style>{style}</style>{body}")
                tab.wait_for_timeout(60)
                shots.append(Image.open(BytesIO(tab.screenshot())).convert("RGB"))
                tab.close()
            found[name] = int(np.asarray(ImageChops.difference(*shots)).max())
        browser.close()
    assert said == []
    return found


@pytest.mark.full
def test_an_embedded_picture_is_that_of_its_file_whatever_is_drawn():
    files = {}
    for name, draw in CONSTRUCTS.items():
        figure = plots.blank(5, 3)
        draw(figure.subplots())
        files[name] = plots.write_svg(figure)
    found = measure_differences(files)
    assert len(found) == len(CONSTRUCTS)
    assert max(found.values()) <= MAX_DIFFERENCE, found
