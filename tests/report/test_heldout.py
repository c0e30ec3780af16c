"""The held-out text's part of every difference, from records with losses by document."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llama_ablate.evidence import Interval
from llama_ablate.evidence.text_error import text_error
from llama_ablate.findings import heldout
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.paired_table import text_error_of
from llama_ablate.findings.rows import frame as framed
from llama_ablate.findings.values import MeasuredValues, MetricRow, has_number
from llama_ablate.report import warnings
from llama_ablate.report.sections import sections
from llama_ablate.results.snapshot import Results
from tests import plans
from tests.in_process import run_in_process
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


def table_of(nats, tokens=None, left_out=()):
    """Return a table whose runs have these losses by file, but for those that are left out."""
    losses = {label: (own.sum(1) / FILES.sum()).tolist() for label, own in nats.items()}
    table = frames({"": losses}).table
    values = [
        MetricRow(
            variant=run.variant,
            label=run.label,
            run=run.id,
            seed=run.seed,
            metric="perplexity",
            name=f"{split} {quantity}",
            quantity=quantity,
            value=2.0,
            coordinates={"split": split},
            samples=of,
        )
        for run in table.planned
        if (run.label, run.seed) not in left_out
        for split, scale in (("validation", 7.0), ("test", 1.0))
        for quantity, of in (
            ("loss_by_document", tuple(nats[run.label][run.seed] * scale)),
            ("tokens_by_document", tuple((tokens or {}).get(run.label, FILES))),
        )
    ]
    return replace(table, metrics=MeasuredValues(values))


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
    table = table_of(nats, {"third": FILES + 1}, left_out=[("other", 1)])
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


@pytest.fixture
def many_documents(experiment_file, tmp_path):
    """Write an experiment whose test split has 30 documents, its validation split 8."""
    for split, n in {"train": 90, "validation": 8, "test": 30}.items():
        lines = [
            json.dumps({"text": f"{split} {i} " + ("words ", "4711 ")[i % 2] * (9 + i % 7)})
            for i in range(n)
        ]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    files = "train: train.jsonl, validation: validation.jsonl, test: test.jsonl"
    return experiment_file(
        "{axes: {train.lr: [1.0e-6]}}",  # it learns nothing, so files differ in what it lacks
        train="{steps: 20, batch: 4, lr: 1.0e-2, evals: 1}",
        data=f"{{corpus: {{name: files, path: '{tmp_path}', {files}}}, tokenizer: bytes}}",
        measure="[perplexity]",
        seeds="3",
    )


def test_the_interval_of_a_row_holds_the_texts_part_and_a_section_says_of_what_text(
    many_documents, tmp_path, capsys
):
    assert run_in_process(many_documents, tmp_path / "out", figures=True) == 0
    capsys.readouterr()
    frames = Frames.of(Results.open(tmp_path / "out" / "tiny"))
    row = framed(frames.table.comparison).set_index("baseline").loc[False]
    base, other = (variant.id for variant in frames.table.plan.variants if not variant.role)
    error = frames.table.pair(frames.table.loss, other, base).error
    assert row["text_se"] == error.se > 0
    section = next(part for part in sections(frames) if part.key == "heldout")
    splits = section.frame.set_index("split")
    assert splits["documents"].to_dict() == {"validation": 8, "test": 30, "heldout": 38}
    held_out = {split: n for split, n in frames.table.plan.text.bytes.items() if split != "train"}
    assert splits["bytes"].to_dict() == held_out | {"heldout": sum(held_out.values())}
    share = error.se**2 / (error.se**2 + row["seed_se"] ** 2)
    assert splits.loc["heldout", ["share_low", "share_high"]].tolist() == pytest.approx([share] * 2)
    assert splits.loc[["validation", "test"], "share_low"].isna().all()
    shown = section.cells.set_index("split")
    assert shown.loc["test", "error between"] == "30 documents"
    assert shown.loc["validation", "error between"].endswith(" blocks")


def test_plan_and_report_warn_of_a_split_with_few_of_many_documents(many_documents, capsys):
    from llama_ablate.commands.cli import main

    assert main(["plan", str(many_documents), "--device", "cpu"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "say little of how" in line]
    assert line.startswith("Of 128 documents the validation split has 8: fewer than 20 say")


@pytest.mark.parametrize(
    ("documents", "few"),
    [
        ({"train": 500, "validation": 20, "test": 20}, ""),
        (
            {"train": 500, "validation": 4, "test": 7},
            "the validation split has 4, the test split has 7",
        ),
        ({"train": 1, "validation": 1, "test": 1}, ""),
        ({"train": 30, "validation": 10, "test": 10}, ""),
        ({"train": 500, "validation": 19}, "the validation split has 19"),
        ({}, ""),
    ],
)
def test_few_documents_are_told_where_another_split_would_have_more(documents, few):
    text = (
        plans.document(plans.table([plans.variant()], [], {"documents": documents})).tables[0].text
    )
    told = " ".join(warnings.few_documents(text))
    assert few in told
    assert bool(told) == bool(few)


def test_a_plan_is_the_same_with_and_without_the_number_of_documents():
    one, other = (
        plans.document(plans.table([plans.variant()], [], {"documents": documents}))
        for documents in ({}, {"train": 3})
    )
    assert one.identity() == other.identity()


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


def test_a_text_that_chose_the_tuned_points_is_none_to_report():
    frames = opened("claims/e07-ffn-activation")
    assert frames.plan.experiment.tune
    assert frames.table.split == "test"
    assert not has_number(frames.table.planned, "heldout_loss_nats")


def test_a_number_that_the_file_names_by_its_split_has_the_error_of_its_text():
    table = opened("claims/e15-kv-heads-quality").table
    base, *_, mqa = (variant.id for variant in table.plan.variants if not variant.role)
    of_split = table.documents("test")
    differences = [of_split[mqa][seed][0] - of_split[base][seed][0] for seed in of_split[base]]
    expected = text_error(differences, of_split[base][0][1])
    assert table.pair("test_loss_nats", mqa, base).error == expected
