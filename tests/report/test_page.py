"""The page in a browser, and what stands in it: chromium draws it offline, under its own policy."""

import base64
import csv
import dataclasses
import gzip
import hashlib
import html.parser
import json
import re
import shutil
from io import StringIO
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from llama_ablate.evidence.written import Estimate
from llama_ablate.findings.frames import Frames
from llama_ablate.report import embedding, page
from llama_ablate.report.picture import Axis, Dot, Dots, Picture
from llama_ablate.report.sections import FIGURES, SECTIONS, Section, sections
from llama_ablate.report.warnings import warnings
from llama_ablate.results import Store
from llama_ablate.results.record import Measurement, Value
from llama_ablate.results.snapshot import Results
from tests import plans
from tests.metrics import measured
from tests.quiet import until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
MOST_BYTES = 1_000_000
PACKS = Path(__file__).parents[2] / "results" / "reference"
SEEDS = (0, 1, 2)
HOSTILE = "a<b>'\"</script><script>alert(1)</script>"
#: Loss over that of the baseline of each variant, in either table, and its norm.
LOSSES = {"base": (0.0, 0.0), "good": (-0.2, 0.3), HOSTILE: (0.05, 0.05), "far": (4.0, 4.0)}
NOISE = (0.0, 0.02, -0.02)
TABLES = {"small": "a", "large": "b"}  # and how the ids of their variants and runs begin
KEYS = {label: f"v{n}" for n, label in enumerate(LOSSES)}


def record(table, label, seed, loss):
    own = {"test_loss_nats": loss, "test_perplexity": 8.0, "test_bits_per_byte": 3.0}
    return dataclasses.replace(
        plans.RECORD,
        id=f"{TABLES[table]}{KEYS[label]}{seed}",
        label=label,
        variant=TABLES[table] + KEYS[label],
        seed=seed,
        metrics={"perplexity": measured(**own)},
    )


def curve(loss):
    """Points of a learning curve that ends at a loss."""
    return [
        {"step": s, "tokens": 32 * s, "validation_loss_nats": loss + 1 / s, "train_loss_nats": 3.0}
        for s in (1, 2, 4, 8)
    ]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Results of two tables of four variants and three seeds: 24 runs."""
    found = Store(tmp_path_factory.mktemp("page") / "x")
    tables = []
    for at, name in enumerate(TABLES):
        variants = [
            plans.variant(
                TABLES[name] + key,
                label,
                parameters=1000 * (place + 1 + 10 * at),
                model={"dim": 8, "norm": label},
                state_bytes=64 << place,
            )
            for place, (label, key) in enumerate(KEYS.items())
        ]
        runs = [plans.run(f"{v.id}{s}", v.id, s, steps=8) for v in variants for s in SEEDS]
        tables.append(plans.table(variants, runs, {"vocab": 256}, name=name))
    question = "Is it <script>alert(1)</script> better?"
    document = plans.document(*tables, question=question, measure=["perplexity", "train_speed"])
    found.create(document, "name: x\n")
    for at, table in enumerate(tables):
        for place, (label, over) in enumerate(LOSSES.items()):
            for seed in SEEDS:
                loss = 2 + 0.1 * seed + over[at] + NOISE[(seed + place) % 3]
                found.commit(record(table.name, label, seed, loss), curve(loss), None)
            key = TABLES[table.name] + KEYS[label]
            with found.alone("measure") as lease:
                speeds = [1000.0 + 100 * place + turn for turn in range(3)]
                row = Value("train_tokens_per_s", speeds[1], samples=tuple(speeds) * 3)
                measurement = Measurement((row,))
                found.add_variant_metric(lease, label, key, "train_speed", measurement)
    return found


def written(store, folder=None):
    """Write the report; return its page's path."""
    frames = Frames.of(Results(store))
    return page.write(frames, sections(frames), warnings(frames), folder or store.report)


