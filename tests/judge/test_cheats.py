"""Cheats of candidates and damage of ledgers: refused, found, or said to be possible."""

import json
import os
from hashlib import sha256
from pathlib import Path

import pytest

from llama_ablate.errors import ConfigError
from llama_ablate.files.strict_json import to_line
from llama_ablate.judge.ledger import Begun, Decided, Gated, Ledger
from llama_ablate.judge.ledger_page import list_rows
from tests.judge.conftest import BETTER, INVALID, NORM, WORSE, accept, begin, gated
from tests.reliability.harness import in_child

ROOT = Path(__file__).parents[2]
LOOK_AHEAD = "y = y + 3 * x.roll(-1, -2) * (x.shape[-2] > 1)"
#: What the code of a candidate does in its runs, and what is found.
CHEATS = {
    "looks ahead, but not where its run checks that": (
        "if called_by('_run', 'serve_logits') and not called_by('predicts_from_prefix'): "
        + LOOK_AHEAD,
        "",
        "its predictions depend on the tokens that they predict",
    ),
    "looks ahead, but not where it is measured again": (
        "if called_by('_run') and not called_by('predicts_from_prefix'): " + LOOK_AHEAD,
        "",
        "by its weights",
    ),
    "halves the losses of torch": (
        "",
        "whole = torch._C._nn.cross_entropy_loss\n"
        "torch._C._nn.cross_entropy_loss = lambda *a, **k: 0.5 * whole(*a, **k)\n",
        "by its weights",
    ),
    "fails in its runs": (
        "if called_by('_run'): raise RuntimeError('no more')",
        "",
        "a run ended in error: RuntimeError: no more",
    ),
    "ends where it is measured again": (
        "if called_by('serve_logits'): import os; os._exit(3)",
        "",
        "it does not answer when it is measured again",
    ),
}
FAST = "halves the losses of torch"


def judged_apart(ledger, code):
    """Judge a candidate of this code in a child, which keeps what it registers; return the code."""
    return in_child(lambda: os._exit(ledger.judge(code, "cheat.py")))


@pytest.mark.parametrize(
    "cheat", [pytest.param(one, marks=[] if one == FAST else pytest.mark.full) for one in CHEATS]
)
def test_a_candidate_that_cheats_is_invalid(ledger, cheat):
    forward, also, said = CHEATS[cheat]
    assert judged_apart(ledger, NORM.format(forward=forward or "pass") + also) == INVALID
    (ended,) = ledger.read().of(Decided)
    assert said in ended.why


@pytest.mark.full
def test_a_guard_that_a_candidate_writes_itself_is_measured_again(bench):
    bench.open(
        measure="[perplexity, calibration]",
        guard="{metric: calibration, worse_by: 0.5 points}",
    )
    code = NORM.format(forward="pass") + (
        "from llama_ablate.measure import METRICS\n"
        "METRICS._components['calibration'] = lambda s: {'calibration_error': 0.0}\n"
    )
    assert judged_apart(bench, code) == INVALID
    assert "its calibration_error is 0.0, by its weights" in bench.read().of(Decided)[0].why


@pytest.mark.full
def test_a_process_of_gate_one_is_not_given_the_second_text(ledger):
    code = NORM.format(forward="pass") + (
        "import sys\n"
        "from llama_ablate.data import tokens\n"
        "given = [*map(str, tokens.trusted_folders.values()), sys.argv]\n"
        "open('seen.txt', 'a').write(repr(given))\n"
    )
    second = ledger.read().opened.texts[1]
    in_child(lambda: ledger.judge(code, "cheat.py"))
    assert second not in (ledger.root / "seen.txt").read_text("utf-8")
    planned = (ledger.root / "ledger" / "runs" / "0001").glob("gate-1*")
    files = [file for one in planned for file in ([one] if one.is_file() else one.rglob("*"))]
    written = [file.read_bytes() for file in files if file.is_file()]
    assert len(written) > 5
    assert not any(second.encode() in text or b"two.txt" in text for text in written)


def append(file, text):
    """Append a line with a right seal, as code with the user's rights can."""
    lines = file.read_text("utf-8").splitlines()
    seal = sha256(f"{lines[-1][-66:-2]}\n{text}".encode()).hexdigest()
    file.write_text("\n".join([*lines, f'{text},"sha256":"{seal}"}}', ""]), "utf-8")


