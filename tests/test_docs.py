"""The documentation says what is: generated parts are fresh, examples run, links lead somewhere."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import llama_ablate as la
from llama_ablate.commands import cli
from llama_ablate.evidence.written import Estimate

ROOT = Path(__file__).parents[1]
PAGES = [p for p in ROOT.rglob("*.md") if not {".venv", ".pytest_cache", "build"} & set(p.parts)]


def generator():
    """Return the module docs/generate.py."""
    found = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.full  # `make docs-check`: it reads all of the published results
def test_the_generated_parts_of_the_pages_are_fresh():
    for page, text in generator().pages().items():
        assert page.read_text("utf-8") == text, f"{page.name}: run make docs"


def test_the_reference_pages_are_fresh():
    from docs import reference_pages

    for page, text in reference_pages.pages().items():
        assert page.read_text("utf-8") == text, f"{page.name}: run make docs"


def test_every_key_of_an_experiment_file_is_described_and_no_other():
    from docs import reference_pages

    fields = {
        model.__name__: set(model.model_fields) for model in reference_pages.SECTIONS.values()
    }
    assert {name: set(described) for name, described in reference_pages.keys().items()} == fields


def anchors(page):
    """Return the anchors of a page's headings, as GitHub and the site name them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]+))?\)", page.read_text("utf-8")):
        if not target.startswith("http"):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in anchors(file), f"{page.name}: {target}#{anchor}"


