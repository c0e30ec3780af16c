"""A ledger of a model that is trained in a tenth of a second, and candidates for it."""

import itertools
import json
import random

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.judge.ledger import Ledger
from tests.in_process import in_process

TERMS = {
    "base": "llama2-tiny",
    "model": "{dim: 16, layers: 1, heads: 2, context: 16}",
    "data": "{corpus: {name: files, path: one.txt}, tokenizer: bytes}",
    "train": "{steps: 40, batch: 8, lr: 1.5e-2, precision: float32, kernel: math, evals: 2}",
    "margin": "0.02 nats",
    "measure": "[perplexity]",
    "judge": "{second: {corpus: {name: files, path: two.txt}, tokenizer: bytes}, "
    "looks: [3, 5], confirm: 3, candidates: 20}",
}
BETTER, WORSE, NULL = "train.lr: 4e-2", "train.lr: 7e-3", "{label: null 1, draws: both}"
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "that",
    "dog",
    "ran",
    "to",
    "some",
    "park",
    "where",
]


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A folder with two texts and the file of a ledger, where commands are run."""
    for name, seed in (("one", 1), ("two", 2)):
        words = random.Random(seed).choices(WORDS, k=9_000)
        (tmp_path / f"{name}.txt").write_text(" ".join(words), "utf-8")
    monkeypatch.chdir(tmp_path)
    drawn = itertools.count(1)  # seeds, which are drawn when a candidate begins
    monkeypatch.setattr("secrets.randbelow", lambda _: next(drawn))
    return Bench(tmp_path)


class Bench:
    """Where a ledger is opened and candidates are judged, in this process."""

    def __init__(self, root):
        self.root = root
        self.file = root / "ledger" / "ledger.jsonl"

    def write(self, **sections):
        """Write the file of a ledger, with other sections; one that is None is left out."""
        values = {key: value for key, value in (TERMS | sections).items() if value is not None}
        text = "".join(f"{key}: {value}\n" for key, value in values.items())
        (self.root / "terms.yaml").write_text(text, "utf-8")
        return self.root / "terms.yaml"

    def candidate(self, text, name="candidate.yaml"):
        """Write a candidate."""
        (self.root / name).write_text(text, "utf-8")
        return self.root / name

    def __call__(self, *words):
        """Do what `llama-ablate judge` does; return its exit code."""
        with in_process():
            return main(["judge", *map(str, words), "--device", "cpu"])

    def open(self, **sections):
        """Open the ledger."""
        assert self("--new", self.write(**sections)) == 0
        return self.read()

    def judge(self, text, name="candidate.yaml", *words):
        """Judge a candidate, given as the text of its file."""
        return self(self.candidate(text, name), *words)

    def read(self):
        """Return the ledger as it stands."""
        return Ledger.open(self.root / "ledger")

    def last(self, capsys):
        """Return what the last command printed as JSON."""
        return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


#: Ledgers of earlier tests by what was done, as bytes: the texts of all tests are the same.
_MADE = {}


@pytest.fixture
def ledger(bench):
    """A ledger that was opened."""
    return _make_once(bench, "opened", bench.open)


@pytest.fixture
def judged(ledger):
    """A ledger that has rejected one candidate."""
    return _make_once(ledger, "judged", lambda: ledger.judge(WORSE))


def _make_once(bench, name, make):
    if name in _MADE:
        bench.file.parent.mkdir(exist_ok=True)
        bench.file.write_bytes(_MADE[name])
        bench.write()
    else:
        make()
        _MADE[name] = bench.file.read_bytes()
    return bench
