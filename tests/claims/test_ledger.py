"""The ledger of claims: its files are sound, every claim is covered, and findings add up."""

import re
from pathlib import Path

import pandas as pd
import pytest

from analysis.claims import findings
from analysis.claims.ledger import check_variants, ledger, read, verdict
from llama_ablate.config import experiment
from llama_ablate.errors import ConfigError
from llama_ablate.files.slugs import slug

ROOT = Path(__file__).parents[2]
EXPERIMENTS = {
    slug(loaded.name): loaded
    for file in sorted((ROOT / "experiments" / "claims").glob("e*.yaml"))
    for loaded in [experiment.load(file).experiment]
}
AUDITS = {
    slug(audit.name): audit
    for file in sorted((ROOT / "analysis" / "claims" / "audits").glob("e*.yaml"))
    for audit in [findings.load(file)[0]]
}
LEDGER = read("ledger")
HYPOTHESES = read("hypotheses")
TESTED = {
    name: [id_ for entry in entries for id_ in entry.get("claims", [])]
    for name, entries in HYPOTHESES.items()
} | {name: [id_ for f in audit.findings for id_ in f.claims] for name, audit in AUDITS.items()}


def test_there_are_eighteen_experiments():
    assert {f"e{n:02d}" for n in range(1, 19)} <= {name[:3] for name in EXPERIMENTS | AUDITS}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_sources_are_those_of_the_experiments_hypotheses(name):
    variants = [hypothesis.variant for hypothesis in EXPERIMENTS[name].hypotheses]
    check_variants(name, variants, HYPOTHESES.get(name, []))


def test_hypotheses_that_sources_do_not_know_are_an_error():
    with pytest.raises(ConfigError, match=r"x has hypotheses on a, b; the file names a"):
        check_variants("x", ["a", "b"], [{"variant": "a"}])


@pytest.mark.parametrize("name", TESTED)
def test_every_claim_that_is_tested_is_in_the_ledger(name):
    assert name in EXPERIMENTS | AUDITS
    assert set(TESTED[name]) <= set(LEDGER)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_that_tests_claims_by_training_has_its_controls(name):
    assert EXPERIMENTS[name].controls.aa
    assert EXPERIMENTS[name].controls.positive


def test_every_claim_is_tested_or_says_why_not():
    tested = {id_ for ids in TESTED.values() for id_ in ids}
    untested = [id_ for id_ in LEDGER if id_ not in tested]
    assert [id_ for id_ in untested if "settled" not in LEDGER[id_]] == []
    assert {id_ for id_, claim in LEDGER.items() if "E" in claim["kind"]} <= tested


def test_the_ledger_has_every_claim_of_the_five_documents():
    counts = dict.fromkeys(("000", "001", "002", "003", "004"), 0)
    for id_ in LEDGER:
        counts[id_.split("-")[0]] += 1
    assert counts == {"000": 25, "001": 26, "002": 19, "003": 25, "004": 14}


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (["supported", "supported"], "supported"),
        (["supported", "undecided"], "supported"),
        (["refuted", "no verdict"], "refuted"),
        (["supported", "refuted"], "mixed"),
        (["undecided", "no verdict"], "undecided"),
        (["no verdict"], "no verdict"),
        ([], ""),
    ],
)
def test_findings_add_up_to_a_verdict(found, word):
    assert verdict(found) == word


def test_a_finding_of_an_unknown_claim_is_an_error():
    found = pd.DataFrame(
        [
            {
                "experiment": "x",
                "claims": ["009-01"],
                "claim": "",
                "measured": "",
                "finding": "supported",
            }
        ]
    )
    with pytest.raises(ConfigError, match="x tests '009-01', which the ledger does not have"):
        ledger({"000-01": {"kind": "E", "says": ""}}, found)


def test_neither_the_package_nor_the_experiments_know_the_ids_and_lines_of_sources():
    of_sources = re.compile(r"\b00[0-4](-\d\d\b| L\d)|\bprimer\b")
    assert of_sources.search("1.13x (001 L837)")
    assert of_sources.search("tests 000-04")
    files = [f for e in ("*.py", "*.yaml", "*.html") for f in (ROOT / "llama_ablate").rglob(e)]
    files += (ROOT / "experiments").rglob("*.yaml")
    found = {str(f): of_sources.findall(f.read_text("utf-8")) for f in files}
    assert not {file for file, ids in found.items() if ids}
