"""The ledger of claims: its files are sound, every claim is covered, and findings add up."""

import re
from pathlib import Path

import pytest

from analysis.claims.changes import Change, changed
from analysis.claims.experiments import Source, audit_files, check_variants, checked
from analysis.claims.ledger import (
    VERDICTS,
    Claim,
    Evidence,
    Part,
    claims,
    combined,
    counted,
    ledger,
    read,
)
from llama_ablate.config import experiment
from llama_ablate.errors import ConfigError
from llama_ablate.files.slugs import slug

ROOT = Path(__file__).parents[2]
EXPERIMENTS = {
    slug(loaded.name): loaded
    for file in sorted((ROOT / "experiments" / "claims").glob("e*.yaml"))
    for loaded in [experiment.load(file).experiment]
}
AUDITS = audit_files()
CLAIMS = claims()
SOURCES = {name: checked(entries) for name, entries in read("hypotheses").items()}
HYPOTHESES = {name: entries for name, (entries, _) in SOURCES.items()}
TESTED = {
    name: [id_.removeprefix("not ") for entry in [*entries, *factors] for id_ in entry.claims]
    for name, (entries, factors) in SOURCES.items()
} | {name: [id_ for f in audit.findings for id_ in f.claims] for name, audit in AUDITS.items()}
PARTS = {
    f"{id_}/{name}" if name else id_: part
    for id_, claim in CLAIMS.items()
    for name, part in (claim.parts or {"": claim}).items()
}
#: Parts that nothing here tests, so that their claims are never supported as a whole.
NEVER_RUN = {"002-18/served", "003-25", "004-10/gradients"}


def found(finding, *names, **more):
    return Evidence("x", "it holds", "1", finding, names or ("000-01",), **more)


def verdict(claim, *evidence):
    (row,) = ledger({"000-01": Claim.check({"kind": "E", "line": "L1", **claim})}, evidence)
    return row.verdict


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_sources_are_those_of_the_experiments_hypotheses(name):
    variants = [hypothesis.variant for hypothesis in EXPERIMENTS[name].hypotheses]
    check_variants(name, variants, HYPOTHESES.get(name, []))


def test_hypotheses_that_sources_do_not_know_are_an_error():
    with pytest.raises(ConfigError, match=r"x has hypotheses on a, b; the file names a"):
        check_variants("x", ["a", "b"], [Source(variant="a")])


@pytest.mark.parametrize("name", TESTED)
def test_every_claim_that_is_tested_is_in_the_ledger(name):
    assert name in EXPERIMENTS | AUDITS
    assert set(TESTED[name]) <= set(PARTS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_has_both_controls_and_a_margin_for_them(name):
    assert EXPERIMENTS[name].controls.aa
    assert EXPERIMENTS[name].controls.positive
    assert EXPERIMENTS[name].margin


def test_every_part_of_a_claim_is_tested_or_says_why_not():
    tested = {id_ for ids in TESTED.values() for id_ in ids}
    untested = {
        id_
        for id_, part in PARTS.items()
        if id_ not in tested and not (part.scale or part.no_evidence or part.settled)
    }
    assert untested == NEVER_RUN


def test_what_a_check_could_only_repeat_is_tested_by_none():
    circular = {id_ for id_, part in PARTS.items() if part.no_evidence or part.settled}
    assert not circular & {id_ for ids in TESTED.values() for id_ in ids}
    named = ("000-02", "000-12", "001-26", "002-01", "002-15", "003-18", "003-24", "004-01")
    assert circular >= set(named)


def test_a_claim_about_models_or_machines_that_are_not_here_says_so():
    named = ("000-01", "001-16", "001-18", "001-21", "001-24/large", "001-25", "004-02")
    assert all(PARTS[id_].scale for id_ in named)


def test_the_ledger_has_every_claim_of_the_five_documents_with_its_line():
    counts = dict.fromkeys(("000", "001", "002", "003", "004"), 0)
    for id_, claim in CLAIMS.items():
        counts[id_.split("-")[0]] += 1
        assert re.match(r"L\d+", claim.line), id_
    assert counts == {"000": 25, "001": 26, "002": 19, "003": 25, "004": 14}


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["supported", "supported"], "supported"),
        (["refuted", "refuted"], "refuted"),
        (["supported", "undecided"], "supported in part"),
        (["supported", "never run"], "supported in part"),
        (["supported", "no verdict"], "supported in part"),
        (["supported", "not tested at this scale"], "supported in part"),
        (["supported in part"], "supported in part"),
        (["refuted", "no verdict"], "refuted in part"),
        (["refuted in part", "refuted"], "refuted in part"),
        (["supported", "refuted"], "mixed"),
        (["supported in part", "refuted"], "mixed"),
        (["mixed", "undecided"], "mixed"),
        (["undecided", "no verdict"], "undecided"),
        (["undecided", "never run"], "undecided"),
        (["undecidable"], "undecidable"),
        (["no verdict"], "no verdict"),
        (["not tested at this scale", "never run"], "not tested at this scale"),
        ([], "never run"),
    ],
)
def test_findings_add_up_to_a_verdict(words, word):
    assert combined(words) == word
    assert combined(words[::-1]) == word
    assert word in VERDICTS


