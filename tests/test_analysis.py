"""The scripts of `analysis/`: what they compute, and what they print of committed packs."""

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import claims
from tests.in_process import run_script

SCRIPTS = Path(__file__).parents[1] / "analysis"
REFERENCE = SCRIPTS.parent / "results" / "reference"


@pytest.fixture(autouse=True)
def _beside_the_scripts(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)  # as `python analysis/NAME.py` does


def printed(name, *words):
    """Return what a script prints that ends well."""
    done = run_script(SCRIPTS / name, *words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("floor", [None, 1.2])
def test_a_scaling_law_is_recovered_from_points_on_it(floor):
    scaling = import_module("scaling_laws")
    law, sizes = scaling.Law(1.2, 15.0, 0.25), [1e4, 3e4, 1e5, 3e5, 1e6]
    found = scaling.fit_law(sizes, [law(x) for x in sizes], floor)
    assert found == pytest.approx(law, rel=1e-4)


def test_the_public_points_refit_gives_the_surface_that_points_lie_on(tmp_path):
    """Points made from the constants that are to come out, and five outliers above all of them."""
    surface = import_module("surface").Surface(1.8172, 477.8, 0.3473, 2143.4, 0.3672)
    draws = np.random.default_rng(0)
    parameters = np.exp(draws.uniform(np.log(6e7), np.log(1.6e10), 65))
    flops = np.exp(draws.uniform(np.log(6e18), np.log(3e21), 65))
    losses = surface(parameters, flops / 6 / parameters)
    losses[:5] = 20.0
    file = tmp_path / "points.csv"
    points = {"Model Size": parameters, "Training FLOP": flops, "loss": losses}
    pd.DataFrame(points).to_csv(file, index=False)
    out = printed("surface.py", file, "--draws", "2", "--outliers", "5")
    lines = {line.split()[0]: line.split() for line in out.splitlines()}
    for name in surface._fields:
        assert float(lines[name][1]) == pytest.approx(getattr(surface, name), rel=1e-3)
    assert float(lines["compute_exponent"][1]) == pytest.approx(0.3672 / 0.7145, rel=1e-3)


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
def test_a_script_reads_a_committed_pack(name):
    pack, expected = PRINTED[name]
    assert re.search(expected, printed(name, REFERENCE / pack))


def test_a_loop_that_keeps_what_is_lower_once_keeps_as_many_nulls_as_a_sequence_has_records(
    monkeypatch,
):
    """The last of n + 1 equal draws is the lowest with chance 1 / (n + 1)."""
    records = import_module("records")
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
    # From a first record of 0 on average.
    assert counts["claimed"] == pytest.approx(-lowest, abs=0.1)


LEDGER = claims.read_ledger()
#: Parts that nothing tests, so that their claims are never supported as a whole.
NEVER_RUN = {"002-18/served", "003-21", "003-25", "004-10/gradients"}


@pytest.fixture(scope="module")
def judged():
    return claims.judge_claims()[0]


def test_the_ledger_has_every_claim_of_the_five_documents_with_its_line():
    counts = dict.fromkeys(claims.DOCUMENTS, 0)
    for id_, claim in LEDGER["claims"].items():
        counts[id_[:3]] += 1
        assert re.match(r"L\d+", claim["line"]), id_
        assert set(claim["kind"].split()) <= set("AED-"), id_
    assert counts == {"000": 25, "001": 26, "002": 19, "003": 25, "004": 14}


def test_every_part_of_a_claim_is_tested_or_says_why_not(judged):
    untested = {
        f"{claim.id}/{name}" if name else claim.id
        for claim in judged
        for name, (part, found, _) in claim.parts.items()
        if not found and not {"scale", "no_evidence", "settled"} & {*part}
    }
    assert untested == NEVER_RUN
