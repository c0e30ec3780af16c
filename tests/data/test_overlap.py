"""Held-out text that also stands in training text is found, refused, left out or named."""

import json
import random
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from llama_ablate.config import experiment
from llama_ablate.data import overlap
from llama_ablate.data import tokens as store
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.texts import hash_document
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.design import plan, plan_texts
from llama_ablate.errors import ConfigError
from llama_ablate.findings import warnings

DRAWN = random.Random(0)
WORDS = ["".join(DRAWN.choices("abcdefghij", k=DRAWN.randint(2, 8))) for _ in range(3000)]


def text(words):
    return " ".join(DRAWN.choices(WORDS, k=words))


DOCUMENTS = [text(DRAWN.randint(40, 300)) for _ in range(200)]
BOOK = text(40_000)


def test_white_space_and_pieces_change_no_hash_and_every_letter_does():
    whole = hash_document([BOOK.encode()])
    spaced = BOOK.replace(" ", "\r\n  ")
    pieces = [spaced[i : i + 7919].encode() for i in range(0, len(spaced), 7919)]
    assert hash_document(pieces) == whole != 0
    assert hash_document([BOOK.encode(), b"a"]) != whole
    assert hash_document([b" ", b"\n"]) == 0


def test_blank_documents_are_not_equal_to_each_other():
    """Their hash is 0."""
    hashes = np.array([5, 0, 0, 5, 7, 0], np.uint64)
    tokens = SimpleNamespace(
        document_counts={"test": 6}, heldout=["test"], hashes=lambda _split: hashes
    )
    assert overlap.find_first_equal(tokens, "test").tolist() == [0, 1, 2, 0, 4, 5]
    repeated = overlap.find_repeated(tokens, {"other": tokens})["test"]
    assert repeated.tolist() == [True, False, False, True, True, False]


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """Plan an experiment on texts that lie in its folder; `data` is its section."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LLAMA_ABLATE_CACHE", str(tmp_path / "cache"))
    changed = [document.replace(" ", "\n", 2) + "\n" for document in DOCUMENTS]
    for name, documents in {
        "docs": DOCUMENTS,
        "lines": changed[:50],
        "new": [text(100) for _ in range(50)],
    }.items():
        lines = (json.dumps({"text": document}) for document in documents)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), "utf-8")
    (tmp_path / "book.txt").write_text(BOOK, "utf-8")

    def made(data, axes="norm: [layernorm]"):
        (tmp_path / "t.yaml").write_text(
            "name: t\nmodel: {dim: 8, layers: 1, heads: 1, context: 16}\n"
            f"variants: {{axes: {{{axes}}}}}\ntrain: {{steps: 2, batch: 2}}\n{data}\n",
            "utf-8",
        )
        return plan.make(experiment.load(tmp_path / "t.yaml"))

    return made


def corpus(name, **options):
    stated = "".join(f", {key}: {value}" for key, value in options.items())
    return f"{{name: files, path: {name}{stated}}}"


def mixed(own, source, *, policy="refuse"):
    """Write a `data` section whose mixture has a source."""
    return (
        f"data: {{corpus: {own}, sources: {{more: {source}}}, mixture: {{corpus: 1, more: 1}}, "
        f"overlap: {policy}}}"
    )


DOCS = corpus("docs.jsonl", splits="[0.8, 0.1, 0.1]")
HALF = corpus("docs.jsonl", splits="[0.85, 0.05, 0.1]")
REFUSED = {
    "the same documents by other splits": (mixed(DOCS, HALF), "data.sources.more: "),
    "copies that differ by line ends": (
        f"data: {{corpus: {corpus('.', train='docs.jsonl', validation='lines.jsonl')}}}",
        "100.0% of the held-out tokens of data.corpus, 50 of 50 documents as a whole, also stand "
        "in the training text of data.corpus",
    ),
    "test documents that are validation documents": (
        "data: {corpus: "
        + corpus(".", train="new.jsonl", validation="docs.jsonl", test="lines.jsonl")
        + "}",
        "stand in the validation text of data.corpus",
    ),
    "one text by two names": (
        f"texts: [{{name: a, corpus: {DOCS}}}, {{name: b, corpus: {DOCS}}}]",
        "texts[1]: is the same text as texts[0]",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_held_out_text_that_is_trained_on_is_refused_with_both_places_and_the_count(planned, what):
    data, message = REFUSED[what]
    with pytest.raises(ConfigError) as caught:
        planned(data)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(caught.value).split("t.yaml")[0] + "t.yaml:")


def test_texts_apart_and_a_book_without_repeats_are_planned_without_a_word(planned):
    for data in (f"data: {{corpus: {DOCS}}}", f"data: {{corpus: {corpus('book.txt')}}}"):
        (table,) = planned(data).tables
        assert table.text.overlaps == {}


def test_dropped_documents_are_those_that_stand_in_training_text_and_no_others(planned, tmp_path):
    with_repeats = planned(mixed(DOCS, HALF, policy="allow"))
    without = planned(mixed(DOCS, HALF, policy="drop"))
    (whole,), (found,) = with_repeats.tables, without.tables
    before, after = whole.text, found.text
    there = before.overlaps["more"]
    assert 0 < there.documents < there.all_documents
    assert after.left_out == there.documents
    assert sum(after.tokens[s] for s in ("validation", "test")) == there.all_tokens - there.tokens
    assert after.tokens["train"] == before.tokens["train"]
    assert after.fingerprint != before.fingerprint
    assert {run.id for run in whole.runs}.isdisjoint(run.id for run in found.runs)
    held = {
        found.text.opened["corpus"].tokenizer.decode(found.text.opened["corpus"].split(s).tolist())
        for s in ("validation", "test")
    }
    source = found.text.opened["more"].tokenizer.decode(
        found.text.opened["more"].split("train").tolist()
    )
    assert not any(doc in source for part in held for doc in part.split("\0"))
    assert any("were left out" in line or "left out" in line for line in notes(without))
    assert any(
        f"{there.documents} of {there.all_documents}" in line for line in notes(with_repeats)
    )
    shutil.rmtree(tmp_path / "cache")
    assert plan_texts.open_tokens(after).fingerprint == after.fingerprint


def notes(plan):
    found = [
        planned for table in plan.tables for planned in warnings.planned(table, plan.experiment)
    ]
    return [*map(str, found)]


def test_a_source_that_no_mixture_reads_refuses_nothing(planned):
    source = f"sources: {{more: {HALF}}}"
    planned(f"data: {{corpus: {DOCS}, {source}}}")
    one = corpus(".", train="docs.jsonl", validation="lines.jsonl")
    planned(
        f"data: {{corpus: {one}, sources: {{more: {corpus('new.jsonl')}}}, mixture: {{more: 1}}}}"
    )
    with pytest.raises(ConfigError, match=r"in the training text of data\.sources\.more"):
        planned(f"data: {{corpus: {DOCS}, {source}}}", axes="data.mixture: [{corpus: 1, more: 1}]")


def _shared(shared, **options):
    """Return the overlap with `shared` training text, of a text that the options describe."""
    own, other = (
        store.prepare(CORPORA.resolve({"name": "files", **of}), TOKENIZERS.resolve("bytes"))
        for of in (options, shared or options)
    )
    return overlap.find_overlaps(own, {"more": other})["more"]


def test_parts_of_documents_are_found_in_other_letters_and_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    book = "".join(random.Random(1).choices("abcde \ufb01\n", k=300_000))
    cuts = [book[i * 2000 : i * 2000 + 500] for i in range(100)]
    rows = {
        "long": [book[i * 2000 : i * 2000 + 1500] for i in range(100)],
        "cuts": cuts,
        "new": DOCUMENTS,
    }
    for name, documents in rows.items():
        lines = (json.dumps({"text": document}) for document in documents)
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    for name, text in {
        "book": book,
        "twice": book[:90_000] * 2,
        "part": book[9_000:90_000].upper().replace("\ufb01", "fi").replace("\n", " \r\n"),
        "half": book[:50_000] + "".join(random.Random(2).choices("abcde ", k=50_000)),
    }.items():
        (tmp_path / f"{name}.txt").write_text(text, "utf-8")
    assert _shared(None, path="book.txt").parts == 0
    assert _shared({"path": "book.txt"}, path="book.txt", limit="90kB").parts == 1
    assert _shared(None, path="twice.txt").parts == 1
    assert _shared(None, train="book.txt", validation="part.txt").parts == 1
    assert _shared(None, train="book.txt", validation="half.txt").parts == pytest.approx(
        0.5, abs=0.1
    )
    cut = {"train": "new.jsonl", "validation": "long.jsonl", "longest": "0.5kB"}
    assert _shared({"path": "cuts.jsonl", "splits": [0.9, 0.1, 0]}, **cut).parts > 0.8
