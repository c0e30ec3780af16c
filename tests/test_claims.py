"""The ledger of claims: every claim is covered, and its evidence adds up to its verdict."""

import re
from pathlib import Path

import pytest

from analysis import claims
from analysis.claims import Evidence, JudgedClaim, add_up, judge, judge_part

ROOT = Path(__file__).parents[1]
LEDGER = claims.read_ledger()
#: Parts that nothing tests, so that their claims are never supported as a whole.
NEVER_RUN = {"002-18/served", "003-21", "003-25", "004-10/gradients"}


def evidence(finding, **more):
    return Evidence("x", "it holds", "1", finding, ["000-01"], **more)


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


def test_a_claim_at_a_scale_has_no_verdict_but_from_findings_at_that_scale():
    part = {"says": "", "scale": "large models"}
    assert judge_part(part, [evidence("supported")]) == "not tested at this scale"
    assert judge_part(part, []) == "not tested at this scale"
    at_scale = evidence("refuted", at_scale=True)
    assert judge_part(part, [evidence("supported"), at_scale]) == "refuted"


def test_what_reading_settles_has_no_say_beside_what_is_measured():
    parts = {"a": ({}, [], "settled by reading"), "b": ({}, [], "refuted")}
    assert JudgedClaim("000-01", {}, parts).verdict == "refuted"
    alone = {"": ({}, [], "settled by reading")}
    assert JudgedClaim("000-01", {}, alone).verdict == "settled by reading"
    assert judge_part({"no_evidence": "asks our preset"}, [evidence("refuted")]) == "no evidence"


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


def test_the_interval_of_a_number_over_seeds_is_students():
    mean, low, high = claims.interval_of([1.0, 2.0, 3.0])
    assert (mean, high - mean) == pytest.approx((2.0, 4.302653 / 3**0.5), rel=1e-6)
    assert mean - low == pytest.approx(high - mean)
    assert claims.interval_of([2.0, 2.0]) == (2.0, 2.0, 2.0)


def test_neither_the_package_nor_the_experiments_know_the_ids_and_lines_of_sources():
    of_sources = re.compile(r"\b00[0-4](-\d\d\b| L\d)|\bprimer\b")
    assert of_sources.search("1.13x (001 L837)")
    files = [f for e in ("*.py", "*.yaml", "*.html") for f in (ROOT / "llama_ablate").rglob(e)]
    files += (ROOT / "experiments").rglob("*.yaml")
    assert not [str(file) for file in files if of_sources.search(file.read_text("utf-8"))]
