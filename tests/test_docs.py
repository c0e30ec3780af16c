"""The documentation says what is: generated parts are fresh, examples run, links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from llama_ablate.commands import cli

ROOT = Path(__file__).parents[1]
CONTRIBUTING = "CONTRIBUTING.md"
PAGES = [p for p in ROOT.rglob("*.md") if not {".venv", ".pytest_cache", "build"} & set(p.parts)]


@pytest.mark.full  # `make docs-check`: it reads all of the published results
def test_the_generated_parts_of_the_pages_are_fresh():
    from docs import generate

    for page, text in generate.pages().items():
        assert page.read_text("utf-8") == text, f"{page.name}: run make docs"


def test_the_reference_pages_are_fresh():
    from docs import reference_pages

    for page, text in reference_pages.pages().items():
        assert page.read_text("utf-8") == text, f"{page.name}: run make docs"


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


DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def words(page):
    """Return the words of a page: all that has a letter or a digit."""
    return [word for word in page.read_text("utf-8").split() if re.search(r"\w", word)]


def test_readme_and_documentation_have_at_most_18_000_words():
    """Records go to results/."""
    counts = {page.name: len(words(page)) for page in DOCS}
    assert sum(counts.values()) <= 18_000, counts


def experiments(page):
    """Return the experiment files that a page shows: blocks of YAML that ask a question."""
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    return [block for block in blocks if re.search(r"^question: ", block, re.MULTILINE)]


def test_the_commands_that_the_pages_show_are_commands():
    """Every line of a page that runs the program, and every example of `help all`, is parsed."""
    parser = cli.parser()
    for command in cli.COMMANDS.values():
        parser.parse_args(shlex.split(command.EXAMPLE))
    shown = 0
    for page in PAGES:
        text = re.sub(r"<!--.*?-->", "", page.read_text("utf-8"), flags=re.DOTALL)
        for line in re.findall(r"^    llama-ablate ((?:.*\\\n)*.*)", text, re.MULTILINE):
            words = shlex.split(line.replace("\\\n", " "), comments=True)
            if words[:1] and not words[0].startswith("-"):
                parser.parse_args(words)
                shown += 1
    assert shown > 40


def test_the_experiment_in_the_readme_is_the_one_of_its_table():
    (shown,) = experiments(ROOT / "README.md")
    editors, _, own = (ROOT / "experiments" / "first.yaml").read_text("utf-8").partition("\n")
    assert editors.startswith("# yaml-language-server: ")
    assert shown == own
    packed = (ROOT / "results/reference/first/experiment.yaml").read_text("utf-8")
    assert packed == shown


@pytest.mark.parametrize("page", [page for page in DOCS if experiments(page)], ids=lambda p: p.stem)
def test_the_experiments_of_the_pages_are_valid(page, tmp_path):
    from llama_ablate.config import experiment

    for text in experiments(page):
        (tmp_path / "x.yaml").write_text(text, "utf-8")
        assert experiment.load(tmp_path / "x.yaml").experiment.train.tokens


def test_reading_a_report_explains_every_section_in_the_pages_order_and_every_figure():
    from llama_ablate.report.figures import FIGURES
    from llama_ablate.report.sections import SECTIONS

    text = (ROOT / "docs" / "reading-a-report.md").read_text("utf-8")
    assert re.findall(r"^\| [^|]+ \(`(\w+)`\) \|", text, re.MULTILINE) == [*SECTIONS]
    assert [name for name in FIGURES if f"`{name}`" not in text] == []


def python_blocks(page):
    """Return the Python examples of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


def test_the_worked_parts_of_the_pages_are_registered_and_obey_the_laws():
    from llama_ablate.measure import METRICS
    from llama_ablate.model import laws
    from llama_ablate.model.components import REGISTRIES
    from llama_ablate.training import optimizer_laws
    from llama_ablate.training.losses import LOSSES
    from llama_ablate.training.optimizers import OPTIMIZERS

    from .conftest import make_spec
    from .in_process import own_registries

    component, test, *others = [*python_blocks("docs/component.md"), *python_blocks(CONTRIBUTING)]
    names: dict = {}
    with own_registries():
        for block in (component, test, *others):
            exec(block, names)  # noqa: S102  our own documentation
        names["test_a_power_law_lowers_scores_by_the_root_of_the_distance"]()
        laws.check(make_spec(position="power"), "position")
        laws.check(make_spec(attention="scaled"), "attention")
        laws.check(make_spec(init="he"), "norm")
        optimizer_laws.check(OPTIMIZERS.resolve("signsgd"))
        assert "confidence" in LOSSES
        assert "weight_norms" in METRICS
        assert "he" in REGISTRIES["init"]


def test_the_architecture_names_every_file_and_folder_of_the_package():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for path in (ROOT / "llama_ablate").iterdir():
        if not path.name.startswith("__"):
            assert f"`{path.name}{'/' if path.is_dir() else ''}`" in text


NOTEBOOK = ROOT / "docs" / "from-experiment-to-plot.ipynb"


def outputs(notebook):
    return [out for cell in notebook.cells for out in cell.get("outputs", ())]


@pytest.mark.full  # nbformat takes a second to import, and the notebook trains
def test_the_notebook_runs_as_it_is_written_and_shows_what_it_stores(tmp_path):
    """To store new outputs: jupyter execute --inplace docs/from-experiment-to-plot.ipynb"""
    import nbformat
    from nbclient import NotebookClient

    stored = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(stored)
    fresh = nbformat.read(NOTEBOOK, 4)
    for cell in fresh.cells:
        cell.pop("outputs", None)
    NotebookClient(fresh, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    kinds = [
        [[sorted(out.get("data", {})) for out in outputs(notebook) if "data" in out]]
        for notebook in (stored, fresh)
    ]
    assert kinds[0] == kinds[1]
    assert sum("image/png" in out.get("data", {}) for out in outputs(fresh)) == 2
    assert not any(tmp_path.iterdir())