@pytest.fixture(scope="module")
def quick(store):
    """The page without its figures, which take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "_draw", lambda *_: [])
        return written(store)


@pytest.fixture(scope="module")
def whole(store):
    return written(store, store.report / "whole")


class Read(html.parser.HTMLParser):
    """What a page holds: its policy, the texts that run or style it, and every attribute."""

    def __init__(self, text):
        super().__init__()
        self.policy, self.texts, self.attributes, self.tag = "", {"script": [], "style": []}, [], ""
        self.kinds, self.ids = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tag, values = tag, dict(attributes)
        self.attributes += [(tag, name, value) for name, value in attributes]
        self.ids += [values["id"]] if "id" in values else []
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        if tag in self.texts:
            self.texts[tag].append("")
            self.kinds += [values.get("type", "")] if tag == "script" else []

    def handle_endtag(self, _tag):
        self.tag = ""

    def handle_data(self, data):
        if self.tag in self.texts:
            self.texts[self.tag][-1] += data


def unpacked(read):
    """The library, and the data."""
    packed = [
        t for t, k in zip(read.texts["script"], read.kinds, strict=True) if k.endswith("gzip")
    ]
    return [gzip.decompress(base64.b64decode(text)).decode() for text in packed]


def directive(policy, name):
    return next(part.split()[1:] for part in policy.split("; ") if part.startswith(f"{name} "))


def test_the_policy_allows_just_the_styles_and_scripts_that_the_page_holds(quick):
    read = Read(quick.read_text("utf-8"))
    run = [unpacked(read)[0], read.texts["script"][read.kinds.index("")]]
    assert sorted(read.kinds) == ["", "application/gzip", "application/gzip"]
    for name, texts in (("script-src", run), ("style-src", read.texts["style"])):
        hashes = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in texts]
        assert directive(read.policy, name) == [f"'sha256-{value}'" for value in hashes]
    assert directive(read.policy, "default-src") == ["'none'"]
    assert "unsafe" not in read.policy
    assert not [one for one in read.attributes if one[1] == "style" or one[1].startswith("on")]
    sources = {value.partition(",")[0] for _, name, value in read.attributes if name == "src"}
    assert sources <= {"data:image/svg+xml"}


def test_every_entry_of_the_contents_leads_to_a_part_of_the_page(quick):
    read = Read(quick.read_text("utf-8"))
    within = [v[1:] for _, name, v in read.attributes if name == "href" and v.startswith("#")]
    assert {"comparison", "runs", "recipes", "glossary"} <= set(within)
    assert set(within) <= set(read.ids)
    assert len(read.ids) == len(set(read.ids))


def test_charts_have_their_data_by_table_and_a_number_that_is_none_is_null(quick):
    read = Read(quick.read_text("utf-8"))
    embedded = json.loads(unpacked(read)[1])
    charts = embedded["charts"]
    assert set(charts) == {"effects", "learning_curves", "costs"}
    assert set(charts["effects"]) == {"small", "large"}
    rows = charts["costs"]["small"]["data"]["rows"]
    by_variant = {row["variant"]: row for row in rows}
    assert set(by_variant) == set(LOSSES)
    assert by_variant["base"]["p"] is None
    assert by_variant["good"]["difference"] == pytest.approx(-0.2, abs=0.03)


def test_a_run_is_linked_to_its_record(quick):
    read = Read(quick.read_text("utf-8"))
    links = [v for _, name, v in read.attributes if name == "href" and not v.startswith("#")]
    assert len(links) == 24
    for link in links:
        assert json.loads((quick.parent / link).read_text())["id"] in link


def test_recipes_are_told_as_differences_from_the_baseline(quick):
    text = quick.read_text("utf-8")
    recipes = text[text.index('<section id="recipes">') : text.index('<section id="glossary">')]
    rows = re.findall(r'<tr data-variant="good">(.*?)</tr>', recipes)
    cells = [re.findall(r">([^<]+)</t[dh]>", row) for row in rows]
    assert cells == [["good", name, "norm", "base", "good"] for name in ("small", "large")]


def test_a_chart_and_a_short_section_that_are_registered_are_on_the_page(
    store, tmp_path, monkeypatch
):
    monkeypatch.setattr(page, "_draw", lambda *_: [])
    for registry in (FIGURES, SECTIONS):
        monkeypatch.setattr(registry, "_makers", dict(registry._makers))

    @FIGURES.register("dots")
    def dots(frames):
        """Show a dot for each seed."""
        seeds = sorted({run.seed for run in frames.runs})
        marks = [Dot(f"seed {seed}", Estimate(seed)) for seed in seeds]
        return Picture([Dots(marks, Axis("seed"))])

    @SECTIONS.register("seeds")
    def seeds(frames):
        frame = pd.DataFrame([(r.label, r.seed) for r in frames.runs], columns=["label", "seed"])
        return Section("Seeds", frame.astype(str), "", frame, short=1)

    text = written(store, tmp_path).read_text("utf-8")
    assert "A dot for each seed." in text
    assert '<figure data-chart="dots">' in text
    heads = re.findall(r"<th scope=.col.*?>", text[text.index('<section id="seeds">') :])[:2]
    assert ["data-more" in head for head in heads] == [False, True]


def letters(svg):
    """Each letter of a drawing: numbers of its outline and scale, and where it and its word are."""
    root, link = ET.fromstring(svg), "{http://www.w3.org/1999/xlink}href"  # noqa: S314 (our own)
    outlines = {f"#{p.get('id')}": p for p in root.findall(".//{*}path") if p.get("transform")}
    uses = [(word, used) for word in root.findall(".//{*}g") for used in word.findall("{*}use")]
    found = [(outlines[u.get(link)], u, word) for word, u in uses if u.get(link) in outlines]
    texts = [" ".join(p.get(k, "") for p in one for k in ("d", "transform")) for one in found]
    return [[float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", t)] for t in texts]


def test_the_letters_on_the_page_are_as_large_and_as_far_apart_as_in_the_figures_file():
    figure, file = Figure(), StringIO()
    figure.subplots().set_title("loss minus that of 'baseline'")
    figure.savefig(file, format="svg")
    drawn = letters(file.getvalue())
    shown = letters(unquote(embedding.image(file.getvalue()).partition(",")[2]))
    assert len(drawn) == len(shown) > 40
    assert all(pytest.approx(its, rel=1e-4) == ours for its, ours in zip(drawn, shown, strict=True))


@pytest.mark.full
def test_the_page_of_24_runs_is_small_and_holds_static_figures_for_readers_without_scripts(whole):
    text = whole.read_text("utf-8")
    assert len(text.encode()) <= MOST_BYTES
    quiet = re.findall(r"<noscript>(.*?)</noscript>", text, re.DOTALL)
    assert len(quiet) == 3
    assert all('src="data:image/svg+xml,' in part for part in quiet)
    assert text.index("<noscript>") > text.index('data-chart="effects"')


# ---- in a browser


@pytest.fixture(scope="module")
def browser():
    """A chromium of Debian's, which needs no download."""
    api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not there")
    if CHROMIUM is None:
        pytest.skip("chromium is not there")
    with api.sync_playwright() as playwright:
        shown = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield shown
        shown.close()


