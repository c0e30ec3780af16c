"""The claims suite: its files are sound, and its ledger is covered."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from llama_ablate.config import experiment
from llama_ablate.errors import ConfigError
from llama_ablate.inquiry import load
from llama_ablate.report import claimed

FOLDER = Path(__file__).parents[1] / "experiments" / "claims"
FILES = sorted(FOLDER.glob("e*.yaml"))
LEDGER = yaml.safe_load((FOLDER / "ledger.yaml").read_text("utf-8"))


def claims_of(file):
    if experiment.is_inquiry(file):
        return [c for finding in load(file)[0].findings for c in finding.claims]
    loaded = experiment.load(file).experiment
    return [c for hypothesis in loaded.hypotheses for c in hypothesis.claims]


def test_there_are_eighteen_experiments():
    assert {f"e{n:02d}" for n in range(1, 19)} <= {file.stem[:3] for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_every_claim_that_a_file_tests_is_in_the_ledger(file):
    assert set(claims_of(file)) <= set(LEDGER)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_an_experiment_that_tests_claims_by_training_has_its_controls(file):
    if experiment.is_inquiry(file):
        return
    controls = experiment.load(file).experiment.controls
    assert controls.aa
    assert controls.positive


def test_every_claim_is_tested_or_says_why_not():
    tested = {claim for file in FILES for claim in claims_of(file)}
    untested = [id_ for id_, entry in LEDGER.items() if id_ not in tested]
    assert [id_ for id_ in untested if "settled" not in LEDGER[id_]] == []
    empirical = {id_ for id_, entry in LEDGER.items() if "E" in entry["kind"]}
    assert empirical <= tested


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
    assert claimed.verdict(found) == word


def test_a_finding_of_an_unknown_claim_is_an_error():
    found = pd.DataFrame(
        [
            {
                "experiment": "x",
                "claims": "009-01",
                "claim": "",
                "measured": "",
                "finding": "supported",
            }
        ]
    )
    with pytest.raises(ConfigError, match="x tests '009-01', which the ledger does not have"):
        claimed.ledger({"000-01": {"kind": "E", "says": ""}}, found)
