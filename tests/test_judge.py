"""The levels of a session of candidates, simulated ledgers, and a whole tiny session."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from analysis.judge import Terms, judge, lord, weights
from llama_ablate.errors import ConfigError
from llama_ablate.evidence.intervals import estimate
from llama_ablate.evidence.verdicts import verdict

from .in_process import in_process

ROOT = Path(__file__).parents[1]
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
judge: {candidates: 20, seeds: 4, size: {dim: 20}}
candidates:
- {train.lr: 6.0e-3}
- {label: faster, train.lr: 2.5e-2}
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
    one = Terms(1000).level(test, [])
    two = Terms(1000, size={"dim": 32}).level(test, [])
    assert one == pytest.approx(0.025 * weights(1000)[test - 1])
    assert two == pytest.approx(min(one**0.5, 0.025))


def test_where_nothing_helps_no_ledger_in_twenty_accepts_anything(volume):
    terms, count, any_false = Terms(100, size={"dim": 1}), volume(20, 300, 300), 0
    for seed in range(count):
        draw, accepted = np.random.default_rng(seed), []

        def compare(_gate, level, draw=draw):
            found = estimate(draw.standard_normal((1, terms.seeds)), 0.0, np.inf, level)
            row = {key: of[0] for key, of in found.items()}
            word = verdict(row["low"], row["high"], 0.5)
            return {**row, "difference": row["mean"], "verdict": word}

        for number in range(1, terms.candidates + 1):
            if terms.test(number, accepted, compare)["verdict"] == "accepted":
                accepted.append(number)
        any_false += bool(accepted)
    assert stats.binomtest(any_false, count).proportion_ci(0.95, "exact").low <= 0.05


@pytest.fixture
def session(book, tmp_path):
    """Write a session file."""
    file = tmp_path / "session.yaml"
    file.write_text(SESSION.replace("TEXT", str(book)))
    return file


def test_a_killed_session_goes_on_to_the_same_ledger_and_repeats_nothing(session, tmp_path):
    with in_process():
        whole = judge(session, tmp_path / "whole", device="cpu")
    assert [line["verdict"] for line in whole.lines] == ["rejected", "accepted"]
    assert [line["gate"] for line in whole.lines] == [1, 2]
    assert whole.best == {"train.lr": 0.025}
    root, script = tmp_path / "ledger", ROOT / "analysis" / "judge.py"
    words = [sys.executable, str(script), str(session), "--ledger", str(root), "--device", "cpu"]
    process = subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL)
    while not {*root.glob("runs/0002-gate-1/runs/*")}:  # in the first gate of the second candidate
        assert process.poll() is None, "the session ended before its kill"
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with (root / "ledger.jsonl").open("a") as ledger:
        ledger.write('{"number": 2, "lab')  # a line that a full disk cut off
    before = {path: path.stat().st_mtime_ns for path in root.rglob("curve.csv")}
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ended in half a line" in done.stderr
    assert "best: the baseline with train.lr=0.025" in done.stdout
    paths = root / "ledger.jsonl", tmp_path / "whole" / "ledger.jsonl"
    assert paths[0].read_text() == paths[1].read_text()
    after = {path: path.stat().st_mtime_ns for path in root.rglob("curve.csv")}
    assert before.items() <= after.items()
    assert len(after) == 8 + 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("train.lr: 6.0e-3", "norm: no_such"), "no_such"),
        (("seeds: 4", "seeds: 1"), "2 to 1000 seeds"),
    ],
)
def test_a_mistake_is_told_and_spends_nothing(session, tmp_path, change, message):
    session.write_text(session.read_text().replace(*change).replace("steps: 60", "steps: 2"))
    with in_process(), pytest.raises(ConfigError, match=message):
        judge(session, tmp_path / "ledger")
    file = tmp_path / "ledger" / "ledger.jsonl"
    assert not file.exists() or len(file.read_text().splitlines()) == 1