def accepted(number):
    return Decided(number=number, verdict="accepted", why="")


#: What is appended to a ledger whose first candidate was rejected, and what is said.
FORGED = {
    "a decision without gates": (lambda _: accepted(2), {}, "candidate 2 has not begun"),
    "a second decision": (lambda _: accepted(1), {}, "candidate 1 has ended before"),
    "a level that is not the rule's": (
        lambda now: begin(now, "x"),
        {"level": 0.02},
        "has level 0.02, and the rule grants 0.002",
    ),
    "a best beyond the path": (lambda now: begin(now, "x"), {"best": 1}, "against best 1 of 0"),
    "a second opening": (lambda now: now.opened, {}, "opens the ledger a second time"),
    "a number in words": (lambda _: accepted(1), {"number": "one"}, "no event of this version"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_line_that_cannot_follow_is_refused_whoever_sealed_it(judged, capsys, forged):
    make, changes, said = FORGED[forged]
    event = make(judged.read()).model_dump(mode="json") | changes
    append(judged.file, to_line(event).removesuffix("}"))
    before = judged.file.read_bytes()
    assert judged.judge(BETTER) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "ledger.jsonl:5: " in error
    assert said in error
    assert judged.file.read_bytes() == before


def test_a_decision_needs_the_gates_that_it_is_from(ledger):
    found, _ = ledger.read().add(lambda now: begin(now, "first"))
    for verdict in ("accepted", "rejected"):
        with pytest.raises(ConfigError, match=f"candidate 1 is {verdict} after 0 gates"):
            found.add(Decided(number=1, verdict=verdict, why=""))
    found, _ = found.add(Gated(number=1, gate=1, found=[gated("better")]))
    with pytest.raises(ConfigError, match="candidate 1 is accepted after 1 gates"):
        found.add(accepted(1))
    with pytest.raises(ConfigError, match="gate 1 of candidate 1 follows 1 gates"):
        found.add(Gated(number=1, gate=1, found=[gated("worse")]))


def test_a_ledger_that_was_cut_grants_no_number_twice(judged, capsys):
    opened = judged.file.read_text("utf-8").splitlines(keepends=True)[0]
    judged.file.write_text(opened, "utf-8")  # as an older copy
    assert judged.judge(BETTER) == 2
    assert "0001' is there, and the ledger has no candidate 1" in capsys.readouterr().err
    assert judged.file.read_text("utf-8") == opened


def test_a_ledger_that_lacks_a_key_is_refused_in_one_line(ledger, capsys):
    opened = ledger.read().opened.model_dump(mode="json")
    del opened["experiment"]["model"]["dim"]
    text = json.dumps(opened, separators=(",", ":"))[:-1]
    seal = sha256(f"\n{text}".encode()).hexdigest()
    ledger.file.write_text(f'{text},"sha256":"{seal}"}}\n', "utf-8")
    assert ledger() == 2
    (error,) = capsys.readouterr().err.splitlines()
    said = "ledger.jsonl:1: no event of this version: experiment: lacks experiment.model.dim"
    assert said in error


def test_the_code_of_a_strangers_ledger_is_not_run(ledger, capsys):
    code = "open('ran', 'w').close()\n" + NORM.format(forward="pass")
    key = sha256(code.encode()).hexdigest()
    accept(ledger.read(), "theirs", plugins={key: code}, changes={"norm": "cheat"})
    assert ledger() == 0  # it is shown
    assert ledger.judge(WORSE) == 2
    assert "the best has code that this user has not brought: read" in capsys.readouterr().err
    assert not (ledger.root / "ran").exists()
    assert [one.number for one in ledger.read().of(Begun)] == [1]


def test_a_ledger_of_an_older_version_keeps_the_levels_of_its_gates(ledger):
    opened = ledger.read().opened.model_copy(update={"format": 1})
    found = Ledger(ledger.root / "ledger", (opened,))
    first = begin(found, "first")
    assert [found.alpha(first, gate) for gate in (1, 2)] == [2 * first.level, 0.05]


def test_the_committed_ledger_reads_and_counts_as_before():
    found = Ledger.open(ROOT / "results" / "reference" / "referee")
    verdicts = [row.verdict for row in list_rows(found)]
    assert (len(verdicts), verdicts.count("accepted")) == (33, 8)
