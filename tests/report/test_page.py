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
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from llama_ablate.evidence.written import Estimate
from llama_ablate.findings.frames import Frames
from llama_ablate.report import page
from llama_ablate.report.picture import Axis, Dot, Dots, Picture
from llama_ablate.report.sections import FIGURES, sections
from llama_ablate.report.warnings import warnings
from llama_ablate.results import Store
from llama_ablate.results.record import Measurement, Value
from llama_ablate.results.snapshot import Results
from tests import plans
from tests.in_process import draw_nothing
from tests.metrics import measured
from tests.quiet import until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PACKS = Path(__file__).parents[2] / "results" / "reference"
SEEDS = (0, 1, 2)
HOSTILE = "a<b>'\"</script><script>x()"
#: Loss over that of the baseline of each variant, in either table, and its norm.
LOSSES = {"base": (0.0, 0.0), "good": (-0.2, 0.3), HOSTILE: (0.05, 0.05), "far": (4.0, 4.0)}
NOISE = (0.0, 0.02, -0.02)
TABLES = {"small": "a", "large": "b"}  # and how the ids of their variants and runs begin
KEYS = {label: f"v{n}" for n, label in enumerate(LOSSES)}


def curve(loss):
    """Points of a learning curve that ends at a loss."""
    points = [{"step": s, "tokens": 32 * s} for s in (1, 2, 4, 8)]
    for point in points:
        point["validation_loss_nats"] = loss + 1 / point["step"]
        point["train_loss_nats"] = loss + 2 / point["step"]
    return points


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
            key = TABLES[table.name] + KEYS[label]
            for seed in SEEDS:
                loss = 2 + 0.1 * seed + over[at] + NOISE[(seed + place) % 3]
                own = measured(test_loss_nats=loss, test_perplexity=8.0, test_bits_per_byte=3.0)
                made = dataclasses.replace(
                    plans.RECORD,
                    id=f"{key}{seed}",
                    label=label,
                    variant=key,
                    seed=seed,
                    metrics={"perplexity": own},
                )
                found.commit(made, curve(loss), None)
            with found.alone("measure") as lease:
                speeds = [1000.0 + 100 * place + turn for turn in range(3)]
                row = Value("train_tokens_per_s", speeds[1], samples=tuple(speeds) * 3)
                measurement = Measurement((row,))
                found.add_metric(
                    lease, found.variant_folder(label, key), "train_speed", measurement
                )
    return found


def written(store, folder=None):
    """Write the report; return its page's path."""
    frames = Frames.of(Results(store.root))
    return page.write(frames, sections(frames), warnings(frames), folder or store.report)


@pytest.fixture(scope="module")
def quick(store):
    """The page without its figures, which take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page.PagePictures, "draw", draw_nothing)
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
    """The data that the page's script reads."""
    (packed,) = (
        text
        for text, kind in zip(read.texts["script"], read.kinds, strict=True)
        if kind == "application/gzip"
    )
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def directive(policy, name):
    return next(part.split()[1:] for part in policy.split("; ") if part.startswith(f"{name} "))


def test_the_policy_allows_just_the_styles_and_scripts_that_the_page_holds(quick):
    read = Read(quick.read_text("utf-8"))
    run = [read.texts["script"][read.kinds.index("")]]
    assert sorted(read.kinds) == ["", "application/gzip"]
    for name, texts in (("script-src", run), ("style-src", read.texts["style"])):
        hashes = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in texts]
        assert directive(read.policy, name) == [f"'sha256-{value}'" for value in hashes]
    assert directive(read.policy, "default-src") == ["'none'"]
    assert "unsafe" not in read.policy
    assert not [one for one in read.attributes if one[1] == "style" or one[1].startswith("on")]


def test_every_entry_of_the_contents_leads_to_a_part_of_the_page(quick):
    read = Read(quick.read_text("utf-8"))
    within = [v[1:] for _, name, v in read.attributes if name == "href" and v.startswith("#")]
    assert {"comparison", "runs", "recipes", "glossary"} <= set(within)
    assert set(within) <= set(read.ids)
    assert len(read.ids) == len(set(read.ids))


def test_the_page_holds_the_curves_of_each_run_by_table_at_places_that_runs_share(quick):
    found = unpacked(Read(quick.read_text("utf-8")))
    assert found["variants"] == list(LOSSES)
    curves = found["curves"]
    assert curves["places"] == [[32, 64, 128, 256]]
    assert set(curves["runs"]) == {"loss_curves", "loss_curves_large"}
    runs = curves["runs"]["loss_curves"]
    assert sorted(run[:2] for run in runs) == [[f"v{n}", seed] for n in range(4) for seed in SEEDS]
    assert runs[0] == ["v0", 0, 0, pytest.approx([4, 3, 2.5, 2.25])]


