"""The ledger of claims: every claim is covered, and its evidence adds up to its verdict."""

import re
from pathlib import Path

import pytest

from analysis import claims

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
