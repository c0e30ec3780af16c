"""A tokenizer that loses text has no bits per byte in any table or page, and a note says why."""

import csv
import json
import re

import pytest
import tokenizers

from llama_ablate.results import Results
from tests.in_process import run_in_process


@pytest.fixture
def hundred_words(tmp_path):
    """A tokenizer.json of a hundred words and [UNK], most of them not of the book."""
    words = ["[UNK]", "the", "cat", "sat", "on", *(f"word{i}" for i in range(95))]
    model = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]")
    )
    model.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    model.add_special_tokens(["[UNK]"])
    model.save(str(tmp_path / "words.json"))
    return tmp_path / "words.json"


def everything(folder):
    """Return the text of all that a report writes, by name."""
    files = [path for path in (folder / "report").rglob("*") if path.is_file()]
    return {path.name: path.read_text("utf-8") for path in files if path.suffix != ".png"}


def test_no_bits_per_byte_appear_where_words_are_unknown_and_the_reason_is_told(
    experiment_file, book, hundred_words, tmp_path, capsys
):
    corpus = f"{{name: files, path: '{book}'}}"
    data = f"{{corpus: {corpus}, tokenizer: {{name: file, path: '{hundred_words}'}}}}"
    assert run_in_process(experiment_file(data=data), tmp_path / "results") == 0
    folder = tmp_path / "results" / "tiny"
    results = Results.open(folder)
    (table,) = results.plan.tables
    assert "[UNK]" in table.text.lost
    reason = "so there are no bits per byte"
    shown = "".join(capsys.readouterr())
    written = everything(folder)
    for name, text in {**written, "the terminal": shown}.items():
        numbers = re.findall(r"bits.per.byte\W{0,3}\d+|\d+ bits.per.byte|bits/byte", text)
        assert not numbers, name
    assert reason in written["report.html"]
    assert reason in written["report.md"]
    assert reason in shown
    for path in (folder / "report").rglob("*.csv"):
        for row in csv.DictReader(path.read_text("utf-8").splitlines()):
            assert not any(value for key, value in row.items() if key and "bits" in key), path
            assert "bits_per_byte" not in row.values(), path
    metrics = [json.dumps(record.to_dict()) for record in map(results.record, results.finished)]
    assert not any("bits_per_byte" in text for text in metrics)
