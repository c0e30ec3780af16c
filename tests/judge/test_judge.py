"""The command `judge`: candidates through both gates, and the ledger that they leave."""

import json
import math
import os
import re
import shutil
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from hashlib import sha256
from io import StringIO
from pathlib import Path

import jsonschema
import pytest

from docs import schema
from llama_ablate.commands.cli import main
from llama_ablate.judge import candidates
from llama_ablate.judge.gates import decide, describe
from llama_ablate.judge.ledger import Begun, Decided, Gated, Ledger, TakenApart, merged
from llama_ablate.judge.ledger_page import list_rows
from llama_ablate.judge.levels import lord, split_level, weights
from llama_ablate.launch import environment as launch_environment
from tests.in_process import in_process
from tests.judge.conftest import (
    ACCEPTED,
    BETTER,
    INCONCLUSIVE,
    INVALID,
    NORM,
    NULL,
    REJECTED,
    TERMS,
    WORSE,
    accept,
    begin,
    end,
    gated,
)
from tests.reliability.harness import crash_at, in_child
from tests.texts import sentences


def test_a_change_that_helps_is_accepted_at_both_gates_and_moves_the_best(accepted):
    found = accepted.read()
    begun, ended = found.of(Begun)[1], found.of(Decided)[1]
    passed = [event for event in found.of(Gated) if event.number == 2]
    assert [event.gate for event in passed] == [1, 2]
    assert (begun.number, begun.best, ended.verdict) == (2, 0, "accepted")
    assert found.best() == {"train.lr": 0.04}
    one, two = (event.found[0] for event in passed)
    assert one.losses.keys().isdisjoint(two.losses)  # the seeds of gate two are fresh
    assert one.alpha <= found.alpha(begun, 1) == 2 * split_level(begun.level)[0]
    assert two.alpha == found.alpha(begun, 2) == 2 * split_level(begun.level)[1]
    assert ended.why == f"gate 2: {describe(two)}"


def test_harm_is_rejected_and_the_same_command_says_so_again(judged, capsys):
    before = judged.file.read_bytes()
    assert judged.judge(WORSE, "worse.yaml", "--json") == REJECTED
    assert judged.file.read_bytes() == before
    answer = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, json.loads(schema.of_judge()))
    assert (answer["number"], answer["verdict"]) == (1, "rejected")
    (row,) = answer["candidates"]
    assert 0 < row["low"] < row["difference"] < row["high"]
    assert row["parameters"] > 1000
    assert math.isclose(answer["next_level"], 0.025 * weights(20)[1])


@pytest.mark.full
def test_other_draws_of_the_best_are_not_accepted(ledger):
    assert ledger.judge(NULL) in (REJECTED, INCONCLUSIVE)
    found = ledger.read().of(Gated)[-1].found[0]
    assert all(own != base for own, base in found.losses.values())  # its draws are its own


def test_a_candidate_is_compared_with_the_best_and_not_with_the_baseline(ledger):
    found = accept(ledger.read(), "first")
    found, begun = found.add(lambda now: begin(now, "norm", changes={"norm": "layernorm"}))
    best, own = found.gate(begun, 1)["variants"]["entries"]
    assert best == {"label": "best", "train.lr": 0.04}
    assert own == {"label": "norm", "train.lr": 0.04, "norm": "layernorm"}
    assert begun.level == pytest.approx(lord(2, [1], weights(20), 0.05, 0.025))


def test_a_later_change_of_a_component_drops_what_was_changed_of_the_one_before():
    best = merged({"norm": "dyt", "norm.slope": 5, "train.lr": 0.1}, {"norm.slope": 4})
    assert best == {"norm": "dyt", "train.lr": 0.1, "norm.slope": 4}
    assert merged(best, {"norm": "layernorm"}) == {"train.lr": 0.1, "norm": "layernorm"}


def test_what_has_begun_counts_as_not_accepted_until_it_is_decided(ledger):
    found = ledger.read()
    found, first = found.add(lambda now: begin(now, "first"))
    found, second = found.add(lambda now: begin(now, "second"))
    shares = weights(20)
    assert first.level == pytest.approx(0.025 * shares[0])
    assert second.level == pytest.approx(0.025 * shares[1])
    found = end(found, 1)
    # Accepted when two had begun: the third is the first that it pays for.
    assert found.level == pytest.approx(lord(3, [2], shares, 0.05, 0.025))
    assert found.level > 0.025 * shares[2]


def test_what_began_against_an_old_best_does_not_move_the_present_one(ledger):
    found = ledger.read()
    found, _ = found.add(lambda now: begin(now, "first"))
    found, _ = found.add(lambda now: begin(now, "second"))
    for number in (2, 1):
        found = end(found, number)
    assert [begun.label for begun in found.path] == ["second"]
    found, third = found.add(lambda now: begin(now, "third"))
    assert third.best == 1


