"""The page in a browser, and what stands in it: chromium draws it offline, under its own policy."""

import base64
import csv
import dataclasses
import hashlib
import html.parser
import json
import re
import shutil
from io import StringIO
from pathlib import Path

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.warnings import warnings
from llama_ablate.report import figures, page
from llama_ablate.report.sections import SECTIONS, sections
from llama_ablate.results import Store
from llama_ablate.results.record import Measurement, Value
from llama_ablate.results.snapshot import Results
from tests import filled, plans
from tests.metrics import measured

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PACKS = Path(__file__).parents[2] / "results" / "reference"
SEEDS = (0, 1, 2)
HOSTILE = "a<b>'\"</script><script>x()"
FORMULA = "=HYPERLINK(1)"
#: Loss over that of the baseline of each variant, in either table, and its norm.
LOSSES = {"base": (0.0, 0.0), "good": (-0.2, 0.3), HOSTILE: (0.05, 0.05), FORMULA: (4.0, 4.0)}
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


def written(store, folder):
    """Write the report; return its page's path, and the faults."""
    frames = Frames.of(Results(store.root))
    told = [str(warning) for warning in warnings(frames)]
    return page.write(frames, sections(frames, strict=False), told, folder)


@pytest.fixture(scope="module")
def whole(store):
    made, faults = written(store, store.report / "whole")
    assert faults == []
    return made


class Read(html.parser.HTMLParser):
    """What a page holds: its policy, the texts that run or style it, and every attribute."""

    def __init__(self, text):
        super().__init__()
        self.policy, self.texts, self.attributes, self.tag = "", {"script": [], "style": []}, [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tag, values = tag, dict(attributes)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy = values["content"]
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, _tag):
        self.tag = ""

    def handle_data(self, data):
        if self.tag in self.texts:
            self.texts[self.tag][-1] += data


def directive(policy, name):
    return next(part.split()[1:] for part in policy.split("; ") if part.startswith(f"{name} "))


def test_the_policy_names_the_style_sheet_and_the_script_and_allows_style_attributes_alone(whole):
    read = Read(whole.read_text("utf-8"))
    data, script = read.texts["script"]
    assert json.loads(data) == {key: label for label, key in KEYS.items()}
    for name, texts in (("script-src", [script]), ("style-src", read.texts["style"])):
        hashes = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in texts]
        assert directive(read.policy, name) == [f"'sha256-{value}'" for value in hashes]
    assert directive(read.policy, "style-src-attr") == ["'unsafe-inline'"]
    assert read.policy.count("unsafe") == 1
    assert directive(read.policy, "default-src") == ["'none'"]
    assert not [one for one in read.attributes if one[1].startswith("on") or one[1] == "src"]


def test_a_strangers_names_are_text_in_the_page_in_pictures_and_in_tables(whole):
    text = whole.read_text("utf-8")
    read = Read(text)
    assert len(read.texts["script"]) == 2
    assert "alert(1)" not in "".join(read.texts["script"])
    assert "a&lt;b&gt;" in text
    drawn = (whole.parent / "figures" / "effects.svg").read_text("utf-8")
    assert "<script" not in drawn
    assert HOSTILE[:6].replace("<", "&lt;").replace(">", "&gt;") in drawn
    (file,) = (whole.parent / "tables").glob("comparison*small.csv")
    csv_rows = file.read_text("utf-8")
    assert f"'{FORMULA}" in csv_rows
    links = [value for tag, name, value in read.attributes if tag == "a" and name == "href"]
    assert len(links) == 24
    for link in links:
        assert json.loads((whole.parent / link).read_text())["id"] in link


def test_a_section_and_a_figure_that_fail_say_so_and_the_rest_stands(
    store, tmp_path, monkeypatch, capsys
):
    def fail(*_arguments):
        raise KeyError("gone")

    broken = dataclasses.replace(SECTIONS["stability"], frame=fail)
    monkeypatch.setitem(SECTIONS, "stability", broken)
    kind = dataclasses.replace(figures.FIGURES["costs"], make=fail)
    monkeypatch.setattr(
        figures, "FIGURES", {"costs": kind, "loss_curves": figures.FIGURES["loss_curves"]}
    )
    path, faults = written(store, tmp_path)
    text = path.read_text("utf-8")
    assert [fault.removesuffix(": KeyError: 'gone'") for fault in faults] == [
        "section 'stability: small'",
        "section 'stability: large'",
        "figure 'costs'",
    ]
    assert "This section could not be made: KeyError: &#39;gone&#39;" in text
    assert "This figure could not be drawn: KeyError: &#39;gone&#39;" in text
    assert 'data-name="loss_curves"' in text
    assert "could not be made" in (tmp_path / "report.md").read_text("utf-8")
    assert main(["report", str(store.root)]) == 1
    assert "error: the report lacks section 'stability: small'" in capsys.readouterr().err


@pytest.mark.full
def test_pages_are_small_and_written_in_linear_time(tmp_path):
    frames = Frames.of(Results.open(PACKS / "first"))
    file, _ = page.write(frames, sections(frames), [], tmp_path / "first")
    assert file.stat().st_size <= 350_000
    many, _ = written(filled.store(tmp_path / "many", 200, 10), tmp_path / "200")
    assert many.stat().st_size <= 1_500_000


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
        size = {"width": options.pop("width", 1300), "height": 900}
        context = browser.new_context(viewport=size, **options)
        contexts.append(context)
        context.set_default_timeout(20_000)
        tab = context.new_page()
        tab.on("console", lambda message: told.append(message.text))
        tab.on("pageerror", lambda error: told.append(str(error)))
        tab.on(
            "request", lambda asked: told.append(asked.url) if _is_outside(asked, path) else None
        )
        tab.goto(path.as_uri())
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert told == []


