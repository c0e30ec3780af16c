"""The micro-benchmarks run, take turns, and say what they measured. No speed is asserted."""

import re

import pytest
import torch

from benchmarks.components import BENCHES, decode, step
from benchmarks.components import tables as bench_tables
from benchmarks.components.__main__ import main
from benchmarks.components.timing import Controls, Setup, in_turns
from llama_ablate.files.strict_json import read_json

QUICK = Setup(dim=32, rows=64, processes=1, rounds=6, compiled=False)


def test_cases_take_turns_and_one_that_cannot_run_says_why():
    called = []

    def broken():
        raise RuntimeError("no compiler\nand more")

    cases = {"a": lambda: called.append("a"), "x": broken, "b": lambda: called.append("b")}
    controls = Controls("a", lambda: called.append("A"), lambda: called.append("+"), "more")
    timed = in_turns("t", cases, QUICK, against="a", controls=controls)
    rounds = [called[i : i + 4] for i in range(0, len(called), 4)]
    assert [sorted(turn) for turn in rounds] == [["+", "A", "a", "b"]] * 8  # two rounds warm up
    assert any(turn != rounds[0] for turn in rounds)  # 24 orders: alike by chance in 2e-10
    assert [len(turns) for turns in timed.seconds["a"]] == [6]
    assert list(timed.seconds) == ["a", "b", "a, again (A/A)", "a, more (control)"]
    assert timed.failed == {"x": "RuntimeError: no compiler"}
    assert timed.ratio("a")["value"] == 1


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    "name",
    ["norms", *(pytest.param(n, marks=pytest.mark.full) for n in BENCHES if n != "norms")],
)
def test_every_bench_prints_its_ratios_and_controls(name, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(decode, "_NEW", (2, 8))
    monkeypatch.setattr(decode, "_MODEL", decode._MODEL | {"dim": 64, "layers": 1})
    monkeypatch.setattr(step, "_MODEL", step._MODEL | {"dim": 64, "layers": 1, "context": 32})
    small = ["--dim", "32", "--rows", "64", "--rounds", "1", "--processes", "2", "--no-compile"]
    main([name, *small, "--json"])
    (tmp_path / "values.json").write_text(capsys.readouterr().out, "utf-8")
    values = read_json(tmp_path / "values.json")
    assert values["environment"]["packages"]["torch"] == torch.__version__
    out = bench_tables.text(values)
    for timed in values["tables"]:
        assert not timed["failed"]
        assert {*timed["controls"]} == {"aa", "positive"}
        for case in timed["cases"].values():
            assert case["median_s"]["value"] > 0
            assert len(case["ratio_by_process"]) == case["ratio"]["processes"] == 2
    assert values["ratios"]
    for row in values["ratios"]:
        assert row["ratio"] in out
        assert re.search(r"\d\.\d+x", row["measured"])