@pytest.fixture
def show(browser):
    """Return a function that opens a page, which must have asked for nothing at the end."""
    told, contexts = [], []

    def opened(path, **options):
        context = browser.new_context(
            viewport={"width": options.pop("width", 1300), "height": 900}, **options
        )
        contexts.append(context)
        context.set_default_timeout(20_000)
        tab = context.new_page()
        tab.on("console", lambda message: told.append(message.text))
        tab.on("pageerror", lambda error: told.append(str(error)))
        tab.on(
            "request",
            lambda asked: (
                told.append(asked.url)
                if asked.url != path.as_uri() and not asked.url.startswith("data:")
                else None
            ),
        )
        tab.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            tab.locator("[data-chart] svg:visible").first.wait_for()
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert told == []


def row(tab, label):
    """The row of a variant in the comparison that is shown."""
    rows = tab.locator("#comparison [data-table]:not([hidden]) tr[data-variant]")
    return rows.filter(has=tab.locator("th", has_text=re.compile(f"^{re.escape(label)}$")))


def axis(tab):
    """The labels along the axes of the chart of effects."""
    return tab.locator("[data-chart=effects] svg .role-axis-label text").all_text_contents()


def faint(tab, chart):
    """How many marks of a chart's symbols are faded."""
    marks = tab.locator(f"[data-chart={chart}] svg .mark-symbol.role-mark path")
    return sum(
        float(v or 1) < 0.5
        for v in marks.evaluate_all("m => m.map(x => x.getAttribute('opacity'))")
    )


