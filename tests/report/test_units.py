"""Variants of several tokenizers compare in bits per byte, everywhere."""

import math

import numpy as np
import pytest

from llama_ablate.commands.cli import main
from llama_ablate.evidence.text_error import text_error
from llama_ablate.findings.compare import find_documents, find_text_error
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.factors import estimate_factors
from llama_ablate.findings.frames import Frames
from llama_ablate.report.contents import list_tables
from llama_ablate.report.figures import make
from llama_ablate.report.sections import sections
from llama_ablate.results.snapshot import Results
from tests.in_process import run_in_process

BASE = "bpe-vocab=300 (baseline)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of three tokenizers, at as many bytes, of 30 documents a split."""
    root = tmp_path_factory.mktemp("units")
    for split, first in (("train", 0), ("valid", 100), ("test", 200)):
        texts = (f"the cat {i} sat on the mat, and the dog {i * i} ran. " * 4 for i in range(30))
        lines = (f'{{"text": "{text.replace("cat", f"cat {first}")}"}}\n' for text in texts)
        (root / f"{split}.jsonl").write_text("".join(lines), "utf-8")
    file = root / "tok.yaml"
    file.write_text(
        f"""
name: tok
model: {{dim: 16, layers: 1, heads: 2, context: 16}}
variants: {{axes: {{data.tokenizer: [bytes, {{name: bpe, vocab: 400}}]}}}}
controls: {{aa: []}}
data:
  corpus: {{name: files, path: '{root}', train: train.jsonl, validation: valid.jsonl,
           test: test.jsonl}}
  tokenizer: {{name: bpe, vocab: 300}}
  order: documents
train: {{steps: 20, batch: 4, lr: 1e-2, precision: float32, kernel: math, evals: 2}}
budget: bytes
seeds: 3
margin: 0.02 bits/byte
measure: [perplexity]
""",
        "utf-8",
    )
    assert run_in_process(file, root / "results") == 0
    return root / "results" / "tok"


@pytest.fixture(scope="module")
def frames(folder):
    return Frames.of(Results.open(folder))


def test_losses_are_bits_for_each_byte_of_the_text(folder, frames):
    results, table = Results.open(folder), frames.table
    assert set(compare_variants(table)["unit"]) == {"bits/byte"}
    bits, labels = {}, {v.id: v.label for v in table.plan.variants}
    for record in map(results.record, results.finished):
        text = results.plan.tables[0].text_of(results.plan.tables[0].variant(record.variant))
        both = ("validation", "test")
        nats = sum(record.numbers[f"{split}_loss_nats"] * text.tokens[split] for split in both)
        size = sum(text.bytes[split] for split in both)
        bits.setdefault(labels[record.variant], {})[record.seed] = nats / math.log(2) / size
    base = bits[BASE]
    for row in compare_variants(table).itertuples():
        own = bits[row.label]
        assert row.loss == pytest.approx(np.mean(list(own.values())))
        if not row.baseline:
            differences = [own[seed] - base[seed] for seed in base]
            assert row.difference == pytest.approx(np.mean(differences))


def test_the_texts_error_is_in_bits_for_each_byte_too(frames):
    table, values = frames.table, frames.table.measured

    def of_both(quantity):
        """Return samples by label, (seeds, documents), those of validation first."""
        each = [
            {
                label: np.array([*own.sort_values("seed")["samples"]])
                for label, own in values[
                    values["name"].eq(f"{split}_{quantity}_by_document")
                ].groupby("label")
            }
            for split in ("validation", "test")
        ]
        return {label: np.concatenate([of[label] for of in each], axis=1) for label in each[0]}

    bits = {label: own / math.log(2) for label, own in of_both("nats").items()}
    tokens = of_both("tokens")[BASE][0]
    held_out = table.plan.text.bytes["validation"] + table.plan.text.bytes["test"]
    size = held_out * tokens / tokens.sum()
    expected = text_error(bits["bytes"] - bits[BASE], size)
    bytes_ = next(v.id for v in table.plan.variants if v.label == "bytes")
    weights = {bytes_: 1.0, table.base: -1.0}
    found = find_text_error(dict.fromkeys(range(3), weights), find_documents(table, table.split))
    assert found.se == pytest.approx(expected.se)


def test_tables_figures_and_files_say_so(folder, frames):
    comparison = next(part for part in sections(frames) if part.title.startswith("Comparison"))
    assert "loss (bits/byte)" in comparison.cells
    assert not {"perplexity", "bits/byte", "loss (nats)"} & {*comparison.cells}
    assert "loss (bits/byte)" in (folder / "report" / "report.html").read_text("utf-8")
    (effects,) = make("effects", frames)
    assert effects.figure.axes[0].get_xlabel() == "difference in loss (bits/byte); left is better"
    (contents,) = list_tables(frames, frames)
    last = contents.curves.groupby("variant")["read"].max()
    assert last["bytes"] == pytest.approx(last[BASE], rel=0.05)  # a step is 64 tokens of 1200


def test_two_variants_of_other_tokenizers_compare_in_bits_and_seconds_alone(folder, capsys):
    assert main(["show", str(folder), "baseline", "bytes"]) == 0
    shown = capsys.readouterr().out
    assert "data.tokenizer: bpe vocab=300 -> bytes" in shown
    assert "test_bits_per_byte" in shown
    assert "test_loss_nats" not in shown
    assert "perplexity" not in shown


def test_a_tokenizer_can_be_a_factor_beside_the_context(folder, tmp_path):
    text = (folder.parent.parent / "tok.yaml").read_text("utf-8")
    axes = (
        "{design: product, axes: {data.tokenizer: [{name: bpe, vocab: 300}, bytes], context: [16,"
    )
    text = text.replace(text.split("variants: ")[1].split("\n")[0], f"{axes} 8]}}}}")
    (tmp_path / "two.yaml").write_text(text.replace("name: tok", "name: two"), "utf-8")
    assert run_in_process(tmp_path / "two.yaml", tmp_path / "results") == 0
    frames = Frames.of(Results.open(tmp_path / "results" / "two"))
    found = estimate_factors(frames.table).set_index("factor")
    cells = compare_variants(frames.table).set_index("label")["loss"]
    assert {"data.tokenizer", "context", "data.tokenizer x context"} == {*found.index}
    expected = cells[["bytes context=16", "bytes context=8"]].mean()
    expected -= cells[["bpe-vocab=300 context=16", "bpe-vocab=300 context=8"]].mean()
    assert found.loc["data.tokenizer", "difference"] == pytest.approx(expected)
    assert found.loc["data.tokenizer", "effect"] == "bytes instead of bpe"