def _is_outside(asked, path):
    return asked.url != path.as_uri() and not asked.url.startswith("data:")


SHOWN = "section[data-table=small] .lead"


def variants(tab):
    """The variants of the first table that is shown, in its order."""
    return tab.locator(f"{SHOWN} tbody tr:not([hidden]) th").all_text_contents()


@pytest.mark.full
def test_a_column_sorts_up_down_and_back_by_mouse_and_keyboard(whole, show):
    tab = show(whole)
    head = tab.locator(f"{SHOWN} th", has_text="difference")
    planned = ["base", "good", HOSTILE, FORMULA]
    assert variants(tab) == planned
    head.click()
    assert variants(tab) == ["good", HOSTILE, FORMULA, "base"]  # an empty cell is last
    head.press("Enter")
    assert variants(tab) == [FORMULA, HOSTILE, "good", "base"]
    assert head.get_attribute("aria-sort") == "descending"
    head.click()
    assert variants(tab) == planned
    intervals = tab.locator(f"{SHOWN} tbody td.forest svg")
    assert intervals.count() == 4


@pytest.mark.full
def test_a_filter_leaves_the_same_variants_in_tables_and_pictures(whole, show):
    tab = show(whole)
    tab.locator("#filter").fill("good")
    assert variants(tab) == ["base", "good"]
    hidden = tab.locator("section[data-table=small] figure [data-v=v2]")
    assert hidden.evaluate_all("marks => marks.every((mark) => mark.hasAttribute('data-off'))")
    tab.locator("#filter").fill("")
    assert len(variants(tab)) == 4


@pytest.mark.full
def test_further_columns_and_folded_rows_are_shown_on_request(whole, show, tmp_path):
    tab = show(whole)
    seen = f"{SHOWN} thead th:visible"
    few = tab.locator(seen).count()
    tab.locator("#columns").check()
    assert tab.locator(seen).count() > few
    many, _ = written(filled.store(tmp_path / "many", 60, 2), tmp_path / "60")
    tab = show(many)
    rows = tab.locator("section tbody tr:visible")
    assert rows.count() == 17
    tab.locator("button.all").first.click()
    assert rows.count() == 60


@pytest.mark.full
def test_a_mark_names_its_variant_and_lights_it_everywhere(whole, show):
    tab = show(whole)
    tab.locator("section[data-table=small] figure[data-name=costs] [data-v=v1]").first.hover(
        force=True
    )
    tip = tab.locator("#tip")
    assert tip.inner_text().startswith("good\n")
    lit = tab.locator(".lit").evaluate_all("marks => marks.map((mark) => mark.dataset.v)")
    assert {*lit} == {"v1"}
    assert "tr" in tab.locator(".lit").evaluate_all("marks => marks.map((m) => m.localName)")
    tab.mouse.move(5, 5)
    assert tip.is_hidden()


@pytest.mark.full
def test_rows_are_copied_as_they_are_shown_and_no_cell_is_a_formula(whole, show):
    tab = show(whole, permissions=["clipboard-read", "clipboard-write"])
    copied = {}
    for form in ("CSV", "Markdown", "LaTeX"):
        tab.locator("button.copy", has_text=form).click()
        copied[form] = tab.evaluate("navigator.clipboard.readText()")
    rows = list(csv.reader(StringIO(copied["CSV"])))
    assert [row[0] for row in rows[1:]] == ["base", "good", HOSTILE, f"'{FORMULA}"]
    assert any(cell.startswith("-0.2") for cell in rows[2])
    assert copied["Markdown"].splitlines()[1].startswith("| --- | ---")
    assert "a&lt;b>" in copied["Markdown"]
    assert "a$<$b$>$" in copied["LaTeX"]


@pytest.mark.full
def test_a_picture_is_saved_as_svg_and_png(whole, show, tmp_path):
    tab = show(whole)
    tools = tab.locator("section[data-table=small] figure[data-name=loss_curves] .tools")
    for kind, begin in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with tab.expect_download() as download:
            tools.locator("button", has_text=kind).click()
        download.value.save_as(tmp_path / kind)
        assert download.value.suggested_filename == f"loss_curves.{kind.lower()}"
        assert (tmp_path / kind).read_bytes().startswith(begin)


@pytest.mark.full
def test_the_selector_shows_one_table_and_its_pictures(whole, show):
    tab = show(whole)
    assert tab.locator("section[data-table=large]").is_hidden()
    tab.locator("#table").select_option("large")
    assert tab.locator("section[data-table=large]").is_visible()
    assert tab.locator("section[data-table=small]").is_hidden()


@pytest.mark.full
@pytest.mark.parametrize("options", [{"width": 400}, {"width": 1000, "color_scheme": "dark"}])
def test_the_page_fits_its_window_and_the_night(whole, show, options):
    tab = show(whole, **options)
    assert tab.evaluate("document.documentElement.scrollWidth") <= options["width"]
    assert (
        tab.locator(f"{SHOWN} td", has_text="better").first.bounding_box()["x"] < options["width"]
    )
    ground, ink = tab.evaluate(
        "['backgroundColor', 'color'].map((key) => getComputedStyle(document.body)[key])"
    )
    is_dark = sum(map(int, re.findall(r"\d+", ground))) < sum(map(int, re.findall(r"\d+", ink)))
    assert is_dark == ("color_scheme" in options)


@pytest.mark.full
def test_on_paper_every_part_is_open_and_without_scripts_all_tables_are_there(whole, show):
    tab = show(whole, java_script_enabled=False)
    assert tab.locator("section[data-table=large] table").first.is_visible()
    tab.emulate_media(media="print")
    assert tab.locator(".bar").is_hidden()
    assert tab.locator("#runs table").is_visible()
