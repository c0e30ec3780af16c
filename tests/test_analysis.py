"""The scripts of `analysis/` as commands: what they cannot draw is one line, and exit code 2."""

import importlib
import math
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from llama_ablate.results import Store
from tests import plans
from tests.metrics import measured

SCRIPTS = Path(__file__).parents[1] / "analysis"
REFERENCE = SCRIPTS.parent / "results" / "reference"


@pytest.fixture
def results(tmp_path):
    """Results of two variants and a seed, in which only losses were measured."""
    store = Store(tmp_path / "x")
    runs = [plans.run(f"{label}0", label) for label in ("base", "other")]
    table = plans.table([plans.variant("base"), plans.variant("other")], runs)
    store.create(plans.document(table, seeds=1), "name: x\n")
    for run in runs:
        metrics = {"perplexity": measured(test_loss_nats=1.0, test_perplexity=2.7)}
        store.commit(plans.record_of(run, metrics=metrics), [], None)
    return store.root


@pytest.fixture
def script(monkeypatch, capsys):
    """Run a script as a command: a function from its words to exit code, output and errors."""

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        monkeypatch.syspath_prepend(SCRIPTS)  # as `python analysis/NAME.py` does
        try:
            runpy.run_path(str(SCRIPTS / name), run_name="__main__")
            code = 0
        except SystemExit as stopped:
            code = stopped.code
        return code, *capsys.readouterr()

    return run


