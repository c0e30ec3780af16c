"""The documentation says what is: generated parts are fresh, examples run, links lead somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

from llama_ablate.commands.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [p for p in ROOT.rglob("*.md") if not {".venv", ".pytest_cache"} & set(p.parts)]


@pytest.mark.full  # `make docs-check`: it reads all of the published results
def test_the_generated_parts_of_the_pages_are_fresh():
    found = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    for page, text in module.pages().items():
        assert page.read_text("utf-8") == text, f"{page.name}: run make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_readme_names_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"^    (\w+)(?: |$)", capsys.readouterr().out, re.MULTILINE)
    assert {"plan", "run", "summary", "generate", "attention", "bench"} <= set(commands)
    readme = (ROOT / "README.md").read_text("utf-8")
    for command in commands:
        assert f"`{command} " in readme


def test_the_experiment_in_the_readme_is_valid(tmp_path):
    from llama_ablate.config import experiment

    text = (ROOT / "README.md").read_text("utf-8").split("```yaml\n")[1].split("```")[0]
    (tmp_path / "x.yaml").write_text(text, "utf-8")
    loaded = experiment.load(tmp_path / "x.yaml").experiment
    assert loaded.train.lr == 1e-3


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
    from llama_ablate.model.decoder import REGISTRIES
    from llama_ablate.training import laws as optimizer_laws
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
            laws.check(make_spec(**{slot: name}), slot)
        elif slot == "optimizer":
            optimizer_laws.check(OPTIMIZERS.resolve(name))
        elif slot == "init":
            initial_values_are_those_declared(make_spec(init=name))


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
    from llama_ablate.design import grid
    from llama_ablate.model.decoder import REGISTRIES

    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    model = Model.check(parse(block, "CONTRIBUTING.md").values["model"])
    resolved = grid.resolve(model, REGISTRIES)
    names = [resolved.layer(i).attention.name for i in range(4)]
    assert names == ["mha", "gated_delta", "mha", "mha"]


def test_the_architecture_names_every_file_and_folder_of_the_package():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for path in (ROOT / "llama_ablate").iterdir():
        if path.name.startswith("__"):
            continue
        name = f"`{path.name}{'/' if path.is_dir() else ''}`"
        assert name in text, f"docs/architecture.md does not name {name}"
