"""One word for one thing: the glossary of docs/architecture.md, held against names in the code."""

import ast
import re
from collections import Counter
from pathlib import Path

from llama_ablate.report.glossary import GLOSSARY

PACKAGE = Path(__file__).parents[1] / "llama_ablate"
FILES = sorted(PACKAGE.rglob("*.py"))

#: The folders in which a topic has a module each.
TOPICS = {"evidence", "findings", "report"}


def test_a_public_class_has_a_name_of_its_own():
    places = {}
    for file in FILES:
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(file.relative_to(PACKAGE)))
    assert not {name: of for name, of in places.items() if len(of) > 1}


def test_a_module_has_a_name_of_its_own_but_for_the_layers_of_one_topic():
    """A topic stands in `evidence`, `findings` and `report`; a command is called what it does."""
    places = {}
    for file in FILES:
        folder = file.relative_to(PACKAGE).parts[0]
        if file.stem != "__init__" and folder != "commands":
            places.setdefault(file.stem, []).append(folder)
    wrong = {name: of for name, of in places.items() if len(of) > 1 and {*of} - TOPICS}
    assert not wrong


def test_no_folder_has_more_than_20_modules():
    counts = Counter(file.parent for file in FILES if file.stem != "__init__")
    assert not {str(folder): n for folder, n in counts.items() if n > 20}


def test_each_word_is_explained_once():
    """Words of a report stand in its glossary, those of the program in docs/architecture.md."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text("utf-8")
    section = text.split("## Words")[1].split("\n## ")[0]
    program = re.findall(r"^- \*\*(.*?)\*\*", section, re.MULTILINE)
    assert {"lease", "compute", "launcher", "spec", "train config", "metric"} <= {*program}
    assert not {*GLOSSARY} & {*program}
