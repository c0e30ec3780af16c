"""Results of a later version are read, and what it added to them is kept."""

import json

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.files.strict_json import sealed
from tests import filled
from tests.reliability.harness import content


def change(root, name, alter):
    """Change a document, and seal it as its writer does."""
    document = json.loads((root / name).read_text("utf-8"))
    del document["sha256"]
    alter(document)
    (root / name).write_bytes(sealed(document, name))


@pytest.fixture
def store(tmp_path):
    return filled.store(tmp_path / "x", variants=2, seeds=1)


@pytest.mark.row("R26", "skew: keys of a later version")
@pytest.mark.usefixtures("without_pictures")
def test_keys_that_a_later_version_added_are_not_read_and_kept(store, capsys):
    def add(document):
        versions = document.get("versions", [])
        stated = [version["stated"] for version in versions] or [document["experiment"]]
        tables = document.get("tables", [])
        parts = [document, *versions, *stated, *tables]
        parts += [run for table in tables for run in (*table["runs"], *table["variants"])]
        for part in parts:
            part["new_key"] = {"a": 1}

    said = []
    for alter in (lambda _document: None, add):
        change(store.root, "plan.json", alter)
        change(store.root, "protocol.json", alter)
        before = content(store.root, "report", "working")
        for word in ("status", "show", "report"):
            assert main([word, str(store.root)]) == 0
        said.append(capsys.readouterr())
        assert content(store.root, "report", "working") == before
    assert said[0] == said[1]
