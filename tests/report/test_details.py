"""What `show` says of one variant: the same whether all runs are read or its own, and in short."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from llama_ablate.commands import show
from llama_ablate.commands.cli import main
from llama_ablate.findings.frames import Frames
from llama_ablate.report import details
from llama_ablate.results import Results
from tests import tables

PACKS = Path(__file__).parents[2] / "results" / "reference"


def without_nulls(values):
    """Drop what is empty: numbers that only other variants have are no columns of one alone."""
    if isinstance(values, dict):
        return {key: without_nulls(own) for key, own in values.items() if own is not None}
    return [*map(without_nulls, values)] if isinstance(values, list) else values


def shown(capsys, *words):
    """Return what `show` prints."""
    assert main(["show", *map(str, words)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("pack", ["first", "wikitext2"])
def test_a_variant_is_the_same_beside_all_runs_and_alone(pack, capsys):
    results = Results.open(PACKS / pack)
    frames = Frames.of(results)
    for variant in frames.table.plan.variants[:4]:
        text, values = details.variant(frames.table, variant)
        alone = shown(capsys, PACKS / pack, variant.id, "--all").rstrip("\n")
        assert sorted(alone.split("\n")) == sorted(text.split("\n"))  # names stand as first met
        alone = json.loads(shown(capsys, PACKS / pack, variant.id, "--json"))
        whole = json.loads(show.Answer("", values).json)
        assert without_nulls(alone) == without_nulls(whole)


@pytest.mark.parametrize("pack", ["first", "hybrids-state-small"])
def test_a_variant_takes_at_most_25_lines_and_says_where_the_rest_is(pack, capsys):
    plan = Results.open(PACKS / pack).plan
    for variant in (plan.tables[0].variants[0], plan.tables[0].variants[-1]):
        lines = shown(capsys, PACKS / pack, variant.id).splitlines()
        assert len(lines) <= 25
        assert lines[0] == f"{variant.label} ({variant.id})"
        assert lines[-1] == "all numbers, runs and options: --all"
        assert any(line.startswith("heldout_loss_nats: ") for line in lines)
        everything = shown(capsys, PACKS / pack, variant.id, "--all").splitlines()
        assert len(everything) > len(lines)


def test_a_run_that_failed_is_left_out_of_the_means():
    """It trained for 4 s before it ran out of memory; the two others took 2 s."""
    plain = tables.frames({"": {"base": [2.0, 2.0, "oom"]}}).table
    runs = plain.planned.assign(train_s=[2.0, 2.0, 4.0])
    text, _ = details.variant(replace(plain, planned=runs), plain.plan.baseline)
    assert "train_s: 2 ± 0 (sd of 2 seeds)" in text