def variants(tab):
    """The variants of the comparison that is shown, in its order."""
    rows = tab.locator("#comparison [data-table]:not([hidden]) tbody tr:not([hidden]) th")
    return rows.all_text_contents()


def test_the_page_draws_its_charts_sorts_them_with_their_table_and_opens_the_runs_of_a_verdict(
    quick, show
):
    tab = show(quick)
    assert tab.locator(".plot svg").count() == 3
    assert tab.locator("#comparison [data-table=large]").is_hidden()
    assert variants(tab) == ["base", "good", HOSTILE, "far"]  # as the chart from the first
    assert [text[:4] for text in axis(tab)[-3:]] == ["good", "a<b>", "far"]
    head = tab.locator("#comparison [data-table=small] th button", has_text="difference")
    assert "interval" in head.get_attribute("title")
    head.click()
    head.click()
    assert variants(tab) == ["far", HOSTILE, "good", "base"]  # what has none is last
    assert [text[:4] for text in axis(tab)[-3:]] == ["far", "a<b>", "good"]
    row(tab, HOSTILE).locator("td button").click()
    panel = tab.locator("#panel")
    assert panel.locator("h2").inner_text() == HOSTILE
    assert panel.locator("tbody tr").count() == 3 + 1  # its seeds in this table, and its recipe
    assert panel.locator("a").first.get_attribute("href").endswith("record.json")
    assert "norm of the gradient" in panel.locator("svg").text_content()
    tab.keyboard.press("Escape")
    assert panel.is_hidden()


@pytest.mark.full
def test_rows_are_filtered_with_their_chart_and_copied_as_they_are_shown(whole, show):
    tab = show(whole, permissions=["clipboard-read", "clipboard-write"])
    part = tab.locator("#comparison [data-table=small]")
    part.locator("details.columns summary").click()
    part.locator(".columns input:checked:not([disabled])").last.uncheck()
    tab.evaluate("document.querySelector('#runs details').open = true")
    filtered = tab.locator("#runs input[type=search]")
    filtered.fill("good nowhere")
    assert tab.locator("#runs tbody tr:not([hidden])").count() == 0
    filtered.fill("good av")
    assert tab.locator("#runs tbody tr:not([hidden])").count() == 3
    copied = {}
    for form in ("CSV", "Markdown", "LaTeX"):
        part.locator(".tools button", has_text=form).click()
        part.locator(".tools button", has_text="copied").wait_for()
        copied[form] = tab.evaluate("navigator.clipboard.readText()")
        part.locator(".tools button", has_text=form).wait_for()
    rows = list(csv.reader(StringIO(copied["CSV"])))
    assert [row[0] for row in rows] == ["variant", "base", "good", HOSTILE, "far"]
    heads = part.locator("thead th:not([hidden])")
    assert rows[0] == heads.all_text_contents()
    assert len(rows[0]) < part.locator("thead th").count()
    assert "<script" not in copied["Markdown"]
    lines = copied["Markdown"].splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines if line}) == 1
    assert copied["LaTeX"].count("\\\\") == 5
    assert not re.search(r"(?<!\\)[%#_$]", copied["LaTeX"])


