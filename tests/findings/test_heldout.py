"""The held-out text's part of every difference, from records with losses by document."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llama_ablate.evidence import Interval
from llama_ablate.evidence.text_error import text_error
from llama_ablate.findings import heldout, warnings
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.paired_table import text_error_of
from llama_ablate.findings.rows import frame as framed
from llama_ablate.findings.values import MeasuredValues, has_number
from llama_ablate.report.sections import sections
from llama_ablate.results.snapshot import Results
from tests import plans
from tests.metric_rows import with_documents
from tests.tables import frames

REFERENCE = Path(__file__).parents[2] / "results/reference"
FILES = np.array([200.0, 350.0, 100.0, 900.0])


@pytest.fixture
def nats():
    """Total nats by variant, of three seeds and four files."""
    generator = np.random.default_rng(3)
    of_file, of_seed = generator.normal(2, 0.3, 4), generator.normal(0, 0.05, (3, 1))
    return {
        label: FILES
        * (of_file + of_seed + generator.normal(0, 0.2, 4) + generator.normal(0, 0.05, (3, 4)))
        for label in ("base", "other", "third")
    }


def table_of(nats, tokens=None):
    """Return a table whose runs have these losses by file."""
    losses = {label: (own.sum(1) / FILES.sum()).tolist() for label, own in nats.items()}
    counts = {**dict.fromkeys(nats, FILES), **(tokens or {})}
    by_seed = {label: dict(enumerate(own)) for label, own in nats.items()}
    return with_documents(frames({"": losses}).table, by_seed, counts)


def error_of(table, label, against="base", seeds=None):
    """Return the text's error of the difference between two variants, by their labels."""
    ids = {variant.label: variant.id for variant in table.plan.variants}
    return table.pair(table.loss, ids[label], ids[against], seeds).error


def test_the_texts_part_is_that_of_the_differences_by_seed_and_file(nats):
    table = table_of(nats)
    for label, against in (("other", "base"), ("third", "base"), ("other", "third")):
        assert error_of(table, label, against) == text_error(nats[label] - nats[against], FILES)
    first = text_error((nats["other"] - nats["base"])[:2], FILES)
    assert error_of(table, "other", seeds=[0, 1]) == first
    assert error_of(table, "other", seeds=[]) is None


def test_the_texts_part_of_an_average_of_differences_is_of_their_average_by_file(nats):
    table = table_of(nats)
    base, other, third = (variant.id for variant in table.plan.variants)
    weights = {base: -1.0, other: 0.5, third: 0.5}
    average = (nats["other"] + nats["third"]) / 2 - nats["base"]
    expected = text_error(average, FILES)
    error = text_error_of(dict.fromkeys(range(3), weights), table.documents("test"))
    assert (error.se, error.df) == pytest.approx((expected.se, expected.df))


def test_variants_without_losses_by_document_or_with_others_have_no_text_error(nats):
    table = table_of(nats, {"third": FILES + 1})
    lost = next(run.id for run in table.planned if (run.label, run.seed) == ("other", 1))
    kept = [row for row in table.metrics if row.run != lost]
    table = replace(table, metrics=MeasuredValues(kept))
    assert error_of(table, "other") is None
    assert error_of(table, "third") is None
    assert error_of(table, "other", seeds=[0, 2]) is not None


def row_of(mean, seed_se, text_se):
    total = math.hypot(seed_se, text_se)
    half = 2.1 * total
    return Interval(
        mean, mean - half, mean + half, 5, 0.5, 0.05, 20.0, seed_se, 4.0, text_se, 40.0, pooled=True
    )


@pytest.mark.parametrize(
    ("row", "margin", "half"),
    [
        (row_of(0.010, 0.001, 0.010), None, 2.0211),  # t of 40 degrees of freedom
        (row_of(0.010, 0.010, 0.001), None, math.nan),  # the seeds are what limits it
        (row_of(0.010, 0.001, 0.0), None, math.nan),  # without a text's part
        (row_of(0.050, 0.001, 0.010), None, math.nan),  # it is decided
        (row_of(0.000, 0.004, 0.010), 0.0215, math.nan),  # seeds would make it equivalent
        (row_of(0.000, 0.004, 0.010), 0.0200, 2.0211),
    ],
)
def test_a_row_that_no_number_of_seeds_decides_has_the_half_width_of_its_text(row, margin, half):
    found = heldout.by_text_alone(row, margin)
    assert found == pytest.approx(half * row.text_se, rel=1e-4, nan_ok=True)


def test_few_documents_are_told_where_another_split_would_have_more():
    def told(**documents):
        table = plans.table([plans.variant()], [], {"documents": documents})
        return " ".join(map(str, warnings.few_documents(plans.document(table).tables[0].text)))

    few = told(train=500, validation=4, test=7)
    assert "the validation split has 4, the test split has 7" in few
    assert told(train=500, validation=20, test=20) == ""
    assert told(train=30, validation=10, test=10) == ""
    assert told() == ""


def opened(name):
    return Frames.of(Results.open(REFERENCE / name))


def test_validation_and_test_text_are_one_where_nothing_is_chosen_by_validation():
    """Of a committed pack, by hand from its records: losses, documents and the text's error."""
    table = opened("claims/e15-kv-heads-quality").table
    assert table.split == "heldout"
    runs = framed(table.runs)
    n = {split: runs[f"{split}_predicted_tokens"] for split in ("validation", "test")}
    both = sum(runs[f"{split}_loss_nats"] * n[split] for split in n) / sum(n.values())
    assert runs["heldout_loss_nats"].to_numpy() == pytest.approx(both.to_numpy())
    assert runs["heldout_perplexity"].to_numpy() == pytest.approx(np.exp(both.to_numpy()))
    whole = table.documents("heldout")[table.plan.baseline.id][0]
    parts = [table.documents(split)[table.plan.baseline.id][0] for split in n]
    assert whole.tolist() == np.concatenate(parts, axis=1).tolist()
    base, *others = (variant.id for variant in table.plan.variants if not variant.role)
    errors = [
        [table.pair(f"{split}_loss_nats", id_, base).error.se for split in ("heldout", "test")]
        for id_ in others
    ]
    ratios = [(joined / alone) ** 2 for joined, alone in errors]
    assert np.median(ratios) < 0.8


def test_a_section_says_of_what_text_the_error_is():
    frames = opened("claims/e15-kv-heads-quality")
    table = frames.table
    section = next(part for part in sections(frames) if part.key == "heldout")
    splits = section.frame.set_index("split")
    held_out = {split: n for split, n in table.plan.text.bytes.items() if split != "train"}
    assert splits["bytes"].to_dict() == held_out | {"heldout": sum(held_out.values())}
    rows = framed(table.comparison).query("not baseline and role == ''")
    shares = rows["text_se"] ** 2 / (rows["text_se"] ** 2 + rows["seed_se"] ** 2)
    ends = splits.loc["heldout", ["share_low", "share_high"]].tolist()
    assert ends == pytest.approx([shares.min(), shares.max()])
    assert splits.loc[["validation", "test"], "share_low"].isna().all()


def test_a_text_that_chose_the_tuned_points_is_none_to_report():
    frames = opened("claims/e07-ffn-activation")
    assert frames.plan.experiment.tune
    assert frames.table.split == "test"
    assert not has_number(frames.table.planned, "heldout_loss_nats")
