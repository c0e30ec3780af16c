"""The micro-benchmarks run, take turns, and say what they measured. No speed is asserted."""

import re

import pytest
import torch
import torch.nn.functional as F

from llama_ablate.bench import BENCHES, decode, step
from llama_ablate.bench.feedforward import _FUSED, Activation
from llama_ablate.bench.norms import NaiveLayerNorm, NaiveRMSNorm
from llama_ablate.bench.timing import Setup, in_turns
from llama_ablate.commands.cli import main
from llama_ablate.files.strict_json import read_json
from llama_ablate.report import bench_tables

QUICK = Setup(dim=32, rows=64, rounds=6, compiled=False)


def test_cases_take_turns_and_one_that_cannot_run_says_why():
    called = []

    def broken():
        raise RuntimeError("no compiler\nand more")

    cases = {"a": lambda: called.append("a"), "x": broken, "b": lambda: called.append("b")}
    table = in_turns("t", cases, QUICK, against="a")
    assert called == ["a", "b"] * 8  # two rounds warm up
    assert len(table.seconds["a"]) == 6
    assert list(table.seconds) == ["a", "b"]
    assert table.failed == {"x": "RuntimeError: no compiler"}
    assert table.ratio("a").value == 1


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_prints_its_ratios(name, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(decode, "_NEW", (8, 100))
    monkeypatch.setattr(decode, "_MODEL", decode._MODEL | {"dim": 64, "layers": 1})
    monkeypatch.setattr(step, "_MODEL", step._MODEL | {"dim": 64, "layers": 1, "context": 32})
    arguments = ["bench", name, "--dim", "32", "--rows", "64", "--rounds", "1", "--no-compile"]
    assert main([*arguments, "--json"]) == 0
    (tmp_path / "values.json").write_text(capsys.readouterr().out, "utf-8")
    values = read_json(tmp_path / "values.json")
    assert values["environment"]["packages"]["torch"] == torch.__version__
    for table in values["tables"]:
        assert not table["failed"]
        assert all(case["median_s"]["value"] > 0 for case in table["cases"].values())
    out = bench_tables.text(values)
    assert values["ratios"]
    for row in values["ratios"]:
        assert row["ratio"] in out
        assert re.search(r"\d\.\d+x", row["measured"])


def test_the_naive_norms_compute_their_formulas():
    """LayerNorm divides by the unbiased deviation: sqrt(1 - 1/n) of the real one."""
    x = torch.randn(4, 64)
    real = F.layer_norm(x, (64,))
    torch.testing.assert_close(NaiveLayerNorm(64)(x), real * (63 / 64) ** 0.5, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(NaiveRMSNorm(64)(x), F.rms_norm(x, (64,), eps=1e-6))


@pytest.mark.parametrize("name", _FUSED)
def test_the_naive_activations_compute_what_the_fused_ones_do(name):
    x = torch.randn(1000)
    torch.testing.assert_close(Activation(name)(x), _FUSED[name](x), rtol=1e-5, atol=1e-6)
