"""The ledger of claims: every claim is covered, and its evidence adds up to its verdict."""

import re
from pathlib import Path

import pytest

from analysis import claims
from analysis.claims import add_up, judge

ROOT = Path(__file__).parents[1]
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


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["supported", "supported"], "supported"),
        (["supported", "undecided"], "supported in part"),
        (["refuted", "no verdict"], "refuted in part"),
        (["supported", "refuted"], "mixed"),
        (["not tested at this scale", "never run"], "not tested at this scale"),
        ([], "never run"),
    ],
)
def test_findings_add_up_to_a_verdict(words, word):
    assert add_up(words) == word
    assert add_up(words[::-1]) == word


@pytest.mark.parametrize(
    ("key", "low", "high", "word"),
    [
        ("below", -0.5, -0.3, "supported"),
        ("below", -0.5, -0.1, "undecided"),
        ("at_most", -0.1, 0.2, "supported"),
        ("above", 0.0, 0.1, "refuted"),
        ("within", -0.2, 0.2, "supported"),
        ("within", -0.4, -0.3, "refuted"),
    ],
)
def test_an_interval_within_a_bound_supports_and_one_outside_refutes(key, low, high, word):
    assert judge(key, 0.2, low, high) == word
