import json
import os
import random

import numpy as np
import pytest
import tokenizers

from llama_ablate.data import encoding, texts
from llama_ablate.data import tokens as store
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS, Pieces
from tests.texts import corpus_of

WORDS = ["the", " cat", " don't", "'LL", " 12345", " é", "你好", "\n", "\n\n", "  ", " \n", "\t"]
WORDS += [",", ".\n", " (x", "\r\n", "\u00a0", "\u3000", "_", "I'm", "/", "a\u0301", "٣", "🙂"]


def trained(before):
    """Return byte-level BPE with a way to cut text before it."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = before
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    drawn = random.Random(1)
    model.train_from_iterator(("".join(drawn.choices(WORDS, k=50)) for _ in range(200)), trainer)
    return model


def test_a_token_is_stored_in_as_many_bytes_as_the_largest_one_needs():
    assert [encoding.kind_of(vocab).itemsize for vocab in (2**16, 2**16 + 1)] == [2, 4]


def test_a_long_document_in_parts_has_the_tokens_of_the_whole(tmp_path, monkeypatch):
    drawn = random.Random(0)
    model = Pieces(trained(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)))
    whole = "".join(drawn.choices([*WORDS, "word\n", "9\n"], k=20_000))
    monkeypatch.setattr(texts, "_BLOCK", 2000)
    monkeypatch.setattr(texts, "_MAX_DOCUMENT", 5000)
    text = texts.write(corpus_of(whole, "held out"), tmp_path)
    chunks = list(encoding.encode(text, "train", model))
    assert len(chunks) > 20
    assert np.concatenate([chunk.ids for chunk in chunks]).tolist() == model.encode(whole).tolist()


def test_threads_give_what_one_alone_gives_in_the_same_order(tmp_path, monkeypatch):
    documents = [f"document {i} é " * (i % 50) + "the end" for i in range(2000)]
    text = texts.write(corpus_of("\0".join(documents), "held out"), tmp_path)
    model = Pieces(trained(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)))
    monkeypatch.setattr(texts, "_BLOCK", 20_000)
    monkeypatch.setattr(encoding, "_cores", lambda: 1)
    alone = list(encoding.encode(text, "train", model))
    monkeypatch.setattr(encoding, "_cores", lambda: 4)
    together = list(encoding.encode(text, "train", model))
    assert len(alone) > 20
    for a, b in zip(alone, together, strict=True):
        assert (a.start, a.stop, a.ids.tolist()) == (b.start, b.stop, b.ids.tolist())


def corpus(tmp_path):
    lines = (json.dumps({"text": f"document {i} " * 20}) for i in range(500))
    (tmp_path / "x.jsonl").write_text("\n".join(lines), "utf-8")
    return CORPORA.resolve({"name": "files", "path": str(tmp_path / "x.jsonl")})


def test_a_text_that_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    entry = corpus(tmp_path)
    monkeypatch.setattr("llama_ablate.data.readers.RECENT_S", 0.0)
    first = store.prepare(entry, TOKENIZERS.resolve("bytes"), tmp_path)
    monkeypatch.setattr(texts, "write", lambda *_: pytest.fail("it was read"))
    assert store.prepare(entry, TOKENIZERS.resolve("bytes"), tmp_path) == first
    monkeypatch.undo()
    file = tmp_path / "x.jsonl"
    before = file.stat()
    file.write_bytes(file.read_bytes().replace(b"document 1 ", b"dacument 1 "))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.prepare(entry, TOKENIZERS.resolve("bytes"), tmp_path) != first


def test_an_unknown_token_anywhere_is_found_and_one_that_stands_for_itself_is_no_loss(tmp_path):
    vocab = {"<unk>": 0, "a": 1, "b": 2}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, "<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.CharDelimiterSplit(" ")
    words.decoder = tokenizers.decoders.WordPiece(prefix="##")
    model = Pieces(words)
    written = texts.write(corpus_of("a b " * 60_000 + "c" + " a b" * 60_000, "a"), tmp_path)
    found = [chunk.lost for chunk in encoding.encode(written, "train", model) if chunk.lost]
    assert found == ["'a b a b c a b a b a b a ' becomes 'a b a b <unk> a b a b a '"]
    written = texts.write(corpus_of("a <unk> b", "a"), tmp_path)
    assert [chunk.lost for chunk in encoding.encode(written, "train", model)] == [""]
