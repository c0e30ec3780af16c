"""Pairs of arms at several lengths and sizes: read from results, counted, shown, and refused."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from llama_ablate.commands.cli import main
from llama_ablate.findings import agreement
from llama_ablate.findings.agreement import ArmPair, Repeated
from llama_ablate.findings.frames import Frames
from llama_ablate.results import Results
from tests import tables
from tests.in_process import run_in_process

REFERENCE = Path(__file__).parents[2] / "results/reference"
PACKS = ("e07-ffn-activation", "e12-positions", "e15-kv-heads-quality")
PACKS += ("e16-leave-one-out-stack", "e18-isotime-pareto")
FIVE = [REFERENCE / "claims" / name for name in PACKS]


def asked(capsys, *words):
    """Return what `compare` prints as JSON."""
    assert main(["compare", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def counted(found):
    """Count pairs ranked alike at each setting but the last, over their losses, pair by pair."""
    end = found[-1].table
    arms = [(v.id, v.label) for v in end.plan.variants if not v.role]
    for setting in found[:-1]:
        ids = {v.label: v.id for v in setting.table.plan.variants}
        alike = of = 0
        for (a, first), (b, second) in itertools.combinations(arms, 2):
            small = [setting.table.losses[ids[label]] for label in (first, second)]
            large = [end.losses[id_] for id_ in (a, b)]
            seeds = set.intersection(*map(set, small + large))
            signs = [sum(x[s] - y[s] for s in seeds) > 0 for x, y in (small, large)]
            alike, of = alike + (signs[0] == signs[1]), of + 1
        yield alike, of


def test_half_the_length_ranks_44_percent_of_170_pairs_of_five_packs_as_the_end_does(capsys):
    values = asked(capsys, *FIVE, "--lengths")
    ranked = pd.DataFrame(values["ranked"])
    assert sorted({*ranked["share"]}) == [0.1, 0.25, 0.5]
    half = ranked[ranked["share"] == 0.5].set_index("results")
    pooled = half.loc[agreement.ALL]
    assert (pooled["pairs"], pooled["arms"]) == (170, 36)  # one label in two packs is two arms
    assert pooled["tokens"] == pooled["most_tokens"] == 5_996_544
    assert 0.38 < pooled["alike"] < 0.50
    assert 0.15 < pooled["low"] < pooled["alike"] < pooled["high"] < 0.70
    assert 0 < pooled["decided_pairs"] < 170
    assert math.isnan(half.loc["e15-kv-heads-quality", "low"])  # four arms
    for pack in FIVE:
        frames = Frames.of(Results.open(pack))
        found = agreement.settings(frames, frames.table, by_length=True, by_size=False)
        own = ranked[ranked["results"].str.startswith(pack.name)]
        by_hand = [alike / of for alike, of in counted(found)]
        assert own["alike"].tolist() == pytest.approx(by_hand)


def test_rope_turns_in_e16_and_no_shorter_run_ranks_its_arms_as_the_end_does(capsys):
    pack = FIVE[3]
    values = asked(capsys, pack, "--lengths")
    (rope,) = values["turned"]
    assert rope["name"] == "rope instead of sinusoidal"
    assert np.sign(rope["differences"]).tolist() == [-1, -1, -1, 1]
    assert rope["settings"] == ["10%", "25%", "50%", "100%"]
    (best,) = values["cheapest"]
    assert (best["share"], best["seeds"], best["enough"]) == (1.0, 2, True)
    assert main(["compare", str(pack), "--lengths"]) == 0
    shown = capsys.readouterr().out
    assert "Turned: rope instead of sinusoidal in e16-leave-one-out-stack: -0.3" in shown
    assert "100% of the length" in shown
    assert "results" not in shown.split("\n")[0]  # of one folder they need no name


def ladder(**more):
    """Six arms at three sizes, of which the smallest ranks them the other way round."""
    generator = np.random.default_rng(4)
    sizes = {"dim 8": -1.0, "dim 16": 1.0, "dim 32": 1.0}

    def losses(sign):
        return {
            f"arm {n}": list(2 + 0.1 * sign * n + generator.normal(0, 0.001, 6)) for n in range(6)
        }

    made = {name: losses(sign) for name, sign in sizes.items()}
    made["dim 32"] |= more
    models = [{"dim": int(name.split()[1]), "heads": 1} for name in sizes]
    return tables.frames(made, roles={"control": "positive"}, sizes={"models": models})


def read(frames):
    return agreement.settings(frames, frames.table, by_length=False, by_size=True)


def test_sizes_are_held_against_the_largest_and_controls_left_out():
    found = read(ladder(control=[5.0] * 6))
    pairs = agreement.joined([agreement.pairs("x", found)])
    ranked = pd.DataFrame(agreement.ranked(pairs))
    assert ranked["size"].tolist() == ["dim 8", "dim 16"]
    assert ranked["alike"].tolist() == [0.0, 1.0]
    assert ranked["alike"].tolist() == [alike / of for alike, of in counted(found)]
    assert (ranked["pairs"] == 15).all()
    assert (ranked["decided_pairs"] == 15).all()
    seeds = agreement.by_seeds(pairs)
    assert {row.seeds for row in seeds} == {2, 3}  # of six
    (best,) = agreement.cheapest(seeds)
    assert (best.size, best.seeds, best.repeated) == ("dim 16", 2, 1.0)
    assert best.flops == 3 * 2000 * 64 * 2  # forward and backward, a token; tokens; seeds
    assert [row.name for row in agreement.turned("x", found)] == [f"arm {n}" for n in range(1, 6)]


def test_where_no_setting_ranks_alike_in_80_percent_the_best_is_named_so():
    common = {"results": "x", "size": "", "arms": 6, "pairs": 15, "low": 0.2, "high": 0.9}
    seeds = [
        Repeated(share=share, largest=share == 1, seeds=n, alike=alike, flops=n * share, **common)
        for share, n, alike in [(0.5, 2, 0.4), (0.5, 3, 0.6), (1.0, 2, 0.7), (1.0, 3, 0.75)]
    ]
    (best,) = agreement.cheapest(seeds)
    assert not best.enough
    assert agreement.cheapest_cells([best]).iloc[0, 0] == "none; best: 100% of the length"
    (enough,) = agreement.cheapest([replace(row, alike=row.alike + 0.2) for row in seeds])
    assert agreement.cheapest_cells([enough]).iloc[0, 0] == "50% of the length"
    assert (enough.seeds, enough.repeated) == (3, 0.95)
    lacking = [  # as where an arm failed there
        replace(row, alike=0.9, pairs=pairs)
        for row, pairs in zip(seeds, [14, 15, 15, 15], strict=True)
    ]
    assert [row.seeds for row in agreement.cheapest(lacking)] == [3]


def test_of_two_seeds_shares_are_told_and_no_cheapest_setting(capsys):
    values = asked(capsys, REFERENCE / "width-transfer", "--sizes")
    assert [row["size"] for row in values["ranked"]] == [
        f"dim {32 * n} heads {2 * n}" for n in (1, 2, 4)
    ]
    assert values["seeds"] == values["cheapest"] == []
    assert "named from three seeds on" in " ".join(values["remarks"])


def test_lengths_of_nearly_one_share_are_one_and_others_are_not():
    nothing = np.zeros(1)
    parts = [
        [ArmPair("x", "", share, 1, False, "a", "b", nothing, nothing, False, 1.0) for share in own]
        for own in ([0.0997, 0.5, 1.0], [0.1015, 0.53])
    ]
    assert [pair.share for pair in agreement.joined(parts)] == [0.1, 0.5, 1.0, 0.1, 0.53]


def test_sizes_and_lengths_together_are_held_against_the_largest_size_at_its_end(
    experiment_file, tmp_path, capsys
):
    file = experiment_file(
        "{axes: {feedforward: [relu]}}",
        sizes="{models: [{dim: 8}, {dim: 16}]}",
        train="{steps: 8, batch: 4, lr: 3e-2, precision: float32, kernel: math, evals: 2, "
        "schedule: wsd, warmup: 0, branches: [0.5]}",
        seeds="3",
        measure="[perplexity]",
    )
    assert run_in_process(file, tmp_path / "out", figures=True) == 0
    capsys.readouterr()
    values = asked(capsys, tmp_path / "out" / "tiny", "--lengths", "--sizes")
    where = [(row["size"], row["share"]) for row in values["ranked"]]
    assert where == [("dim 8", 0.5), ("dim 8", 1.0), ("dim 16", 0.5)]
    assert [(row["size"], row["share"]) for row in values["seeds"]] == [*where, ("dim 16", 1.0)]
    frames = Frames.of(Results.open(tmp_path / "out" / "tiny"))
    found = agreement.settings(frames, frames.table, by_length=True, by_size=True)
    assert [row["alike"] for row in values["ranked"]] == [
        alike / of for alike, of in counted(found)
    ]
    lengths = asked(capsys, tmp_path / "out" / "tiny", "--lengths", "--table", "dim 16")
    assert [row["results"] for row in lengths["ranked"]] == ["tiny (dim 16)"]


E07, E18, FIRST = FIVE[0], FIVE[4], REFERENCE / "first"
WRONG = {
    "no branches": ([FIRST, "--lengths"], "'{0}' has no branches; allowed for --lengths: "),
    "no branches in the second": ([E07, FIRST, "--lengths"], "'{1}' has no branches"),
    "one size": ([FIRST, "--sizes"], "'{0}' has one size; allowed for --sizes: results of two"),
    "variants": ([E07, "baseline", "gelu", "--lengths"], "'baseline' is no folder: --lengths and"),
    "twice": ([E07, E07, "--lengths"], "'{0}' is given twice"),
    "no results": ([REFERENCE / "claims", "--lengths"], "'{0}' holds no results"),
    "a table of sizes": (
        [REFERENCE / "width-transfer", "--sizes", "--table", "x"],
        "--table x: --sizes compares the tables of a ladder; allowed with --lengths alone",
    ),
    "no such table": (
        [E18, "--lengths", "--table", "x"],
        "'{0}': --table x: there is none of that name; allowed: equal flops, equal tokens",
    ),
    "tokens of their own": (
        [REFERENCE / "tokenizer-and-context-small", "--lengths"],
        "'{0}': variants with tokens of their own have no branches",
    ),
    "nothing to compare": ([E07], "after '{0}' come two of its variants"),
    "split by an option": ([E07, "--lengths", E18, "--wide", FIRST], "one argument too many"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_compared_is_said_in_one_line(what, capsys):
    words, message = WRONG[what]
    try:
        code = main(["compare", *map(str, words)])
    except SystemExit as stopped:
        code = stopped.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message.format(*words) in err


def test_runs_that_have_not_finished_at_two_settings_are_said_to_be_none():
    pending = {f"arm {n}": ["pending"] * 6 for n in range(6)}
    with pytest.raises(agreement.ConfigError, match="'x': no two arms have runs of one seed"):
        agreement.pairs("x", read(ladder(**pending)))