def test_a_run_is_linked_to_its_record(quick):
    read = Read(quick.read_text("utf-8"))
    links = [v for _, name, v in read.attributes if name == "href" and not v.startswith("#")]
    assert len(links) == 24
    for link in links:
        assert json.loads((quick.parent / link).read_text())["id"] in link


def test_a_figure_that_cannot_be_drawn_says_so_in_its_place(store, tmp_path, monkeypatch):
    monkeypatch.setattr(FIGURES, "_makers", {})

    @FIGURES.register("broken")
    def broken(_frames):
        """Show what cannot be drawn."""
        return Picture([Dots([Dot(None, Estimate(1.0))], Axis("seed"))])

    text = written(store, tmp_path).read_text("utf-8")
    assert "This figure could not be drawn: AttributeError" in text
    assert "<figcaption>What cannot be drawn.</figcaption>" in text


@pytest.mark.full
@pytest.mark.parametrize(
    ("pack", "most"), [("first", 300_000), ("claims/e07-ffn-activation", 900_000)]
)
def test_pages_of_packs_are_small(pack, most, tmp_path):
    frames = Frames.of(Results.open(PACKS / pack))
    page_file = page.write(frames, sections(frames), warnings(frames), tmp_path)
    assert page_file.stat().st_size <= most


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
            tab.locator("html.js").wait_for()
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert told == []


def row(tab, label):
    """The row of a variant in the comparison that is shown."""
    rows = tab.locator("#comparison [data-table]:not([hidden]) tr[data-v]")
    return rows.filter(has=tab.locator("th", has_text=re.compile(f"^{re.escape(label)}$")))


def marks(tab, figure, v, more=""):
    """The marks of a variant in the picture that is shown of a figure."""
    return tab.locator(f"#figure-{figure} svg:visible [data-v={v}]{more}")


def places(tab, figure="effects"):
    """The variants of a picture's rows, from above."""
    return tab.locator(f"#figure-{figure} svg.broad [data-y]").evaluate_all(
        """marks => marks.filter((mark) => mark.getClientRects().length)
            .map((mark) => [mark.getBoundingClientRect().top, mark.dataset.v])
            .sort((a, b) => a[0] - b[0]).map(([, v]) => v)"""
    )


def variants(tab):
    """The variants of the comparison that is shown, in its order."""
    rows = tab.locator("#comparison [data-table]:not([hidden]) tbody tr:not([hidden]) th")
    return rows.all_text_contents()


@pytest.mark.full
def test_a_table_is_sorted_with_the_rows_of_its_picture_and_a_verdict_opens_its_runs(whole, show):
    tab = show(whole)
    assert tab.locator("#comparison [data-table=large]").first.is_hidden()
    assert variants(tab) == ["base", "good", HOSTILE, "far"]
    assert places(tab) == ["v0", "v1", "v2", "v3"]
    lines = [row(tab, label).bounding_box() for label in LOSSES]
    names = [marks(tab, "effects", KEYS[label], "[data-y]").bounding_box() for label in LOSSES]
    for line, name in zip(lines, names, strict=True):  # rows beside rows
        assert line["y"] <= name["y"] + name["height"] / 2 <= line["y"] + line["height"]
    head = tab.locator("#comparison [data-table=small] th button", has_text="difference")
    head.click()
    head.click()
    assert variants(tab) == ["far", HOSTILE, "good", "base"]  # what has none is last
    assert places(tab) == ["v3", "v2", "v1", "v0"]
    row(tab, HOSTILE).locator("td button").click()
    panel = tab.locator("#panel")
    assert panel.locator("h2").inner_text() == HOSTILE
    assert panel.locator("tbody tr").count() == 3 + 1  # its seeds in this table, and its recipe
    assert panel.locator("a").first.get_attribute("href").endswith("record.json")
    drawn = panel.locator("svg [data-v]").evaluate_all("marks => marks.map((m) => m.dataset.v)")
    assert set(drawn) == {"v0", "v2"}
    tab.keyboard.press("Escape")
    assert panel.is_hidden()