@pytest.mark.full
def test_the_site_is_built_without_a_warning():
    pytest.importorskip("mkdocs", reason="needs the extra docs: make site")
    built = subprocess.run(
        [sys.executable, "-m", "docs.site"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    pages = list((ROOT / "build" / "site").rglob("*.html"))
    assert len(pages) > 20
    for page in pages:  # it loads nothing from elsewhere
        loaded = re.findall(
            r"<(?:script|link|img)[^>]*(?:src|href)=\"?(\S+)", page.read_text("utf-8")
        )
        assert not [url for url in loaded if url.startswith(("http", "//"))], page


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 900


DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_readme_and_documentation_have_at_most_32_000_words():
    """As `cat README.md docs/*.md docs/*/*.md | wc -w` counts them: records go to results/."""
    words = {page.name: len(page.read_text("utf-8").split()) for page in DOCS}
    assert sum(words.values()) <= 32_000, words


def paragraphs(page):
    """Return the paragraphs and items of lists of a page, without code, tables and headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = re.sub(r"^(    |\||#|<!--).*$", "", text, flags=re.MULTILINE)
    return re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", lines)


@pytest.mark.parametrize("page", DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_paragraph_has_more_than_80_words(page):
    assert [part for part in paragraphs(page) if len(part.split()) > 80] == []


def test_the_commands_that_the_pages_show_are_commands():
    """Every line of a page that runs the program is accepted by its parser."""
    parser = cli.parser()
    shown = 0
    for page in PAGES:
        text = re.sub(r"<!--.*?-->", "", page.read_text("utf-8"), flags=re.DOTALL)
        for line in re.findall(r"^    llama-ablate ((?:.*\\\n)*.*)", text, re.MULTILINE):
            words = shlex.split(line.replace("\\\n", " "), comments=True)
            if words[:1] and not words[0].startswith("-"):
                parser.parse_args(words)
                shown += 1
    assert shown > 40


def experiments(page):
    """Return the experiment files that a page shows: blocks of YAML that ask a question."""
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    return [block for block in blocks if re.search(r"^question: ", block, re.MULTILINE)]


def test_the_experiment_in_the_readme_is_the_one_of_its_table():
    (shown,) = experiments(ROOT / "README.md")
    editors, _, own = (ROOT / "experiments" / "first.yaml").read_text("utf-8").partition("\n")
    assert editors.startswith("# yaml-language-server: ")
    assert shown == own
    packed = (ROOT / "results/reference/first/experiment.yaml").read_text("utf-8")
    assert packed == shown


@pytest.mark.parametrize(
    "page", ["howto", "evidence", "tutorial", "contexts-and-tokenizers", "tasks"]
)
def test_the_experiments_of_the_pages_are_valid(page, tmp_path):
    from llama_ablate.config import experiment

    for text in experiments(ROOT / "docs" / f"{page}.md"):
        (tmp_path / "x.yaml").write_text(text, "utf-8")
        assert experiment.load(tmp_path / "x.yaml").experiment.train.tokens


def test_reading_a_report_explains_every_section_in_the_pages_order_and_every_figure():
    from llama_ablate.report.sections import FIGURES, SECTIONS

    text = (ROOT / "docs" / "reading-a-report.md").read_text("utf-8")
    assert re.findall(r"^\| [^|]+ \(`(\w+)`\) \|", text, re.MULTILINE) == [*SECTIONS]
    assert [name for name in FIGURES if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    ("pack", "rope", "sinusoidal"),
    [
        ("first", "rope", "baseline"),
        ("prose", "baseline", "sinusoidal"),
        ("gpu-10m", "baseline", "sinusoidal"),
        ("claims/e12-positions", "baseline", "sinusoidal"),
        ("claims/e16-leave-one-out-stack", ".* rope .*", "baseline|.* sinusoidal .*"),
    ],
)
def test_readme_says_what_rope_is_worth_by_the_runs_of_each_pack(pack, rope, sinusoidal):
    runs = la.open(ROOT / "results/reference" / pack).runs.query("use == 'reported' and role == ''")
    names = runs["variant"].mask(runs["baseline"], "baseline")
    of_rope, of_sinusoidal = (
        runs["loss"][names.str.fullmatch(label)].mean() for label in (rope, sinusoidal)
    )
    text = (ROOT / "README.md").read_text("utf-8")
    assert f"[{of_rope - of_sinusoidal:+.3f}](results/reference/{pack}/report.md)" in text


def worked_examples():
    """Return the examples of CONTRIBUTING: each a component and its test."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return list(zip(blocks[::2], blocks[1::2], strict=True))


def test_the_worked_components_of_contributing_pass_their_tests_and_the_laws(monkeypatch):
    """The examples are run as they are written: registered, tested, and held to the laws."""
    import torch

    from llama_ablate.config.spec import SLOTS
    from llama_ablate.measure import METRICS
    from llama_ablate.model import laws
    from llama_ablate.model.components import REGISTRIES
    from llama_ablate.training import optimizer_laws
    from llama_ablate.training.losses import LOSSES
    from llama_ablate.training.optimizers import OPTIMIZERS

    from .conftest import make_spec
    from .laws import initial_values_are_those_declared

    registries = [*REGISTRIES.values(), OPTIMIZERS, LOSSES, METRICS]
    before = {registry.slot: set(registry) for registry in registries}
    for registry in registries:
        for kind in ("_components", "_schemas"):
            monkeypatch.setattr(registry, kind, dict(getattr(registry, kind)))
    monkeypatch.setattr(METRICS, "_per", dict(METRICS._per))
    x = torch.randn(3, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for component, test in worked_examples():
        names: dict = {}
        exec(component, names)  # noqa: S102  our own documentation
        exec(test, names)  # noqa: S102
        (written,) = (of for name, of in names.items() if name.startswith("test_"))
        written(x)
    new = [(r.slot, name) for r in registries for name in set(r) - before[r.slot]]
    assert len(new) == len(worked_examples())
    for slot, name in new:
        if slot in SLOTS:
            for separator in (None, 3):  # where documents continue each other, and where not
                laws.check(make_spec(**{slot: name}, separator=separator), slot)
        elif slot == "optimizer":
            optimizer_laws.check(OPTIMIZERS.resolve(name))
        elif slot == "init":
            initial_values_are_those_declared(make_spec(init=name))


def test_the_component_of_the_howto_is_that_of_contributing():
    def code(text):
        """Return the lines of the first example, without comments."""
        block = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
        return re.sub(r"(  )?#.*\n", "\n", block).strip()

    howto, contributing = (
        (ROOT / page).read_text("utf-8") for page in ("docs/howto.md", "CONTRIBUTING.md")
    )
    assert code(howto.split("## My component")[1]) == code(contributing)


def test_contributing_counts_the_lines_of_its_examples_right():
    def lines(text):
        """Count the lines that are neither blank nor imports."""
        words = ("import ", "from ")
        return sum(
            bool(one.strip()) and not one.strip().startswith(words) for one in text.split("\n")
        )

    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    table = text.split("## What it takes to add something")[1].split("\n## ")[0]
    stated = {}
    for row in re.findall(r"^\|(.* `\w+` \|.*)\|$", table, re.MULTILINE):
        adding, file, test, count, of_test, _ = (cell.strip(" `") for cell in row.split("|"))
        stated[adding.split("`")[-1]] = int(count), int(of_test)
        for folder, path in (("llama_ablate", file), ("tests", test)):
            assert (ROOT / folder / path.split("`")[0]).parent.is_dir(), path
    counted = {
        re.search(r'\.(?:register|add)\("(\w+)"', component)[1]: (lines(component), lines(test))
        for component, test in worked_examples()
    }
    assert stated == counted


def test_the_pattern_of_contributing_is_one():
    from llama_ablate.config.experiment import Model
    from llama_ablate.config.marked_yaml import parse
    from llama_ablate.design import variants

    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    model = Model.check(parse(block, "CONTRIBUTING.md").values["model"])
    resolved = variants.resolve(model)
    names = [resolved.layer(i).attention.name for i in range(4)]
    assert names == ["mha", "gated_delta", "mha", "mha"]


def test_the_architecture_names_every_file_and_folder_of_the_package():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for path in (ROOT / "llama_ablate").iterdir():
        if path.name.startswith("__"):
            continue
        name = f"`{path.name}{'/' if path.is_dir() else ''}`"
        assert name in text, f"docs/architecture.md does not name {name}"


def test_the_packs_that_disagree_on_gelu_differ_in_initial_scale_as_the_atlas_says():
    text = " ".join((ROOT / "results/reference/README.md").read_text("utf-8").split())
    atlas = (ROOT / "docs/atlas.md").read_text("utf-8")
    packs = {"prose": -1, "prose-small": 0, "gpu-10m": 1, "systems/feedforward": 1}
    for pack, sign in packs.items():
        opened = la.open(ROOT / "results/reference" / pack)
        row = opened.comparison().set_index("variant").loc["gelu"]
        assert int(row["low"] > 0) - int(row["high"] < 0) == sign
        spec = opened.frames.table.plan.baseline.model
        assert (spec["init_std"] == 0.02) == (sign > 0)
        (line,) = [line for line in atlas.splitlines() if line.startswith(f"| `{pack}`")]
        assert str(Estimate(row["difference"], row["low"], row["high"])) in line
        assert f"{row['difference']:+.3f} in `{pack}`" in text
