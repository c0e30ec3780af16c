"""A ledger of a model that is trained in a tenth of a second, and candidates for it."""

import itertools
import math
import random
import shutil

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.judge.ledger import Begun, Decided, Gated, GateDifference, Ledger
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
ACCEPTED, REJECTED, INCONCLUSIVE, INVALID = 0, 3, 4, 5
NORM = """
import sys
import torch
from llama_ablate.model.norms import NORMS


def called_by(*names):
    frame, found = sys._getframe(), set()
    while frame := frame.f_back:
        found.add(frame.f_code.co_name)
    return found & {{*names}}


@NORMS.register("cheat")
class Cheat(torch.nn.Module):
    '''A norm, which may cheat.'''

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = torch.tanh(x) * self.gain
        {forward}
        return y
"""
WORDS = "the cat sat on a mat and that dog ran to some park where"


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A folder with two texts and the file of a ledger, where commands are run."""
    for name, seed in (("one", 1), ("two", 2)):
        words = random.Random(seed).choices(WORDS.split(), k=9_000)
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


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """Ledgers of earlier tests: the texts of all tests are the same."""
    return tmp_path_factory.mktemp("ledgers")


@pytest.fixture
def ledger(bench, kept):
    """A ledger that was opened."""
    return _make_once(bench, kept / "opened", bench.open)


@pytest.fixture
def judged(ledger, kept):
    """A ledger that has rejected its first candidate."""
    return _make_once(ledger, kept / "judged", lambda: ledger.judge(WORSE, "worse.yaml"))


@pytest.fixture
def accepted(judged, kept):
    """A ledger that has accepted its second candidate, too."""
    return _make_once(judged, kept / "accepted", lambda: judged.judge(BETTER, "better.yaml"))


def _make_once(bench, copy, make):
    if copy.is_dir():
        shutil.copytree(copy, bench.root / "ledger", dirs_exist_ok=True)
        bench.write()
    else:
        make()
        shutil.copytree(bench.root / "ledger", copy)
    return bench


def begin(ledger, label, **more):
    values = {"changes": {"train.lr": 0.04}, "code": "", **more}
    number, best = len(ledger.of(Begun)) + 1, len(ledger.path)
    return Begun(number=number, label=label, best=best, level=ledger.level, **values)


def accept(ledger, label, **more):
    """Accept a candidate without its runs."""
    now, begun = ledger.add(lambda now: begin(now, label, **more))
    return end(now, begun.number)


def end(ledger, number, verdict="accepted"):
    """Decide a candidate that has begun, without its runs."""
    for gate in (1, 2) if verdict == "accepted" else (1,):
        ledger, _ = ledger.add(Gated(number=number, gate=gate, found=[gated("better")]))
    return ledger.add(Decided(number=number, verdict=verdict, why=""))[0]


def gated(verdict, difference=-1.0, n=5, guards=None):
    return GateDifference(
        unit="nats",
        n=n,
        difference=difference,
        low=difference - 0.5,
        high=difference + 0.5,
        alpha=0.05,
        verdict=verdict,
        seeds_low=math.nan,
        seeds_high=math.nan,
        guards=guards or {},
    )