@pytest.mark.full
def test_rows_are_copied_as_they_are_shown(whole, show):
    tab = show(whole, permissions=["clipboard-read", "clipboard-write"])
    part = tab.locator("#comparison div[data-table=small]")
    copied = {}
    for form in ("CSV", "Markdown", "LaTeX"):
        part.locator(".tools button", has_text=form).click()
        part.locator(".tools button", has_text="copied").wait_for()
        copied[form] = tab.evaluate("navigator.clipboard.readText()")
        part.locator(".tools button", has_text=form).wait_for()
    rows = list(csv.reader(StringIO(copied["CSV"])))
    assert [row[0] for row in rows] == ["variant", "base", "good", HOSTILE, "far"]
    assert rows[0] == part.locator("thead th:not([hidden])").all_text_contents()
    assert "<script" not in copied["Markdown"]
    assert copied["LaTeX"].count("\\\\") == 5
    assert not re.search(r"(?<!\\)[%#_$]", copied["LaTeX"])


@pytest.mark.full
def test_a_filter_and_a_switch_leave_the_same_variants_in_tables_and_pictures(whole, show):
    tab = show(whole)
    tab.locator("#filter").fill("good nowhere")
    assert variants(tab) == ["base"]
    tab.locator("#filter").fill("good")
    assert variants(tab) == ["base", "good"]
    assert places(tab) == ["v0", "v1"]
    assert marks(tab, "loss_curves", "v0").first.is_visible()
    assert not marks(tab, "loss_curves", "v3").first.is_visible()
    tab.locator("#runs summary").first.click()
    assert tab.locator("#runs tbody tr:visible").count() == 6
    tab.locator("#filter").fill("")
    row(tab, "good").locator(".switch").click()
    assert places(tab) == ["v0", "v2", "v3"]
    assert not marks(tab, "loss_curves", "v1").first.is_visible()
    assert row(tab, "base").locator(".switch").count() == 0


@pytest.mark.full
def test_a_mark_tells_its_numbers_and_lights_its_variant_everywhere(whole, show):
    tab = show(whole)
    for mark, words in (
        (marks(tab, "effects", "v1", ":not([data-seed])").nth(1), r"good: -0\.2.* \[.*\], better"),
        (marks(tab, "effects", "v1", "[data-seed='2']"), r"good, seed 2: -0\.18"),
        (marks(tab, "loss_curves", "v1", "[data-end]"), r"good: \d\.\d+, as the table reports"),
    ):
        mark.scroll_into_view_if_needed()
        box = mark.bounding_box()
        tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert re.search(words, tab.locator("#tip").inner_text())
        assert row(tab, "good").evaluate("row => row.classList.contains('lit')")
    assert tab.locator("#runs tr.lit").count() == 6  # three seeds in two tables
    tab.mouse.move(5, 5)
    assert tab.locator("#tip").is_hidden()
    assert tab.locator(".lit").count() == 0


@pytest.mark.full
def test_a_curve_is_smoothed_and_drawn_logarithmic(whole, show):
    tab = show(whole)
    line = marks(tab, "loss_curves", "v1", "[data-seed='0']")
    before = line.get_attribute("d")
    tab.locator("#figure-loss_curves input[type=range]").fill("0.5")
    assert line.get_attribute("d") != before
    tab.locator("#figure-loss_curves input[type=range]").fill("0")
    assert line.get_attribute("d") == before
    tab.locator("#figure-loss_curves input[type=checkbox]").check()
    assert tab.locator("#figure-loss_curves svg:visible").count() == 1
    assert marks(tab, "loss_curves", "v1", "[data-seed='0']").get_attribute("d") != before


@pytest.mark.full
def test_a_picture_is_saved_as_it_is_shown_and_curves_as_numbers(whole, show, tmp_path):
    tab = show(whole, color_scheme="dark")
    row(tab, "far").locator(".switch").click()
    saved = {}
    for figure, kind in (("effects", "SVG"), ("effects", "PNG"), ("loss_curves", "CSV")):
        with tab.expect_download() as download:
            tab.locator(f"#figure-{figure} .tools button", has_text=kind).click()
        saved[kind] = tmp_path / download.value.suggested_filename
        download.value.save_as(saved[kind])
    root = ET.parse(saved["SVG"]).getroot()  # noqa: S314 (our own)
    seen = {mark.get("data-v") for mark in root.iter() if mark.get("data-v")}
    assert seen == {"v0", "v1", "v2"}
    pixels = np.asarray(Image.open(saved["PNG"]).convert("RGB"), int)
    assert pixels.shape[1] == 2100
    assert pixels[2, 2].tolist() == [255, 255, 255]  # its own ground, at night too
    rows = list(csv.reader(StringIO(saved["CSV"].read_text("utf-8"))))
    assert rows[0] == ["variant", "seed", "read", "training loss"]
    assert len(rows) == 1 + 4 * 3 * 4


