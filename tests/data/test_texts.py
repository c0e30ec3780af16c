import random

import pytest

from llama_ablate.data import texts
from llama_ablate.data.corpus import files
from llama_ablate.data.readers import SEPARATOR
from tests.texts import corpus_of, read


def written(folder, *documents):
    return texts.write(corpus_of(SEPARATOR.join(documents), "held out"), folder)


def ranges(text):
    return [text.read("train", *bounds) for bounds in text.chunks("train")]


def test_chunks_are_whole_documents_and_together_the_text(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "_BLOCK", 100)
    drawn = random.Random(0)
    documents = ["é" * drawn.randrange(1, 150) for _ in range(200)]
    chunks = ranges(written(tmp_path, *documents))
    assert "".join(chunks) == SEPARATOR.join(documents)
    assert all(chunk.endswith(SEPARATOR) for chunk in chunks[:-1])
    assert max(map(len, chunks)) <= 150 + 1
    assert len(chunks) > 50


def test_a_document_up_to_16_mib_is_one_chunk_and_a_longer_one_is_cut_at_ends_of_lines(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(texts, "_BLOCK", 100)
    monkeypatch.setattr(texts, "_MAX_DOCUMENT", 1000)
    line = "a line of words\n\n"
    short, long = line * 50, line * 100
    text = written(tmp_path, short, long, "the end")
    chunks = ranges(text)
    assert text.cuts
    assert chunks[0] == short + SEPARATOR
    assert "".join(chunks) == short + SEPARATOR + long + SEPARATOR + "the end"
    assert all(chunk.endswith("words") for chunk in chunks[1:-2])
    assert not written(tmp_path, short, short).cuts


@pytest.mark.parametrize("text", ["no space é", "\n", "a\n", "é"])
def test_a_long_document_without_lines_is_cut_between_characters(tmp_path, monkeypatch, text):
    monkeypatch.setattr(texts, "_BLOCK", 101)
    monkeypatch.setattr(texts, "_MAX_DOCUMENT", 300)
    chunks = ranges(written(tmp_path, text * 1000))
    assert "".join(chunks) == text * 1000
    assert len(chunks) > 5


def test_a_text_is_split_by_position_at_the_same_characters_however_it_is_read(
    tmp_path, monkeypatch
):
    whole = "".join(random.Random(0).choices("aé你🙂\n", k=5000))
    (tmp_path / "one.txt").write_text(whole, "utf-8")
    for block in (7, 1 << 20):
        monkeypatch.setattr("llama_ablate.data.readers._BLOCK", block)
        found = read(files(path=str(tmp_path / "one.txt"), splits=[0.8, 0.1, 0.1]))
        assert (found.train, found.validation, found.test) == (
            whole[:4000],
            whole[4000:4500],
            whole[4500:],
        )


def test_of_a_long_held_out_document_the_first_bytes_are_read_and_training_text_stays(tmp_path):
    drawn, names = random.Random(1), ("train", "validation", "test")
    for i in range(60):
        text = "".join(drawn.choices("aé\n", k=drawn.randrange(500, 5000)))
        (tmp_path / f"{i:02}.txt").write_text(text, "utf-8")
    options = {"path": str(tmp_path), "splits": [0.6, 0.2, 0.2]}
    whole, cut = (
        {name: read(files(**options, **more)).splits[name].split(SEPARATOR) for name in names}
        for more in ({}, {"longest": "1kB"})
    )
    assert cut["train"] == whole["train"]
    for name in ("validation", "test"):
        short = [text.encode()[:1000].decode("utf-8", "ignore") for text in whole[name]]
        assert len(short) > 5
        assert cut[name] == short != whole[name]
