import json

import numpy as np
import pytest

from llama_ablate.data import tokens as store
from llama_ablate.data.batches import DocumentStreams
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.readers import SEPARATOR
from llama_ablate.data.tokenizer import TOKENIZERS

DOCUMENTS = [f"{i} " + f"the cat {i} sat on the mat. " * (1 + 5 * i % 17) for i in range(40)]
BPE = {"name": "bpe", "vocab": 400}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("documents")
    for split, documents in (("train", DOCUMENTS), ("valid", DOCUMENTS[:3])):
        lines = (json.dumps({"text": text}) + "\n" for text in documents)
        (root / f"{split}.jsonl").write_text("".join(lines), "utf-8")
    return root


@pytest.fixture(scope="module")
def prepared(folder):
    corpus = CORPORA.resolve(
        {"name": "files", "path": str(folder), "train": "train.jsonl", "validation": "valid.jsonl"}
    )
    return lambda entry: store.prepare(corpus, TOKENIZERS.resolve(entry), folder / "cache")


def streams(reader, seed, steps, count):
    """Return the predicted tokens of each stream, step after step, (count, steps * span)."""
    batches = [reader.batch(seed, k, count, reader.span)[:, 1:] for k in range(steps)]
    return np.concatenate(batches, axis=1)


def text_of(tokens, reader, stream, steps, count=3):
    first = reader.batch(0, 0, count, reader.span)[stream, :1]
    return tokens.tokenizer.decode(np.append(first, streams(reader, 0, steps, count)[stream]))


@pytest.mark.parametrize("entry", ["bytes", BPE])
def test_a_stream_is_whole_documents_one_behind_another(prepared, entry):
    tokens = prepared(entry)
    text = text_of(tokens, DocumentStreams(tokens, 64), 1, 60)
    whole = text.split(SEPARATOR)
    assert len(whole) > 5
    assert set(whole[:-1]) <= set(DOCUMENTS)
    assert any(document.startswith(whole[-1]) for document in DOCUMENTS)


def test_tokenizers_read_the_same_documents_in_the_same_order(prepared):
    for stream in range(3):
        of_bytes, of_bpe = (
            text_of(tokens, DocumentStreams(tokens, 64), stream, steps)
            for tokens, steps in ((prepared("bytes"), 60), (prepared(BPE), 20))
        )
        shorter = min(len(of_bytes), len(of_bpe))
        assert shorter > 1000
        assert of_bytes[:shorter] == of_bpe[:shorter]


@pytest.mark.parametrize("context", [8, 16, 32])
def test_a_shorter_context_reads_the_same_tokens_in_the_same_step(prepared, context):
    tokens, rows = prepared(BPE), 64 // context
    long, short = (DocumentStreams(tokens, 64) for _ in range(2))
    for k in (0, 7):
        whole, cut = long.batch(3, k, 5, 64), short.batch(3, k, 5 * rows, context)
        assert cut.shape == (5 * rows, context + 1)
        assert np.array_equal(cut[:, :-1].reshape(5, 64), whole[:, :-1])
        assert np.array_equal(cut[:, 1:].reshape(5, 64), whole[:, 1:])


def test_a_batch_depends_on_its_number_and_not_on_those_before_it(prepared):
    tokens = prepared("bytes")
    read = DocumentStreams(tokens, 64)
    in_turn = [read.batch(1, k, 4, 64) for k in range(30)]
    assert np.array_equal(DocumentStreams(tokens, 64).batch(1, 29, 4, 64), in_turn[29])
    assert np.array_equal(read.batch(1, 3, 4, 64), in_turn[3])
    assert not np.array_equal(read.batch(2, 3, 4, 64), in_turn[3])


def test_every_document_is_drawn_about_as_often_as_any_other(prepared):
    tokens = prepared("bytes")
    read = streams(DocumentStreams(tokens, 512), 0, 60, 16)
    text = "".join(map(tokens.tokenizer.decode, read))
    drawn = [text.count(document + SEPARATOR) for document in DOCUMENTS]
    expected = sum(drawn) / len(DOCUMENTS)
    # Of a multinomial with equal shares; beyond 80 for 39 degrees of freedom once in 10,000.
    assert sum((n - expected) ** 2 / expected for n in drawn) < 80
