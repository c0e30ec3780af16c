"""One word for one thing: the glossary of docs/architecture.md, held against names in the code."""

import ast
import re
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "llama_ablate"
FILES = sorted(PACKAGE.rglob("*.py"))

#: Words that no module or class may have in its name, and the words that stand for them.
INSTEAD = {
    "claim": "lease (the right to work on a run), or hypothesis",
    "engine": "compute (how a machine computes), or launcher",
    "condition": "table",
    "recipe": "spec (an architecture), train config, or source (of a text)",
    "ruling": "verdict",
    "inquiry": "nothing: the audit of sources is analysis/claims",
    "trial": "run",
    "still": "snapshot",
    "utils": "a noun",
    "common": "a noun",
    "helpers": "a noun",
}
#: The folders in which a topic has a module each.
TOPICS = {"evidence", "findings", "report"}
#: Nouns that end like a participle.
NOUNS = {"speed"}


def words(name):
    """Split `snake_case` and `CamelCase` into lower-case words."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def classes(file):
    tree = ast.parse(file.read_text("utf-8"))
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_modules_and_classes_use_the_glossarys_words():
    singular = {word: word for word in INSTEAD} | {f"{word}s": word for word in INSTEAD}
    wrong = {
        (str(file.relative_to(PACKAGE)), name): INSTEAD[singular[word]]
        for file in FILES
        for name in (file.stem, file.parent.name, *classes(file))
        for word in words(name)
        if word in singular
    }
    assert not wrong


def test_modules_are_nouns():
    last = {file: words(file.stem)[-1] for file in FILES if file.stem.strip("_")}
    wrong = [
        str(file.relative_to(PACKAGE))
        for file, word in last.items()
        if word.endswith("ed") and word not in NOUNS
    ]
    assert not wrong, (
        f"a module is called by a noun, and {wrong} end like participles: rename them, or name "
        "the noun in NOUNS"
    )


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


def glossary():
    """Return both lists of words: those of a report, and those of the program."""
    report, program = (
        (PACKAGE.parent / "docs" / f"{page}.md").read_text("utf-8")
        for page in ("glossary", "architecture")
    )
    return report + program.split("## Words")[1].split("\n## ")[0]


def test_the_glossary_has_the_words_that_the_test_asks_for():
    page = glossary()
    for word in ("lease", "compute", "launcher", "spec", "train config", "table", "metric"):
        assert f"- **{word}**: " in page, word


def test_each_word_is_explained_once():
    words = re.findall(r"^- \*\*(.*?)\*\*: ", glossary(), re.MULTILINE)
    assert len(words) > 50
    assert {word for word in words if words.count(word) > 1} == set()