@pytest.mark.full
def test_a_filter_leaves_the_same_rows_in_the_chart(tmp_path, show, monkeypatch):
    monkeypatch.setattr(page, "_draw", lambda *_: [])
    frames = Frames.of(Results.open(PACKS / "claims" / "e12-positions"))
    tab = show(page.write(frames, sections(frames), [], tmp_path))
    tab.locator("#comparison .lead input[type=search]").fill("rope")
    assert axis(tab)[-2:] == ["rope-theta=100", "rope-theta=500000"]
    assert "no-position" not in axis(tab)
    rows = tab.locator("#comparison .lead tbody tr:not([hidden])")
    assert rows.count() == 3  # those, and the baseline, which the chart draws as its line
    assert rows.first.inner_text().startswith("rope-theta=10000 (baseline)")
    rows.nth(1).locator("td button").first.click()
    assert "of 92 points of a curve at most 50 are drawn" in tab.locator("#panel").inner_text()
    assert tab.locator("#panel tbody tr").count() == 7 + 1


#: Widths, whether it is dark, whether all parts are open, and whether it is on paper.
LOOKS = [
    (width, dark, unfolded, False)
    for width, dark, unfolded in (
        *((400, False, False), (1000, False, False), (1400, False, False)),
        *((1400, True, False), (400, False, True), (1000, False, True), (1400, False, True)),
    )
] + [(720, False, True, True)]
TEN = [
    "first",
    "prose",
    "wikitext2",
    "hybrids-state-small",
    "moe-small",
    "gpu-10m",
    "width-transfer",
]
TEN += [f"claims/{name}" for name in ("e12-positions", "e16-leave-one-out-stack")]
TEN += ["claims/e18-isotime-pareto"]


@pytest.mark.full
@pytest.mark.parametrize("pack", TEN)
def test_no_text_overlaps_or_is_cut_and_no_word_is_broken(pack, tmp_path, show, monkeypatch):
    monkeypatch.setattr(page, "_draw", lambda *_: [])  # pictures have no text to a browser
    frames = Frames.of(Results.open(PACKS / pack))
    written = page.write(frames, sections(frames), warnings(frames), tmp_path)
    wrong = (Path(__file__).parent / "layout.js").read_text("utf-8")
    found = {}
    for width, dark, unfolded, paper in LOOKS:
        tab = show(written, width=width, color_scheme="dark" if dark else "light")
        if paper:
            tab.emulate_media(media="print")
        if unfolded:
            tab.evaluate(
                "for (const part of document.querySelectorAll('details')) part.open = true"
            )
            tab.wait_for_timeout(300)
        found[width, dark, unfolded, paper] = tab.evaluate(wrong, paper)
        tab.context.close()
    assert not any(found.values()), found


@pytest.mark.full
@pytest.mark.parametrize("pack", ["claims/e07-ffn-activation"])
def test_the_page_of_120_runs_is_small_whose_curves_have_50_points_at_most(pack, tmp_path):
    frames = Frames.of(Results.open(PACKS / pack))
    written = page.write(frames, sections(frames), warnings(frames), tmp_path)
    assert written.stat().st_size <= 1_300_000
    runs = json.loads(unpacked(Read(written.read_text("utf-8")))[1])["runs"]
    assert len(runs) == 120
    for run, drawn in runs.items():
        curve = frames.table.curve(run)
        at = [point[0] for point in drawn["points"]]
        assert len(at) <= 50
        assert at == sorted(at)
        assert at[-1] == pytest.approx(curve[-1]["tokens"], rel=1e-3)
        assert drawn["of"] == len(curve)


