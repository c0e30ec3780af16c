"""Run ids of every committed experiment file stay as they are: results on disk are found by them.

After a change that is meant to change ids: `python -m tests.test_run_ids`, and say which in the
commit.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from llama_ablate.config import experiment
from llama_ablate.config.spec import digest
from llama_ablate.data import overlap, tokens
from llama_ablate.data.sources.streams import source_of
from llama_ablate.data.tokenizer import Bytes
from llama_ablate.design import plan

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "run_ids.json"
#: Files whose parts are plug-ins, which their first comment names.
NEED_PLUGINS = {
    "experiments/atlas/gpu/residual_streams.yaml",
    "experiments/plugins/rate_transfer.yaml",
    "experiments/plugins/residuals.yaml",
}
FILES = sorted(
    {str(p.relative_to(ROOT)) for p in ROOT.glob("experiments/**/*.yaml")} - NEED_PLUGINS
)
VOCABULARY = {"bytes": 257, "chars": 65}
#: Shares that corpora had by default when the golden file was written. No text of these files is
#: split by them: each has splits of its own, or is a single document.
SPLITS = {"files": (0.8, 0.1, 0.1), "hub": (0.9, 0.05, 0.05), "python-stdlib": (0.96, 0.02, 0.02)}


class StandInTokens:
    """Tokens of a text that is not read: ids depend on its fingerprint alone."""

    lost = ""
    tokenizer = Bytes()
    heldout = ("validation", "test")
    document_counts = {"train": 10_000, "validation": 1_000, "test": 1_000}  # noqa: RUF012
    bytes = {"train": 400_000_000, "validation": 4_000_000, "test": 4_000_000}  # noqa: RUF012

    def __init__(self, corpus, tokenizer):
        vocabulary = dict(tokenizer.options).get("vocab")
        self.vocab = vocabulary or VOCABULARY.get(tokenizer.name, 1_000)
        entry = corpus.entry()
        if isinstance(entry, dict) and entry.get("splits", ()) is None:
            entry["splits"] = SPLITS[entry["name"]]
        self.corpus = digest(entry, 16)
        self.source = source_of(corpus.entry())
        self.separator = None if self.source else 0
        self.fingerprint = digest([entry, tokenizer.entry()], 16)
        each = 1 if tokenizer.name in VOCABULARY else 4
        self.counts = {split: size // each for split, size in self.bytes.items()}

    def documents(self, _split):
        return np.arange(0, 1_000, 10)

    def split(self, _name):
        return np.zeros(100_000, np.int64)

    def answers(self, windows):
        return np.zeros_like(windows)


def ids_of(file):
    """Return how many runs a file plans, and a digest of their ids in order."""
    made = plan.make(experiment.load(ROOT / file))
    if any(table.budget == "seconds" for table in made.tables):
        made = plan.paced(made, lambda table: [1 + i / 10 for i, _ in enumerate(table.variants)])
    runs = [run.id for table in made.tables for run in table.runs]
    return {"runs": len(runs), "digest": digest(runs, 16)}


@pytest.fixture
def stand_in_text(monkeypatch):
    monkeypatch.setattr(tokens, "prepare", lambda c, t, **_: StandInTokens(c, t))
    monkeypatch.setattr(overlap, "find_overlaps", lambda _own, _trained: {})
    monkeypatch.chdir(ROOT / "experiments" / "tasks")  # where a task's file is named without one


@pytest.mark.usefixtures("stand_in_text")
@pytest.mark.parametrize("file", FILES)
def test_the_run_ids_of_a_committed_experiment_are_those_of_the_golden_file(file):
    assert ids_of(file) == json.loads(GOLDEN.read_text("utf-8"))[file]


def test_the_golden_file_names_the_committed_experiments_and_no_other():
    assert sorted(json.loads(GOLDEN.read_text("utf-8"))) == FILES


def write_golden_file():
    with pytest.MonkeyPatch.context() as patch:
        stand_in_text.__wrapped__(patch)
        golden = {file: ids_of(file) for file in FILES}
    lines = (f"{json.dumps(file)}: {json.dumps(ids)}" for file, ids in golden.items())
    GOLDEN.write_text("{\n " + ",\n ".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    write_golden_file()
