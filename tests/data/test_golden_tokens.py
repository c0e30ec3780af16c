"""Fingerprints and token files as they were before readers and tokenizers were rewritten."""

import json
import random
from pathlib import Path

import pytest

from llama_ablate.data import tokens
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "tokens.json").read_text("utf-8"))
WORDS = ["the", "cat", "sat", "on", "a", "mat", "é", "don't", "12", "\n", "你好"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write documents as lines of JSON, Parquet, one text and a folder of texts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    drawn = random.Random(0)
    texts = [f"{' '.join(drawn.choices(WORDS, k=drawn.randint(3, 60)))} {i}" for i in range(300)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "docs.jsonl").write_text(lines, "utf-8")
    (tmp_path / "book.txt").write_text("\n".join(texts), "utf-8")
    pq.write_table(pa.table({"text": texts}), tmp_path / "docs.parquet")
    (tmp_path / "folder").mkdir()
    for i, text in enumerate(texts[:40]):
        (tmp_path / "folder" / f"{i}.txt").write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)


def of(path, **options):
    return {"name": "files", "path": path, "splits": (0.8, 0.1, 0.1), **options}


BPE = {"name": "bpe", "vocab": 300}
TEXTS = {
    "lines, bytes": (of("docs.jsonl"), "bytes"),
    "lines, limit and longest, chars": (of("docs.jsonl", limit="20kB", longest="0.1kB"), "chars"),
    "parquet, bpe": (of("docs.parquet"), BPE),
    "book, bpe": (of("book.txt"), BPE | {"vocab": 290}),
    "folder, bytes": (of("folder"), "bytes"),
    "recall, chars": ({"name": "recall", "tokens": 5000}, "chars"),
}


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_has_the_fingerprint_and_the_token_files_that_it_had(name, tmp_path):
    corpus, tokenizer = TEXTS[name]
    made = tokens.prepare(CORPORA.resolve(corpus), TOKENIZERS.resolve(tokenizer), tmp_path / "c")
    found = [made.fingerprint, *(made.sums[f"{split}.bin"][:16] for split in made.counts)]
    assert found == GOLDEN[name]