def test_a_claim_is_supported_where_all_of_its_parts_are():
    claim = {"says": "", "parts": {"a": "one", "b": "another"}}
    a, b = found("supported", "000-01/a"), found("supported", "000-01/b")
    assert verdict(claim, a, b) == "supported"
    assert verdict(claim, a) == "supported in part"
    assert verdict(claim, a, found("undecided", "000-01/b")) == "supported in part"
    assert verdict(claim, a, found("refuted", "000-01/b")) == "mixed"


@pytest.mark.parametrize("finding", ["supported", "refuted", "undecided"])
def test_a_claim_at_a_scale_has_no_verdict_but_from_findings_at_that_scale(finding):
    claim = {"says": "", "scale": "large models"}
    assert verdict(claim, found(finding)) == "not tested at this scale"
    assert verdict(claim) == "not tested at this scale"
    assert verdict(claim, found(finding), found("refuted", at_scale=True)) == "refuted"


@pytest.mark.parametrize("finding", ["supported", "refuted"])
def test_a_check_that_could_only_repeat_what_it_was_built_with_never_counts(finding):
    claim = {"says": "", "no_evidence": "it asks our own preset"}
    assert verdict(claim, found(finding, at_scale=True)) == "no evidence"


def test_what_reading_settles_has_no_say_beside_what_is_measured():
    read_off = {"says": "smoother", "settled": "right"}
    claim = {"says": "", "parts": {"a": read_off, "b": "better"}}
    assert verdict(claim, found("refuted", "000-01/b")) == "refuted"
    assert verdict({"says": "", "settled": "right"}) == "settled by reading"


@pytest.mark.parametrize("name", ["009-01", "000-01/c"])
def test_a_finding_of_an_unknown_claim_is_an_error(name):
    with pytest.raises(ConfigError, match=f"x tests '{name}', which the ledger has not"):
        verdict({"says": "", "parts": {"a": "one"}}, found("supported", name))


def test_a_claim_without_a_line_or_with_an_unknown_key_is_an_error():
    with pytest.raises(ConfigError, match="line"):
        Claim.check({"kind": "E", "says": ""})
    with pytest.raises(ConfigError, match="did you mean 'scale'"):
        Part.check({"says": "", "scael": "large models"})


def test_verdicts_are_counted_by_kind():
    of = {"000-01": {"kind": "E", "line": "L1", "says": ""}}
    of |= {"000-02": {"kind": "A E", "line": "L1", "says": ""}}
    of |= {"000-03": {"kind": "D", "line": "L1", "says": ""}}
    rows = ledger({k: Claim.check(v) for k, v in of.items()}, [found("supported")])
    assert counted(rows, "E") == {"supported": 1, "never run": 1}
    assert counted(rows) == {"supported": 1, "never run": 2}


def test_a_verdict_that_is_another_stands_with_what_it_was():
    of = {f"000-0{i}": Claim(kind="E", line="L1", says="") for i in (1, 2)}
    rows = ledger(of, [found("supported")])
    before = {
        "000-01": Change(before="refuted", why="because"),
        "000-02": Change(before="never run"),
    }
    ((row, change),) = changed(rows, before)
    assert (row.id, change.before, row.verdict, change.why) == (
        "000-01",
        "refuted",
        "supported",
        "because",
    )


def test_the_first_audits_verdicts_are_known_of_every_claim_and_of_no_other():
    changes = {id_: Change.check(values) for id_, values in read("changes").items()}
    assert set(changes) == set(CLAIMS)
    empirical = {id_ for id_, claim in CLAIMS.items() if "E" in claim.kind}
    assert {id_ for id_ in empirical if not changes[id_].why} == set()


def test_neither_the_package_nor_the_experiments_know_the_ids_and_lines_of_sources():
    of_sources = re.compile(r"\b00[0-4](-\d\d\b| L\d)|\bprimer\b")
    assert of_sources.search("1.13x (001 L837)")
    assert of_sources.search("tests 000-04")
    files = [f for e in ("*.py", "*.yaml", "*.html") for f in (ROOT / "llama_ablate").rglob(e)]
    files += (ROOT / "experiments").rglob("*.yaml")
    named = {str(f): of_sources.findall(f.read_text("utf-8")) for f in files}
    assert not {file for file, ids in named.items() if ids}
