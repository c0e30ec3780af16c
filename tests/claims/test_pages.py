"""The page of claims: what stands under a claim, and the same comparison at shorter lengths."""

import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest

from analysis.claims.experiments import _lengths, by_length, evidence, scale_of
from analysis.claims.ledger import Claim, Evidence, ledger
from analysis.claims.pages import _claim
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.rows import frame as framed
from llama_ablate.results import Results
from tests.in_process import run_in_process

ROOT = Path(__file__).parents[2]
SCALES = {"e15-kv-heads": "0.6M parameters", "e02-algebra": "exact"}


def shown(values, *found):
    claim = Claim.check({"kind": "E", "line": "L249", "says": "it keeps most", **values})
    (row,) = ledger({"000-15": claim}, found)
    return list(_claim(row, SCALES))


def finding(word="supported", experiment="e15-kv-heads", **more):
    names = more.pop("claims", ("000-15",))
    return Evidence(experiment, "gqa is not higher", "+0.4% [-0.2, +1.0]", word, names, **more)


def test_a_claim_shows_its_verdict_first_and_what_made_it():
    lines = shown({}, finding(ours=True, by_length="1.2M tokens +3% (refuted)"))
    assert lines == [
        "- **supported** · 000-15 (000 L249, E): it keeps most",
        "  - [e15](claims/e15-kv-heads/report.md), supported: "
        "gqa is not higher: +0.4% [-0.2, +1.0] (the bound is ours)",
        "    - by length of training: 1.2M tokens +3% (refuted)",
        "  - scale of e15: 0.6M parameters",
    ]


def test_a_claim_at_another_scale_shows_the_small_finding_beside_it():
    lines = shown({"scale": "large models"}, finding())
    assert lines[0].startswith("- **not tested at this scale**")
    assert lines[1] == "  - not tested: large models; at the small scale:"
    assert "supported" in lines[2]


def test_every_part_has_its_verdict_and_what_was_not_tested_says_so():
    parts = {"bytes": "fewer bytes", "served": "more texts", "read": {"says": "x", "settled": "no"}}
    found = finding("refuted", "e02-algebra", claims=("000-15/bytes",))
    lines = shown({"parts": parts}, found)
    assert lines[0].startswith("- **refuted in part**")
    assert "  - refuted: fewer bytes" in lines
    assert "    - not tested: no hypothesis or check here is about it" in lines
    assert "  - settled by reading: x" in lines
    assert "    - no" in lines


@pytest.mark.parametrize(
    ("word", "why", "shown_as"),
    [
        ("no verdict", "A/A is worse", "no verdict (a control fails): gqa"),
        ("undecidable", "no arm learned", "undecidable (no arm learned): gqa"),
    ],
)
def test_a_finding_that_cannot_be_had_says_why(word, why, shown_as):
    (line,) = [line for line in shown({}, finding(word, why=why)) if "report.md" in line]
    assert shown_as in line


@pytest.fixture
def frames(experiment_file, tmp_path):
    file = experiment_file(
        train="{steps: 20, batch: 4, lr: 1e-3, precision: float32, kernel: math, evals: 2, "
        "schedule: wsd, branches: [0.5]}",
        seeds="3",
        margin="1.0 nats",
        measure="[perplexity]",
        hypotheses="[{variant: layernorm, direction: better}, "
        "{variant: layernorm, measure: test_perplexity, direction: lower}]",
    )
    assert run_in_process(file, tmp_path / "out") == 0
    return Frames.of(Results.open(tmp_path / "out" / "tiny"))


def test_a_hypothesis_on_the_loss_is_told_at_every_branch_of_the_runs(frames):
    lengths, other = by_length(frames)
    assert list(lengths) == [10 * 4 * 16]
    assert other == {}  # the perplexity is measured at the end alone
    runs = framed(frames.table.runs).pivot_table(
        index="seed", columns="label", values="heldout_loss_at_640_tokens_nats"
    )
    by_hand = statistics.mean(runs["layernorm"] - runs["rmsnorm (baseline)"])
    assert lengths[640].difference == pytest.approx(by_hand)
    assert lengths[640].low < by_hand < lengths[640].high


def test_the_length_at_which_a_verdict_turned_is_told():
    row = SimpleNamespace(of_difference=lambda: "+0.1 [+0.0, +0.2] nats")
    lengths = dict.fromkeys((1_200_000, 3_000_000, 6_000_000), row)
    words = dict(zip(lengths, ("refuted", "refuted", "undecided"), strict=True))
    assert _lengths(lengths, words, "supported").endswith("It turned after 3.0M tokens")
    assert "turned" not in _lengths(lengths, words, "refuted")
    assert "turned" not in _lengths(lengths, words, "undecided")
    assert _lengths({}, {}, "supported") == ""


def test_a_claim_may_be_the_contrary_of_a_hypothesis(frames):
    said = [{"variant": "layernorm", "claims": ["000-15", "not 000-20"]}, {"variant": "layernorm"}]
    plain, denied = evidence({"tiny": frames}, {}, {"tiny": said})
    assert (plain.claims, denied.claims) == (("000-15",), ("000-20",))
    assert denied.statement == f"it is not so that {plain.statement}"
    assert plain.finding == denied.finding == "undecidable"
    assert plain.why.startswith("too short: rmsnorm (baseline), seed 0")
    flipped = {"supported": "refuted", "refuted": "supported"}
    words = [one.by_length.rpartition("(")[2].strip(")") for one in (plain, denied)]
    assert words[1] == flipped.get(words[0], words[0])


def test_the_scale_names_parameters_tokens_text_seeds_and_machine(frames):
    assert scale_of(frames).startswith("0.00")
    assert "tokens of files, 3 seeds" in scale_of(frames)


@pytest.mark.parametrize(("within", "result"), [(0.02, "supported"), (0.002, "undecided")])
def test_a_factors_mean_effect_is_evidence_and_says_that_it_was_read_off_after_the_runs(
    within, result
):
    name = "e16-leave-one-out-stack"
    frames = Frames.of(Results.open(ROOT / "results" / "reference" / "claims" / name))
    source = {"factor": "norm", "within": within, "claims": ["001-19"], "source": "x", "said": "y"}
    (found,) = evidence({name: frames}, {}, {name: [source]})
    cells = {v.id: v.model["norm"]["name"] for v in frames.table.plan.variants if not v.role}
    means = {norm: [] for norm in ("layernorm", "rmsnorm")}
    for id_, norm in cells.items():
        means[norm] += frames.table.losses[id_].values()
    expected = statistics.fmean(means["rmsnorm"]) - statistics.fmean(means["layernorm"])
    assert found.measured.startswith(f"{expected:+.4f} [")
    assert (found.finding, found.claims) == (result, ("001-19",))
    assert "read off after the runs" in found.statement