WRONG = {
    "no results to draw": ("draw.py", "effects", "{here}", "holds no results"),
    "a figure of what was not tuned": ("draw.py", "tuning", "{x}", "that tuning shows"),
    "no lengths": ("length_extrapolation.py", "{x}", "'length' of these variants was not measured"),
    "one size": ("scaling_laws.py", "{x}", "has models of one size alone"),
    "no results to join": ("across_experiments.py", "{x}", "{here}", "holds no results"),
    "runs of other sizes": (
        *("records.py", "{here}", "{here}", "--sizes", "big", "b", "c", "d"),
        "no runs of size 'b'; there are: 'big'",
    ),
    "points without a loss": ("surface.py", "{here}/rates.csv", "has no column 'Model Size'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_drawn_is_one_line_and_exit_code_2(case, script, results, tmp_path):
    (tmp_path / "rates.csv").write_text("radians,context\n3,1\n")
    (tmp_path / "runs.csv").write_text(
        "table,variant,baseline,seed,use,role,validation_loss_nats,test_loss_nats\n"
        "big,base,True,0,reported,,1,1\n"
    )
    before = sorted(tmp_path.rglob("*"))
    name, *words, message = WRONG[case]
    code, out, err = script(name, *(word.format(here=tmp_path, x=results) for word in words))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def module(monkeypatch):
    """Import a script by its name."""
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module


@pytest.mark.parametrize("floor", [None, 1.2])
def test_a_scaling_law_is_recovered_from_points_on_it(module, floor):
    scaling = module("scaling_laws")
    law, sizes = scaling.Law(1.2, 15.0, 0.25), [1e4, 3e4, 1e5, 3e5, 1e6]
    found = scaling.fit_law(sizes, [law(x) for x in sizes], floor)
    assert found == pytest.approx(law, rel=1e-4)


def test_a_law_is_projected_only_where_it_predicts_the_largest_size(module):
    scaling = module("scaling_laws")
    law, sizes = scaling.Law(1.2, 15.0, 0.25), [1e4, 3e4, 1e5, 3e5, 1e6]
    losses = np.array([[law(x)] * 3 for x in sizes])
    losses += np.random.default_rng(0).normal(0, 0.002, losses.shape)
    assert "projected to 1e+07" in scaling.analyse(sizes, losses, None)
    assert scaling.analyse(sizes[:4], losses[:4], None)["law"] == "unchecked"
    assert "needs 4 sizes" in scaling.analyse(sizes[:3], losses[:3], None)["law"]
    losses[-1] += 0.3
    failed = scaling.analyse(sizes, losses, None)
    assert failed["law"] == "fails at the largest size"
    assert "projected to 1e+07" not in failed


def test_the_public_points_refit_gives_the_surface_that_points_lie_on(module, script, tmp_path):
    """Points made from the constants that are to come out, and five outliers above all of them."""
    surface = module("surface").Surface(1.8172, 477.8, 0.3473, 2143.4, 0.3672)
    draws = np.random.default_rng(0)
    parameters = np.exp(draws.uniform(np.log(6e7), np.log(1.6e10), 65))
    flops = np.exp(draws.uniform(np.log(6e18), np.log(3e21), 65))
    losses = surface(parameters, flops / 6 / parameters)
    losses[:5] = 20.0
    file = tmp_path / "points.csv"
    points = {"Model Size": parameters, "Training FLOP": flops, "loss": losses}
    pd.DataFrame(points).to_csv(file, index=False)
    code, out, err = script("surface.py", file, "--draws", "2", "--outliers", "5")
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line.split() for line in out.splitlines()}
    for name in surface._fields:
        assert float(lines[name][1]) == pytest.approx(getattr(surface, name), rel=1e-3)
    assert float(lines["compute_exponent"][1]) == pytest.approx(0.3672 / 0.7145, rel=1e-3)


def test_a_variant_that_learns_twice_as_fast_needs_half_the_tokens(module):
    """Losses on one law: the variant's are the baseline's of twice the tokens."""
    law, lengths = module("scaling_laws").Law(1.5, 20.0, 0.4), [1e5, 2e5, 4e5, 8e5]
    saved = module("speed_up").saved
    faster = [law(2 * x) for x in lengths]
    gap = law(lengths[-1]) - faster[-1]
    assert saved(lengths, faster, gap) == pytest.approx(2, rel=1e-3)
    assert saved(lengths, faster, 9.0) == math.inf


def test_the_best_rate_is_the_minimum_of_a_parabola_in_the_logarithm_or_an_end(module):
    best, rates = module("best_rate"), np.array([1e-3, 2.5e-3, 6.3e-3, 1.6e-2])
    valleys = {f"seed {at}": 2 + 0.3 * np.log(rates / at) ** 2 for at in (3.5e-3, 4.5e-3)}
    seeds = pd.DataFrame(valleys, index=rates)
    found = [best.find_minimum(rates, seeds[seed].to_numpy()) for seed in seeds]
    assert found == pytest.approx([3.5e-3, 4.5e-3])
    assert best.estimate(seeds) == "0.004 [0.0035, 0.0045]"
    assert best.find_minimum(rates, rates) == rates[0]
    assert best.estimate(pd.DataFrame({0: -rates, 1: -rates}, index=rates)).startswith(">0.016")


#: What a script prints of a committed pack.
PRINTED = {
    "best_rate.py": ("rate-transfer", r"(?m)^standard +0.0091 .* 0.0021 \[0.0019, 0.0022\]$"),
    "scaling_laws.py": ("atlas/records-nulls", r"baseline +unchecked"),
    "rank_agreement.py": (
        "claims/e07-ffn-activation",
        r"6M tokens +28 +79% \[\d+%, 100%\] +11 +100%",
    ),
    "speed_up.py": ("claims/e07-ffn-activation", r"(?m)^ *swiglu +[\d.]+ \[[\d.]+, [\d.]+\]"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_a_script_reads_a_committed_pack(name, script):
    pack, expected = PRINTED[name]
    code, out, err = script(name, REFERENCE / pack)
    assert (code, err) == (0, "")
    assert re.search(expected, out), out


def test_a_loop_that_keeps_what_is_lower_once_keeps_as_many_nulls_as_a_sequence_has_records(
    module, monkeypatch
):
    """The last of n + 1 equal draws is the lowest with chance 1 / (n + 1)."""
    records = module("records")
    monkeypatch.setattr(records, "REPLAYS", 10)
    draws = np.random.default_rng(0)
    nulls = draws.normal(size=(20_000, 1, 2))
    changes = np.zeros((30, 5, 1, 2))
    runs = records.Runs(nulls, changes, np.full(30, -1))
    counts = records.replay(records.RULES[0], runs, draws).mean()
    harmonic = sum(1 / (n + 1) for n in range(1, records.RUNS + 1))
    assert counts["false"] == counts["records"] == pytest.approx(harmonic, abs=0.2)  # 4 deviations
    assert counts["gained"] == counts["false: other seeds"] == 0
    assert counts["false: same run, other text"] == pytest.approx(0, abs=0.1)
    lowest = draws.normal(size=(10_000, records.RUNS + 1)).min(1).mean()
    assert counts["claimed"] == pytest.approx(
        -lowest, abs=0.1
    )  # from a first record of 0 on average


def test_every_rule_keeps_a_change_that_helps_far_beyond_the_noise(module, monkeypatch):
    records = module("records")
    monkeypatch.setattr(records, "REPLAYS", 1)
    draws = np.random.default_rng(0)
    nulls, changes = draws.normal(0, 0.01, (160, 4, 2)), np.full((1, 5, 4, 2), -1.0)
    runs = records.Runs(nulls, changes, np.ones(1))
    for rule in [*records.RULES, None]:
        counts = records.replay(rule, runs, draws).sum()
        assert counts["helpful"] == pytest.approx(counts["offered"])
        assert counts["gained"] == counts["gained on the other text"] == counts["helpful"]