@pytest.mark.full
def test_a_picture_on_the_page_is_that_of_its_file(whole, show):
    """Drawn by a browser, pixel by pixel: but for rounding to a thousandth at the edges."""
    file = whole.parent / "figures" / "learning_curves.svg"
    svg = file.read_text("utf-8")
    as_it_is = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    tab = show(whole)
    drawn = """async (source) => {
        const image = new Image(); image.src = source; await image.decode();
        const canvas = Object.assign(document.createElement("canvas"), { width: 900, height: 600 });
        const context = canvas.getContext("2d"); context.drawImage(image, 0, 0, 900, 600);
        return [...context.getImageData(0, 0, 900, 600).data];
    }"""
    ours, theirs = (np.array(tab.evaluate(drawn, s), int) for s in (embedding.image(svg), as_it_is))
    assert theirs.std() > 5
    assert np.abs(ours - theirs).max() <= 64
    assert (np.abs(ours - theirs) > 8).mean() < 1e-4


@pytest.mark.full
def test_a_click_on_a_row_lights_the_variant_everywhere_and_another_puts_it_out(whole, show):
    tab = show(whole)
    assert faint(tab, "effects") == faint(tab, "costs") == 0
    row(tab, "good").click()
    assert tab.locator("#runs tr.lit").count() == 6  # three seeds in two tables
    tab.locator("#runs summary").first.click()
    assert faint(tab, "effects") == 3  # two points, and the arrow of one beyond the axis
    assert faint(tab, "costs") == 3
    tab.locator("#runs tr.lit").first.click()
    assert tab.locator("tr.lit").count() == 0
    assert faint(tab, "effects") == 0


@pytest.mark.full
def test_the_keyboard_does_what_the_mouse_does(whole, show):
    tab = show(whole)
    row(tab, HOSTILE).focus()
    tab.keyboard.press("Enter")
    assert row(tab, HOSTILE).get_attribute("aria-current") == "true"
    tab.keyboard.press("Escape")
    assert tab.locator("tr.lit").count() == 0
    tab.locator("#table").focus()
    tab.keyboard.press("ArrowDown")
    assert tab.locator("#comparison [data-table=large]").is_visible()
    tab.locator("nav a", has_text="Runs").focus()
    tab.keyboard.press("Enter")
    until(lambda: tab.evaluate("scrollY") > 0)


@pytest.mark.full
def test_a_point_of_a_chart_tells_its_numbers_and_lights_its_variant(whole, show):
    tab = show(whole)
    points = tab.locator("[data-chart=effects] svg .mark-symbol.role-mark path")
    points.first.hover()
    tip = tab.locator("#tip").inner_text()
    for words in ("variant", "good", "-0.2", "p (corrected)", "better", "speed"):
        assert words in tip
    ticks = tab.locator("[data-chart=effects] svg .mark-rect.role-mark path")
    box = ticks.nth(1).bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 2)
    assert "run" in tab.locator("#tip").inner_text()
    assert "av" in tab.locator("#tip").inner_text()
    points.first.click()
    assert row(tab, "good").get_attribute("aria-current") == "true"
    tab.mouse.move(5, 5)
    assert tab.locator("#tip").is_hidden()


@pytest.mark.full
def test_the_selector_shows_one_table_and_its_charts(whole, show):
    tab = show(whole)
    assert [text[:4] for text in axis(tab)[-3:]] == ["good", "a<b>", "far"]
    tab.select_option("#table", "large")
    assert [text[:4] for text in axis(tab)[-3:]] == ["a<b>", "good", "far"]
    assert tab.locator("#comparison [data-table=small]").is_hidden()
    assert row(tab, "good").locator("td", has_text="worse").count() == 1
    row(tab, "good").click()
    tab.select_option("#table", "small")
    assert row(tab, "good").get_attribute("aria-current") == "true"
    assert faint(tab, "effects") == 3  # two points, and the arrow of one beyond the axis