def test_a_ledger_grants_no_more_candidates_than_it_was_opened_for(bench, capsys):
    accept(bench.open(judge=TERMS["judge"].replace("20", "1")), "first")
    assert bench.judge(BETTER) == 2
    assert "the ledger's 1 candidates are spent" in capsys.readouterr().err


def test_the_looks_of_a_gate_spend_the_level_that_was_granted(ledger):
    found, begun = ledger.read().add(lambda now: begin(now, "first"))
    seeds = found.gate(begun, 1)["seeds"]
    # Of the 5% (two-sided) that a table may spend; the looks are of 3 and of 5 seeds.
    assert [0.05 * share for share in seeds["spend"]] == pytest.approx(
        [found.alpha(begun, 1) * 3 / 5, found.alpha(begun, 1) * 2 / 5]
    )


def test_a_dry_run_says_level_power_and_cost_and_writes_nothing(judged, capsys):
    candidate = judged.candidate(BETTER)
    before, there = judged.file.read_bytes(), sorted(judged.root.rglob("*"))
    assert judged(candidate, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "candidate 2 'candidate': level 0.0021 (one-sided), 0.025 of it at gate one" in said
    assert "power for 0.02 nats" in said
    assert "predicted: about" in said
    assert judged.file.read_bytes() == before
    assert sorted(judged.root.rglob("*")) == there


@pytest.mark.full
def test_each_change_of_the_best_is_left_out_in_one_design(accepted, capsys):
    accept(accepted.read(), "nothing", changes={"norm.eps": 1e-6})
    assert accepted("--leave-one-out", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["candidates"][1:]
    assert [row["helps"].partition(":")[0] for row in rows] == ["yes", "not shown"]
    assert accepted("--leave-one-out") == 0  # and says the same: it is not repeated
    (apart,) = accepted.read().of(TakenApart)
    assert apart.found.keys() == {"without 2 better", "without 3 nothing"}


@pytest.mark.full
def test_a_second_size_must_have_the_sign(bench):
    bench.open(judge=TERMS["judge"].replace("confirm: 3", "confirm: 3, size: {dim: 32}"))
    ended = bench.judge(BETTER)
    own, other = bench.read().of(Gated)[-1].found
    assert (own.table, other.table, own.verdict) == ("dim 16", "dim 32", "better")
    assert ended == (ACCEPTED if other.difference < 0 else REJECTED)
    assert ("no gain at dim 32" in bench.read().of(Decided)[0].why) == (ended == REJECTED)


@pytest.mark.parametrize(
    ("size", "verdict"),
    [
        (gated("better"), "accepted"),
        (gated("inconclusive", 0.1), "rejected"),
        (gated("diverged", -0.01, 1), "rejected"),
        (gated("better", guards={"calibration": "worse"}), "rejected"),
        (gated("failed", math.nan, 0), "inconclusive"),
    ],
)
def test_a_second_size_may_veto(size, verdict):
    assert decide(2, [gated("better"), size])[0] == verdict


@pytest.mark.full
def test_a_killed_judge_goes_on_and_ends_alike(ledger, volume, monkeypatch):
    """Killed before the n-th call that changes the disk, half way into a write."""
    monkeypatch.setattr("secrets.randbelow", lambda _: 7)  # its seeds are drawn when it begins
    start = ledger.file.read_bytes()
    candidate = ledger.candidate(BETTER)
    assert ledger(candidate) == ACCEPTED
    expected = ledger.file.read_bytes()
    for number in range(12, 4000, volume(63, 63, 21)):
        shutil.rmtree(ledger.root / "ledger")
        ledger.file.parent.mkdir()
        ledger.file.write_bytes(start)

        def crash(number=number):
            crash_at(number).install()
            ledger(candidate)

        ended = in_child(crash)
        Ledger.open(ledger.root / "ledger")  # whole, whenever that was
        if ended != -9:
            break
        assert in_child(lambda: os._exit(ledger(candidate)), shown=(2,)) == ACCEPTED, number
        assert ledger.file.read_bytes() == expected, number
    assert number > 700


@pytest.mark.full
def test_two_judges_of_one_ledger_spend_no_level_twice(ledger):
    first, second = (ledger.candidate(f"train.lr: {lr}", f"c{lr}.yaml") for lr in (7e-3, 6e-3))

    def both():
        child = os.fork()
        if child == 0:
            os._exit(ledger(first))
        code = ledger(second)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (REJECTED, INCONCLUSIVE)
        os._exit(code)

    assert in_child(both) in (REJECTED, INCONCLUSIVE)
    found = ledger.read()
    assert sorted(begun.number for begun in found.of(Begun)) == [1, 2]
    assert len({begun.level for begun in found.of(Begun)}) == 2
    assert len(found.of(Decided)) == 2


def test_a_candidate_that_is_being_judged_is_refused(ledger, capsys):
    candidate = ledger.candidate(BETTER)
    found, begun = ledger.read().add(lambda now: begin(now, "candidate"))
    with found.working_on(begun):
        assert ledger(candidate) == 2
    assert "candidate 1 is being judged elsewhere" in capsys.readouterr().err


def test_an_edited_ledger_is_refused_at_its_line(judged, capsys):
    lines = judged.file.read_text("utf-8").splitlines(keepends=True)
    assert len(lines) == 4
    for line, text in enumerate(lines):
        before, after = lines[:line], lines[line + 1 :]
        digit = re.sub(r"([0-8])(?=\D)", lambda m: str(int(m[1]) + 1), text, count=1)
        edited = digit if after else text.replace("rejected", "accepted")
        left_out = [[*before, *after]] if after else []  # without its end it is as it was before
        for changed in ([*before, edited, *after], *left_out):
            judged.file.write_text("".join(changed), "utf-8")
            assert judged() == 2
            assert f"ledger.jsonl:{line + 1}: edited or damaged" in capsys.readouterr().err


def test_a_copy_of_the_file_alone_is_a_ledger_that_reads_and_judges_on(ledger, tmp_path):
    accept(ledger.read(), "first")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "ledger.jsonl").write_bytes(ledger.file.read_bytes())
    assert ledger("--ledger", tmp_path / "copy") == 0
    assert (tmp_path / "copy" / "ledger.html").is_file()
    worse = ledger.candidate("train.lr: 6e-3", "worse.yaml")
    assert ledger(worse, "--dry-run", "--ledger", tmp_path / "copy") == 0


def test_its_page_says_what_was_tried_and_what_is_left(ledger):
    found, _ = ledger.read().add(lambda now: begin(now, "<b>slower</b> $x^{ $ 比"))
    accept(end(found, 1, "rejected"), "faster")
    assert ledger() == 0
    page = (ledger.root / "ledger" / "ledger.html").read_text("utf-8")
    tried = "Candidates: 1 rejected, 1 accepted. The best is the baseline with train.lr 0.04."
    assert tried in page
    assert "Left: 18 of 20 candidates" in page
    assert "&lt;b&gt;slower&lt;/b&gt; $x^{ $ 比" in page
    assert "<b>slower" not in page
    assert not any(word in page for word in ("http://", "https://", 'src="//'))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"margin": None}, "margin: a ledger states a baseline"),
        ({"judge": None}, "needs a section 'judge', with a 'second' text"),
        ({"judge": "{second: {corpus: {name: files, path: one.txt}}}"}, "judge.second: the second"),
        ({"judge": "{second: {}, look: [3]}"}, "did you mean 'looks'?"),
        ({"variants": "{axes: {norm: [dyt]}}"}, "variants: a ledger states a baseline"),
        ({"measure": "[kv_cache]"}, "measure: a ledger states a baseline"),
        pytest.param(
            {"controls": "{positive: {norm.eps: 1e-6}}"},
            "controls of its best fail",
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_ledger_is_not_opened_with(bench, capsys, sections, said):
    assert bench("--new", bench.write(**sections)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in error
    assert not bench.file.exists()


def test_a_second_text_that_the_first_one_trains_on_opens_no_ledger(bench, capsys):
    words = (bench.root / "one.txt").read_text("utf-8").split()
    rows = (json.dumps({"text": " ".join(words[i : i + 30])}) for i in range(0, 9_000, 30))
    (bench.root / "docs.jsonl").write_text("\n".join(rows), "utf-8")
    first, second = (
        f"{{corpus: {{name: files, path: docs.jsonl, splits: [{splits}]}}, tokenizer: bytes}}"
        for splits in ("0.8, 0.1, 0.1", "0.1, 0.45, 0.45")
    )
    assert bench("--new", bench.write(data=first, judge=f"{{second: {second}}}")) == 2
    assert "of the held-out tokens of the second text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("label: best", "changes nothing of the best"),
        ("norm: layernrm", "'layernrm'"),
        ("train.lr: 1.5e-2", "is the same variant as 'best'"),
        ("nrm: layernorm", "'nrm' cannot vary"),
        ("plugin: none.py", "none.py: No such file"),
        ("[1]", "candidate.yaml"),
        ("train.batch: 1000", "a step of 'candidate' is more than twice the budget of a run"),
    ],
)
def test_what_is_no_candidate_is_refused_in_one_line_and_spends_nothing(ledger, capsys, text, said):
    before = ledger.file.read_bytes()
    assert ledger.judge(text) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert said in error
    assert "candidate.yaml" in error or "none.py" in error
    assert ledger.file.read_bytes() == before


