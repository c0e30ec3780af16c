"""The levels of a session of candidates, in closed form, and a whole tiny session."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

from analysis.judge import Terms, judge, lord, merge, weights
from llama_ablate.errors import ConfigError

from .in_process import in_process

PAGE = Path(__file__).parents[1] / "docs" / "loop.md"
#: The example of Bioconductor's onlineFDR: p values, and the levels that its documentation prints.
P = [
    *(2.90e-08, 0.06743, 0.01514, 0.08174, 0.00171, 3.60e-05, 0.79149, 0.27201),
    *(0.28295, 7.59e-08, 0.69274, 0.30443, 0.00136, 0.72342, 0.54757),
]
PUBLISHED = [
    *(0.0002675839, 0.0024664457, 0.0005732818, 0.0004872805, 0.0004059066, 0.0003447286),
    *(0.0029745013, 0.0008450114, 0.0007305648, 0.0006243143, 0.0032185913, 0.0010617227),
    *(0.0009256825, 0.0008019657, 0.0007059610),
]
#: As onlineFDR has the weights: over all whole numbers they sum to 1.
EVERY = (0.07720838 * np.log(2) / weights(1000)[0] * np.array(weights(1000))).tolist()
SESSION = """
base: llama2-tiny
model: {dim: 16, layers: 1, heads: 2, context: 16}
data: {corpus: {name: files, path: TEXT}, tokenizer: bytes}
train: {steps: 60, batch: 8, lr: 1.0e-2, precision: float32, kernel: math, evals: 2}
margin: 0.02 nats
measure: [perplexity]
judge: {seeds: 4, candidates: 20, size: {dim: 20}}
candidates:
- {train.lr: 6.0e-3}
- {label: faster, train.lr: 2.5e-2, draws: both}
"""


def test_the_levels_are_those_of_a_published_example():
    accepted, levels = [], []
    for test, p in enumerate(P, 1):
        levels.append(lord(test, accepted, EVERY, 0.05, 0.005))
        if p <= levels[-1]:
            accepted.append(test)
    assert levels == pytest.approx(PUBLISHED, rel=2e-7)
    assert accepted == [1, 6, 10]


@pytest.mark.parametrize("most", [1, 2, 30, 1000])
def test_without_an_acceptance_all_levels_together_are_the_first_wealth(most):
    shares = weights(most)
    assert shares == sorted(shares, reverse=True)
    assert sum(lord(n, [], shares, 0.05, 0.025) for n in range(1, most + 1)) == pytest.approx(0.025)


@pytest.mark.parametrize("test", [1, 20, 900])
def test_the_levels_of_two_gates_multiply_to_that_of_one_at_most(test):
    one = Terms(4, 1000).level(test, [])
    two = Terms(4, 1000, size={"dim": 32}).level(test, [])
    assert one == pytest.approx(0.025 * weights(1000)[test - 1])
    assert two == pytest.approx(min(one**0.5, 0.025))


def test_a_changed_component_drops_the_options_of_the_one_before():
    best = {"attention": "gqa", "attention.kv_heads": 2, "train.lr": 0.1}
    assert merge(best, {"attention": "mla"}) == {"train.lr": 0.1, "attention": "mla"}
    assert merge(best, {"attention.kv_heads": 1}) == {**best, "attention.kv_heads": 1}


@pytest.fixture
def session(tmp_path):
    """Write a session file and its text."""
    words = random.Random(1).choices(
        ["the ", "cat ", "sat ", "on ", "a ", "mat ", "where "], k=9_000
    )
    (tmp_path / "text.txt").write_text("".join(words))
    file = tmp_path / "session.yaml"
    file.write_text(SESSION.replace("TEXT", str(tmp_path / "text.txt")))
    return file


def test_a_session_rejects_accepts_goes_on_and_repeats_nothing(session, tmp_path):
    root = tmp_path / "ledger"
    with in_process():
        first = judge(session, root, device="cpu")
        assert [event["verdict"] for event in first.ended.values()] == ["rejected", "accepted"]
        assert first.best == {"train.lr": 0.025}
        assert [event["experiment"] for event in first.ended.values()] == [
            "0001 gate 1",
            "0002 gate 2",
        ]
        alphas = {event["alpha"] for event in first.ended.values()}
        assert alphas == {2 * event["level"] for event in first.begun.values()} == {0.05}
        lines = (root / "ledger.jsonl").read_text().splitlines()
        curves = {path: path.stat() for path in root.rglob("curve.csv")}
        # Interrupted after its runs: only the last line is written again.
        (root / "ledger.jsonl").write_text("".join(f"{line}\n" for line in lines[:-1]))
        again = judge(session, root, device="cpu")
    assert (root / "ledger.jsonl").read_text().splitlines() == lines
    assert len(curves) == 8 + 16
    assert {path: path.stat().st_mtime_ns for path in root.rglob("curve.csv")} == {
        path: stat.st_mtime_ns for path, stat in curves.items()
    }
    assert list(again.table()["label"]) == ["train.lr=0.006", "faster"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("train.lr: 6.0e-3", "norm: no_such"), "no_such"),
        (("label: faster, ", "train.lrr: 1, "), "lrr"),
        (("seeds: 4, ", ""), "needs 'judge' with seeds and candidates"),
        (("seeds: 4", "seeds: 1"), "needs 2 to 1000 seeds"),
        (("steps: 60", "stepss: 60"), "stepss"),
    ],
)
def test_a_mistake_is_told_and_spends_nothing(session, tmp_path, change, message, monkeypatch):
    monkeypatch.setattr("analysis.judge._find", lambda *_: {"verdict": "inconclusive"})
    monkeypatch.setattr("analysis.judge.la.run", lambda *_, **__: SimpleResults())
    session.write_text(session.read_text().replace(*change))
    with pytest.raises(ConfigError, match=message):
        judge(session, tmp_path / "ledger")
    file = tmp_path / "ledger" / "ledger.jsonl"
    events = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    begun = [event for event in events if "level" in event]
    assert len(begun) == sum("verdict" in event for event in events)


class SimpleResults:
    """Results without rows."""

    def comparison(self):
        """Return nothing."""


def test_terms_and_judged_candidates_stay(session, tmp_path, monkeypatch):
    monkeypatch.setattr("analysis.judge._find", lambda *_: {"verdict": "accepted"})
    monkeypatch.setattr("analysis.judge.la.run", lambda *_, **__: SimpleResults())
    root = tmp_path / "ledger"
    judge(session, root)
    text = session.read_text()
    session.write_text(text.replace("6.0e-3", "8.0e-3"))
    with pytest.raises(ConfigError, match=r"candidate 1 was 'train.lr=0.006': add new ones"):
        judge(session, root)
    session.write_text(text.replace("seeds: 4", "seeds: 5"))
    with pytest.raises(ConfigError, match="began with another experiment"):
        judge(session, root)
    session.write_text(text + "- {norm: layernorm}\n")
    ledger = judge(session, root)
    assert ledger.accepted == [1, 2, 3]
    assert ledger.best == {"train.lr": 0.025, "norm": "layernorm"}
    levels = [event["level"] for event in ledger.begun.values()]
    terms = Terms(4, 20, size={"dim": 20})
    assert levels == [terms.level(1, []), terms.level(2, [1]), terms.level(3, [1, 2])]


def test_the_example_of_the_page_runs(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    text = text.replace("steps: 400", "steps: 20").replace("seeds: 6", "seeds: 2")
    (tmp_path / "session.yaml").write_text(text)
    with in_process():
        ledger = judge(tmp_path / "session.yaml", tmp_path / "ledger", device="cpu")
    assert len(ledger.ended) == 3
