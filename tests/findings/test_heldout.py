"""The held-out text's part of every difference, from records with losses by document."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llama_ablate.evidence.text_error import StandardError, text_error
from llama_ablate.findings import warnings
from llama_ablate.findings.compare import compare, find_documents, find_text_error
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.controls import describe_splits, find_text_limit
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.stages import find_runs
from llama_ablate.results.snapshot import Results
from tests import plans
from tests.metric_rows import with_documents
from tests.tables import frames

REFERENCE = Path(__file__).parents[2] / "results/reference"
NO_ERROR = StandardError(0.0, math.inf)
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
    chosen = None if seeds is None else {ids[label]: seeds}
    (row,) = compare(table, table.loss, [(ids[label], ids[against])], seeds=chosen).itertuples()
    return StandardError(row.text_se, row.text_df)


def test_the_texts_part_is_that_of_the_differences_by_seed_and_file(nats):
    table = table_of(nats)
    for label, against in (("other", "base"), ("third", "base"), ("other", "third")):
        assert error_of(table, label, against) == text_error(nats[label] - nats[against], FILES)
    first = text_error((nats["other"] - nats["base"])[:2], FILES)
    assert error_of(table, "other", seeds=[0, 1]) == first
    assert error_of(table, "other", seeds=[]) == NO_ERROR


def test_the_texts_part_of_an_average_of_differences_is_of_their_average_by_file(nats):
    table = table_of(nats)
    base, other, third = (variant.id for variant in table.plan.variants)
    weights = {base: -1.0, other: 0.5, third: 0.5}
    average = (nats["other"] + nats["third"]) / 2 - nats["base"]
    expected = text_error(average, FILES)
    error = find_text_error(dict.fromkeys(range(3), weights), find_documents(table, "test"))
    assert (error.se, error.df) == pytest.approx((expected.se, expected.df))


def test_variants_without_losses_by_document_or_with_others_have_no_text_error(nats):
    table = table_of(nats, {"third": FILES + 1})
    lost = table.measured["label"].eq("other") & table.measured["seed"].eq(1)
    table = replace(table, measured=table.measured[~lost])
    assert error_of(table, "other") == NO_ERROR
    assert error_of(table, "third") == NO_ERROR
    assert error_of(table, "other", seeds=[0, 2]).se > 0


def row_of(mean, seed_se, text_se):
    half = 2.1 * math.hypot(seed_se, text_se)
    errors = {"seed_se": seed_se, "seed_df": 4.0, "text_se": text_se, "text_df": 40.0}
    return {"mean": mean, "low": mean - half, "high": mean + half, "alpha": 0.05, **errors}


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
    found = find_text_limit(row, margin)
    assert found == pytest.approx(half * row["text_se"], rel=1e-4, nan_ok=True)


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


@pytest.fixture(scope="module")
def branched():
    """A pack whose validation and test text are one, since nothing is chosen by validation."""
    return opened("claims/e15-kv-heads-quality").table


def test_validation_and_test_text_are_one_where_nothing_is_chosen_by_validation(branched):
    """Of a committed pack, by hand from its records: losses, documents and the text's error."""
    table = branched
    assert table.split == "heldout"
    runs = find_runs(table)
    n = {split: runs[f"{split}_predicted_tokens"] for split in ("validation", "test")}

    def average(form):
        losses = {split: runs[form.format(split)] for split in n}
        return (sum(losses[split] * n[split] for split in n) / sum(n.values())).to_numpy()

    both = average("{}_loss_nats")
    assert runs["heldout_loss_nats"].to_numpy() == pytest.approx(both, rel=1e-12)
    assert runs["heldout_perplexity"].to_numpy() == pytest.approx(np.exp(both))
    # At the branches of runs, too, each split weighs as many tokens as were predicted.
    (first, *_) = sorted(c for c in runs if c.startswith("heldout_loss_at_"))
    at_branch = average(first.replace("heldout", "{}"))
    assert runs[first].to_numpy() == pytest.approx(at_branch, rel=1e-12)
    whole, *parts = (find_documents(table, of)[table.base, 0] for of in ("heldout", *n))
    assert whole.tolist() == np.concatenate(parts, axis=1).tolist()
    others = [v.id for v in table.plan.variants if not v.role and not v.baseline]
    pairs = [(id_, table.base) for id_ in others]
    joined, alone = (compare(table, f"{of}_loss_nats", pairs) for of in ("heldout", "test"))
    assert np.median((joined["text_se"] / alone["text_se"]) ** 2) < 0.8


def test_losses_by_position_are_not_given_again_as_held_out():
    measured = opened("claims/e12-positions").table.measured
    by_position = measured[measured["metric"].eq("loss_by_position")]
    assert len(by_position) > 0
    assert {*by_position["split"].dropna()} <= {"test", "validation"}
    assert not by_position.duplicated(["run", "name"]).any()


def test_a_frame_of_splits_says_of_what_text_the_error_is(branched):
    splits = describe_splits([branched]).set_index("split")
    held_out = {of: n for of, n in branched.plan.text.bytes.items() if of != "train"}
    assert splits["bytes"].to_dict() == held_out | {"heldout": sum(held_out.values())}
    rows = compare_variants(branched).query("not baseline and role == ''")
    shares = rows["text_se"] ** 2 / (rows["text_se"] ** 2 + rows["seed_se"] ** 2)
    ends = splits.loc["heldout", ["share_low", "share_high"]].tolist()
    assert ends == pytest.approx([shares.min(), shares.max()])
    assert splits.loc[["validation", "test"], "share_low"].isna().all()


def test_a_text_that_chose_the_tuned_points_is_none_to_report():
    frames = opened("claims/e07-ffn-activation")
    assert frames.plan.experiment.tune
    assert frames.table.split == "test"
    assert "heldout_loss_nats" not in frames.table.planned