@pytest.mark.parametrize("key", ["data.tokenizer", "seeds", "train.steps"])
def test_what_the_ledger_states_no_candidate_changes(ledger, capsys, key):
    assert ledger.judge(f"{key}: 1") == 2
    assert f"'{key}' is sealed: the ledger states it once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["c.yaml", "--leave-one-out"], "one of CANDIDATE"),
        (["--leave-one-out"], "there is nothing to leave out"),
        (["c.yaml", "--ledger", "nowhere"], "'nowhere' holds no ledger: --new FILE opens one"),
        (["--new", "terms.yaml"], "holds a ledger already"),
    ],
)
def test_a_command_that_asks_for_nothing_sensible_is_refused(ledger, capsys, words, said):
    ledger.candidate(BETTER, "c.yaml")
    assert ledger(*words) == 2
    assert said in capsys.readouterr().err


def test_a_text_that_has_changed_since_is_refused(ledger, capsys):
    (ledger.root / "one.txt").write_text(sentences(1_500), "utf-8")
    assert ledger.judge(BETTER) == 2
    assert "is not what the ledger was opened with" in capsys.readouterr().err


@pytest.mark.full
def test_the_pages_program_judges_until_no_candidate_is_left(bench, monkeypatch):
    bench.open(judge=TERMS["judge"].replace("20", "2"))
    page = (Path(__file__).parents[2] / "docs" / "loop.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)

    def run(words, **_):
        out, error = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(error), in_process():
            code = main([*words[1:], *(["--device", "cpu"] if "judge" in words else [])])
        return subprocess.CompletedProcess(words, code, out.getvalue(), error.getvalue())

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(launch_environment, "commit", lambda: None)  # which starts git
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(program, "loop.md", "exec"), {})  # noqa: S102  the page's own
    assert [line.split()[0] for line in printed.getvalue().splitlines()][:2] == ["1", "2"]
    assert len(bench.read().of(Decided)) == 2