@pytest.mark.full
def test_a_cost_is_chosen_an_axis_made_logarithmic_and_small_effects_enlarged(whole, show):
    tab = show(whole)
    costs = tab.locator("[data-chart=costs]")
    assert "training time" in costs.locator("svg").text_content()
    costs.locator("select").select_option("parameters")
    assert "parameters" in costs.locator("svg").text_content()
    costs.locator("input[data-log=x]").check()
    assert costs.locator("select").input_value() == "parameters"
    assert costs.locator("svg .mark-symbol.role-mark path").count() == 4
    effects = tab.locator("[data-chart=effects]")
    zoom = effects.locator("input[type=checkbox]")
    assert zoom.is_checked()  # one effect is twenty times the others
    assert "4" not in axis(tab)
    zoom.uncheck()
    assert any(text.startswith(("4", "3")) for text in axis(tab))


@pytest.mark.full
def test_columns_beyond_the_first_are_there_for_those_who_choose_them(
    store, tmp_path, show, monkeypatch
):
    monkeypatch.setattr(page, "_draw", lambda *_: [])
    frames = Frames.of(Results(store))
    every = [s for s in sections(frames) if s.key == "comparison"]
    every = [dataclasses.replace(s, short=3) for s in every]
    tab = show(page.write(frames, every, [], tmp_path))
    head = tab.locator("#comparison [data-table=small] thead th")
    assert [h.is_visible() for h in head.all()][:4] == [True, False, True, False]
    same = tab.locator(
        "#comparison [data-table=small] p.facts", has_text="The same in all rows that say it"
    )
    assert "n 3" in same.inner_text()
    tab.locator("#comparison [data-table=small] summary", has_text="columns (2 of").click()
    tab.locator("#comparison [data-table=small] .columns input").nth(3).check()
    assert head.nth(3).is_visible()


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [
        {"width": 400},
        {"color_scheme": "dark"},
        {"width": 400, "color_scheme": "dark", "has_touch": True},
    ],
)
def test_the_page_fits_a_telephone_and_the_night(whole, show, options):
    tab = show(whole, **options)
    assert tab.evaluate("document.documentElement.scrollWidth") <= options.get("width", 1300)
    for plot in tab.locator(".plot svg").all():
        assert plot.bounding_box()["width"] <= options.get("width", 1300)
    ink, paper = (
        tab.evaluate(f"getComputedStyle(document.body).{name}").removeprefix("rgb(").split(",")[0]
        for name in ("color", "backgroundColor")
    )
    dark = options.get("color_scheme") == "dark"
    assert (int(ink) > 200, int(paper) < 60) == (dark, dark)
    label = tab.locator("[data-chart=effects] svg text").first
    assert label.evaluate("t => getComputedStyle(t).fill") == tab.evaluate(
        "getComputedStyle(document.body).color"
    )


@pytest.mark.full
def test_on_paper_the_page_is_black_on_white_without_what_only_a_screen_can_do(whole, show):
    tab = show(whole, color_scheme="dark")
    tab.emulate_media(media="print")
    assert tab.locator(".bar nav").is_hidden()
    assert tab.locator("[data-chart=effects] .controls").is_hidden()
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert tab.locator("[data-chart=effects] svg").is_visible()
    assert len(tab.pdf()) > 20_000


@pytest.mark.full
def test_without_scripts_there_are_static_figures_and_whole_tables(whole, show):
    tab = show(whole, java_script_enabled=False)
    images = tab.locator("noscript img")
    assert images.count() == 6  # of either table: effects, curves, costs
    boxes = [image.bounding_box() for image in images.all()]
    assert all(box["height"] > 60 and box["width"] > 400 for box in boxes), boxes
    for name in ("small", "large"):
        assert tab.locator(f"#comparison [data-table={name}] table").is_visible()
    assert tab.locator("#comparison [data-table=large] th").last.is_visible()
    assert tab.locator(".chooser").is_hidden()