#: Widths, whether all parts are open, and whether it is on paper.
LOOKS = [(400, False, False), (1400, False, False), (400, True, False), (720, True, True)]


@pytest.mark.full
@pytest.mark.parametrize(
    "pack", ["first", "wikitext2", "moe-small", "rate-transfer", "claims/e16-leave-one-out-stack"]
)
def test_no_text_overlaps_or_is_cut_and_no_word_is_broken(pack, tmp_path, show, monkeypatch):
    monkeypatch.setattr(page.PagePictures, "draw", draw_nothing)  # letters are paths to a browser
    frames = Frames.of(Results.open(PACKS / pack))
    written = page.write(frames, sections(frames), warnings(frames), tmp_path)
    wrong = (Path(__file__).parent / "layout.js").read_text("utf-8")
    found = {}
    for width, unfolded, paper in LOOKS:
        tab = show(written, width=width)
        if paper:
            tab.emulate_media(media="print")
        if unfolded:
            tab.evaluate("document.querySelectorAll('details').forEach((part) => part.open = true)")
            tab.wait_for_timeout(300)
        found[width, unfolded, paper] = tab.evaluate(wrong, paper)
        tab.context.close()
    assert not any(found.values()), found


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
    assert tab.locator("#comparison div[data-table=large]").is_visible()
    tab.locator("nav a", has_text="Runs").focus()
    tab.keyboard.press("Enter")
    until(lambda: tab.evaluate("scrollY") > 0)


@pytest.mark.full
def test_the_selector_shows_one_table_and_its_pictures(whole, show):
    tab = show(whole)
    tab.select_option("#table", "large")
    assert tab.locator("#figure-effects").is_hidden()
    assert tab.locator("#figure-effects_large svg").is_visible()
    assert row(tab, "good").locator("td", has_text="worse").count() == 1
    row(tab, "good").click()
    tab.select_option("#table", "small")
    assert row(tab, "good").get_attribute("aria-current") == "true"
    assert tab.locator("#figure-effects svg.broad").is_visible()
    assert tab.locator("#figure-costs svg").count() == 0  # packed, until its part is opened
    tab.locator("#more summary").first.click()
    assert tab.locator("#figure-costs svg").is_visible()
    assert tab.locator("#figure-costs [data-v=v1]").count() > 0


@pytest.mark.full
@pytest.mark.parametrize("options", [{"width": 400, "has_touch": True}, {"color_scheme": "dark"}])
def test_the_page_fits_a_telephone_and_the_night(whole, show, options):
    tab = show(whole, **options)
    assert tab.evaluate("document.documentElement.scrollWidth") <= options.get("width", 1300)
    answer = tab.locator("#figure-effects svg:visible")
    assert answer.bounding_box()["width"] == (328 if "width" in options else 700)
    ink, paper = (
        tab.evaluate(f"getComputedStyle(document.body).{name}").removeprefix("rgb(").split(",")[0]
        for name in ("color", "backgroundColor")
    )
    dark = options.get("color_scheme") == "dark"
    assert (int(ink) > 200, int(paper) < 60) == (dark, dark)


@pytest.mark.full
def test_on_paper_the_page_is_black_on_white_without_what_only_a_screen_can_do(whole, show):
    tab = show(whole, color_scheme="dark")
    tab.emulate_media(media="print")
    assert tab.locator(".bar nav").is_hidden()
    assert tab.locator("#figure-effects .tools").is_hidden()
    assert tab.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert tab.locator("#figure-effects svg.broad").is_visible()
    assert len(tab.pdf()) > 20_000


@pytest.mark.full
def test_without_scripts_the_first_pictures_and_all_tables_are_there(whole, show):
    tab = show(whole, java_script_enabled=False)
    assert tab.locator("#figure-effects svg:visible").count() == 1
    assert tab.locator("#figure-loss_curves svg:visible").count() == 1
    assert tab.locator("#figure-effects title", has_text="good: -0.2").count() > 0
    for name in ("small", "large"):
        assert tab.locator(f"#comparison div[data-table={name}] table").is_visible()
    assert tab.locator("#comparison div[data-table=large] th").last.is_visible()
    assert tab.locator(".chooser:visible").count() == 0