@pytest.mark.full
def test_a_plug_in_is_kept_in_the_ledger_and_made_again_from_it(ledger):
    def work():
        code = NORM.format(forward="pass")
        ledger.candidate(code, "mine.py")
        ledger.judge("{norm: cheat, train.lr: 2e-2, plugin: mine.py}")
        found = ledger.read()
        (begun,) = found.of(Begun)
        assert list(begun.plugins.values()) == [code]
        (file,) = found.plugins(begun)
        file.write_text("broken", "utf-8")
        assert found.plugins(begun)[0].read_text("utf-8") == code

    assert in_child(work) == 0


@pytest.mark.full
def test_a_best_with_a_plug_in_is_taken_apart(ledger):
    code = NORM.format(forward="pass  # of another user")

    def work():
        brought = {"plugins": {sha256(code.encode()).hexdigest(): code}}
        accept(ledger.read(), "kept", changes={"norm": "cheat"}, **brought)
        assert ledger("--leave-one-out") == 2  # this user has not brought the code
        assert ledger("--leave-one-out", "--trust") == 0
        assert ledger.read().of(TakenApart)[0].found.keys() == {"without 1 kept"}

    assert in_child(work) == 0


@pytest.mark.full
def test_a_change_that_a_later_one_replaced_is_called_so_and_may_be_judged_again(ledger):
    found = accept(ledger.read(), "candidate", changes={"train.lr": 7e-3})
    found = accept(found, "later", changes={"train.lr": 5e-3})
    assert ledger("--leave-one-out") == 0
    first, later = list_rows(ledger.read())
    assert first.helps == "replaced since"
    assert later.helps.startswith(("yes", "not shown", "harms"))
    ledger.judge(WORSE)
    assert [one.best for one in ledger.read().of(Begun)] == [0, 1, 2]


def meanwhile(monkeypatch, module, name, does):
    """Let something happen after a step of a judge."""
    step = getattr(module, name)

    def both(*arguments):
        found = step(*arguments)
        does()
        return found

    monkeypatch.setattr(module, name, both)


def test_a_best_that_moved_while_a_candidate_was_planned_is_told_and_spends_nothing(
    ledger, monkeypatch, capsys
):
    meanwhile(monkeypatch, candidates, "_check_plans", lambda: accept(ledger.read(), "other"))
    assert ledger.judge(BETTER) == 2
    assert "the best has moved meanwhile: the same command takes" in capsys.readouterr().err
    assert [one.label for one in ledger.read().of(Begun)] == ["other"]


@pytest.mark.full
def test_a_text_that_changes_while_a_candidate_is_judged_makes_it_invalid(ledger, monkeypatch):
    text = ledger.root / "one.txt"
    meanwhile(
        monkeypatch, candidates, "_check_plans", lambda: text.write_text(sentences(2_000), "utf-8")
    )
    assert ledger.judge(BETTER) == INVALID
    (ended,) = ledger.read().of(Decided)
    assert ended.why == "the plan is not what the ledger states, at gate 1"
