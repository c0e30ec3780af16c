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


def test_the_worked_components_of_contributing_pass_their_tests_and_the_laws(monkeypatch):
    """The examples are run as they are written: registered, tested, and held to the laws."""
    import torch

    from llama_ablate.model import laws
    from llama_ablate.model.decoder import REGISTRIES

    from .conftest import make_spec

    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    before = {slot: set(registry) for slot, registry in REGISTRIES.items()}
    for registry in REGISTRIES.values():
        for kind in ("_components", "_schemas"):
            monkeypatch.setattr(registry, kind, dict(getattr(registry, kind)))
    x = torch.randn(3, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for component, test in zip(blocks[::2], blocks[1::2], strict=True):
        names: dict = {}
        exec(component, names)  # noqa: S102  our own documentation
        exec(test, names)  # noqa: S102
        (written,) = (of for name, of in names.items() if name.startswith("test_"))
        written(x)
    new = [(s, n) for s, registry in REGISTRIES.items() for n in set(registry) - before[s]]
    assert {slot for slot, _ in new} == {"norm", "feedforward", "attention"}
    for slot, name in new:
        laws.check(make_spec(**{slot: name}), slot)


def test_the_architecture_names_every_file_and_folder_of_the_package():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    for path in (ROOT / "llama_ablate").iterdir():
        if path.name.startswith("__"):
            continue
        name = f"`{path.name}{'/' if path.is_dir() else ''}`"
        assert name in text, f"docs/architecture.md does not name {name}"
