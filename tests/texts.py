"""The text of a corpus in memory, for tests."""

import csv
import json
import random
import tempfile
from pathlib import Path
from types import SimpleNamespace

from llama_ablate.data import texts, tokens
from llama_ablate.data.corpus import CORPORA, SPLITS, Corpus
from llama_ablate.data.readers import SEPARATOR, Document
from llama_ablate.data.tokenizer import TOKENIZERS


def read(corpus):
    """Read a corpus; return the text of its splits, one by one and together."""
    with tempfile.TemporaryDirectory() as folder:
        text = texts.write(corpus, Path(folder))
        splits = {split: text.read(split) for split in text.sizes}
        each = dict.fromkeys(SPLITS, "") | splits
        return SimpleNamespace(splits=splits, fingerprint=text.fingerprint, **each)


def corpus_of(train, validation, test=""):
    """Return the corpus of three texts: one document each, or several between SEPARATORs."""
    documents = [
        Document((text.encode(),), split)
        for split, whole in zip(SPLITS, (train, validation, test), strict=True)
        if whole
        for text in whole.split(SEPARATOR)
    ]
    return Corpus(lambda: documents)


def write_jsonl(file, texts, column="text"):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({column: t, "n": 1}) + "\n" for t in texts), "utf-8")


def write_csv(file, texts):
    with file.open("w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([["n", "text"], *(["1", text] for text in texts)])


def write_parquet(file, texts):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": texts, "n": [1] * len(texts)}), file)


def prepared(path, tokenizer="bytes", cache=None, **options):
    """Return the tokens of files."""
    corpus = CORPORA.resolve({"name": "files", "path": str(path), **options})
    return tokens.prepare(corpus, TOKENIZERS.resolve(tokenizer), cache)


def sentences(count, seed=0):
    """Return so many sentences of a small grammar, which hardly repeat as a paragraph."""
    drawn = random.Random(seed)
    things, places = ("cat", "dog", "bird", "child"), ("mat", "park", "roof", "step", "old chair")
    said = (
        f"the {drawn.choice(things)} {drawn.choice(('sat', 'ran', 'looked', 'slept'))} "
        f"{drawn.choice(('on', 'by', 'under'))} the {drawn.choice(places)}"
        for _ in range(count)
    )
    return ". ".join(said) + ". "
