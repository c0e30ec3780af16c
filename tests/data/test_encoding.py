import json
import os
import random

import numpy as np
import pytest
import tokenizers

from llama_ablate.data import encoding, texts
from llama_ablate.data import tokens as store
from llama_ablate.data.corpora.corpus import CORPORA
from llama_ablate.data.tokenizers.byte_level import SPLITS, by_rank
from llama_ablate.data.tokenizers.tokenizer import BPE, TOKENIZERS, Bytes
from llama_ablate.data.tokenizers.tokenizer_files import LLAMA3_SPLIT, from_json
from llama_ablate.errors import ConfigError
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


def by_split(pattern):
    parts = tokenizers.pre_tokenizers
    return parts.Sequence(
        [
            parts.Split(tokenizers.Regex(pattern), "isolated"),
            parts.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def rewritten(model, change):
    """Return a tokenizer with another `model` in its JSON."""
    parts = json.loads(model.to_str())
    change(parts["model"])
    return tokenizers.Tokenizer.from_str(json.dumps(parts))


def with_all_merges(model):
    """Return a tokenizer as Llama 3's files are: every two tokens that make a third are merged."""

    def change(bpe):
        order = sorted(bpe["vocab"], key=bpe["vocab"].get)
        pairs = [[t[:i], t[i:]] for t in order for i in range(1, len(t))]
        bpe["merges"] = [pair for pair in pairs if all(part in bpe["vocab"] for part in pair)]
        bpe["ignore_merges"] = True

    return rewritten(model, change)


def some_texts():
    drawn = random.Random(0)
    yield from ("".join(drawn.choices(WORDS, k=drawn.randrange(60))) for _ in range(400))
    yield from ("".join(map(chr, drawn.choices(range(128), k=200))) for _ in range(100))
    yield from ("".join(drawn.choices("anth ", k=50)) for _ in range(200))  # merged much
    yield from ("", "a" * 9000, " " * 9000, "^" * 500_000, "é" + "a" * 9000, "a b é c " * 2000)


@pytest.mark.parametrize("merges", ["its own", "all"])
@pytest.mark.parametrize("pattern", [None, *SPLITS], ids=["level", "gpt2", "qwen2", "llama3"])
def test_many_texts_have_the_tokens_that_the_library_gives_each_alone(pattern, merges):
    level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model = trained(level if pattern is None else by_split(pattern))
    model = with_all_merges(model) if merges == "all" else model
    tokenizer, texts = BPE(model), list(some_texts())
    assert tokenizer._by_rank is not None
    for text, ids in zip(texts, tokenizer.encode_many(texts), strict=True):
        assert ids.tolist() == model.encode(text, add_special_tokens=False).ids, text[:1000]


def test_ascii_is_encoded_by_rank_and_the_rest_by_the_library(monkeypatch):
    tokenizer = BPE(trained(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)))
    left = []
    encoded = tokenizer._encoded
    monkeypatch.setattr(tokenizer, "_encoded", lambda texts: left.extend(texts) or encoded(texts))
    tokenizer.encode_many(["the cat sat é on", "the mat", "^" * 500_000])
    assert left == [" é on", "^" * 500_000]


def test_llama_3_cuts_text_as_we_know_it():
    assert LLAMA3_SPLIT in SPLITS


@pytest.mark.parametrize("change", ["normalizer", "added", "prefix", "other pattern", "metaspace"])
def test_a_tokenizer_that_may_cut_elsewhere_encodes_texts_whole(change):
    level = tokenizers.pre_tokenizers.ByteLevel
    before = {
        "prefix": level(add_prefix_space=True),
        "other pattern": by_split(r"\s+|\S+ \S+"),
        "metaspace": tokenizers.pre_tokenizers.Metaspace(),
    }
    model = trained(before.get(change, level(add_prefix_space=False)))
    if change == "normalizer":
        model.normalizer = tokenizers.normalizers.Replace("a b", "c")
    if change == "added":
        model.add_tokens(["a b"])
    refused(model, "x a b the cat")


def refused(model, text):
    """Expect a tokenizer to be left to its library, which gives these tokens."""
    tokenizer = BPE(model)
    assert tokenizer._by_rank is None
    (ids,) = tokenizer.encode_many([text])
    assert ids.tolist() == model.encode(text, add_special_tokens=False).ids


def by_hand(made, **options):
    """Return byte-level BPE that makes tokens of others: {token: its two parts}."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*alphabet, *made])}
    merges = [parts for parts in made.values() if parts]
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges, **options))
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    return model


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_any_list_of_merges_gives_the_librarys_tokens_or_is_left_to_it(ignore_merges):
    drawn, by_us = random.Random(3), 0
    for _ in range(400):
        known, made = list("abĠ"), {}
        for _ in range(drawn.randrange(1, 12)):
            parts = drawn.choice(known), drawn.choice(known)
            token = "".join(parts)
            if token not in known:  # some stand in the vocabulary, and no merge makes them
                made[token] = parts if drawn.random() < 0.8 else None
                known.append(token)
        model = by_hand(made, ignore_merges=ignore_merges)
        encode = by_rank(model)
        if encode is not None:
            by_us += 1
            texts = ["".join(drawn.choices("ab ", k=drawn.choice([5, 20, 300]))) for _ in range(20)]
            assert all(encode(text) == model.encode(text).ids for text in texts), made
    assert by_us > 50


def test_merges_in_another_order_than_their_tokens_are_left_to_the_library():
    model = by_hand({"ab": ("a", "b"), "bc": ("b", "c")})
    assert BPE(model)._by_rank is not None
    turned = rewritten(model, lambda bpe: bpe["merges"].reverse())
    assert turned.encode("abc").ids != model.encode("abc").ids
    refused(turned, "abc")


def test_a_token_that_no_merge_makes_is_never_given():
    model = by_hand({"<|end|>": None, "ab": ("a", "b"), "bc": None, "abc": ("a", "bc")})
    tokenizer = BPE(model)
    assert tokenizer._by_rank is not None
    for text in ("abc", "<|end|>", "xabcab"):
        (ids,) = tokenizer.encode_many([text])
        assert ids.tolist() == model.encode(text).ids


def test_a_token_only_of_whole_words_is_given_for_these_alone():
    three = by_hand({"ab": ("a", "b"), "abcd": None}, ignore_merges=True)
    two = by_hand({"ab": ("a", "b"), "abc": None}, ignore_merges=True)
    tokenizer = BPE(three)
    assert tokenizer._by_rank is not None
    for text in ("abcd", "abcde", " abcd"):
        (ids,) = tokenizer.encode_many([text])
        assert ids.tolist() == three.encode(text).ids
    refused(two, "xabc")  # tiktoken would merge "ab" and "c" within a word, the library does not


def template(*single):
    return tokenizers.processors.TemplateProcessing(single=list(single), special_tokens=[("a", 64)])


def test_a_template_that_repeats_or_drops_the_text_is_left_to_the_library():
    model = by_hand({"ab": ("a", "b")})
    level = tokenizers.processors.ByteLevel()
    for once in (template("$A"), template("a", "$A", "a"), level):
        model.post_processor = tokenizers.processors.Sequence([level, once])
        assert by_rank(model) is not None
    for other in (template("$A", "$A"), template("a")):
        model.post_processor = other
        refused(model, "ab c")


def test_two_tokens_of_one_id_are_left_to_the_library():
    for twice in ({"ab": 256, "x x": 256}, {"ab": 97}):
        model = rewritten(
            by_hand({"ab": ("a", "b")}), lambda bpe, new=twice: bpe["vocab"].update(new)
        )
        assert by_rank(model) is None


def test_prefixes_dropout_and_missing_bytes_are_left_to_the_library():
    model = by_hand({"ab": ("a", "b")})
    for name, value in (("continuing_subword_prefix", "##"), ("end_of_word_suffix", "</w>")):
        refused(
            rewritten(model, lambda bpe, n=name, v=value: bpe.update({n: v, "merges": []})), "ab"
        )
    assert by_rank(rewritten(model, lambda bpe: bpe.update(dropout=0.5))) is None
    refused(rewritten(model, lambda bpe: bpe["vocab"].pop("z")), "ab")


def test_a_long_document_in_parts_has_the_tokens_of_the_whole(tmp_path, monkeypatch):
    drawn = random.Random(0)
    model = BPE(trained(by_split(LLAMA3_SPLIT)))
    whole = "".join(drawn.choices([*WORDS, "word\n", "9\n"], k=20_000))
    monkeypatch.setattr(texts, "_BLOCK", 2000)
    monkeypatch.setattr(texts, "_WHOLE", 5000)
    text = texts.write(corpus_of(whole, "held out"), tmp_path)
    (tmp_path / "tokenizer.json").write_text(model.to_json(), "utf-8")
    chunks = list(encoding.encode(text, "train", tmp_path / "tokenizer.json"))
    assert len(chunks) > 20
    assert np.concatenate([chunk.ids for chunk in chunks]).tolist() == model.encode(whole).tolist()


def test_processes_give_what_one_alone_gives_in_the_same_order(tmp_path, monkeypatch):
    documents = [f"document {i} é " * (i % 50) + "the end" for i in range(2000)]
    text = texts.write(corpus_of("\0".join(documents), "held out"), tmp_path)
    model = BPE(trained(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)))
    file = tmp_path / "tokenizer.json"
    file.write_text(model.to_json(), "utf-8")
    monkeypatch.setattr(texts, "_BLOCK", 20_000)
    alone = list(encoding.encode(text, "train", file))
    monkeypatch.setattr(encoding, "_PER_PROCESS", 100)
    monkeypatch.setattr(encoding, "_cores", lambda: 2)
    together = list(encoding.encode(text, "train", file))
    assert len(alone) > 20
    for a, b in zip(alone, together, strict=True):
        assert (a.start, a.stop, a.ids.tolist()) == (b.start, b.stop, b.ids.tolist())


def test_what_a_process_refuses_is_told_as_if_it_were_this_one(tmp_path, monkeypatch):
    text = texts.write(corpus_of("abc" * 1000, "abc"), tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps({"kind": "chars", "characters": "ab"}), "utf-8")
    for per_process in (100, 10**9):
        monkeypatch.setattr(encoding, "_PER_PROCESS", per_process)
        with pytest.raises(ConfigError, match="the character 'c' is not in the vocabulary"):
            list(encoding.encode(text, "train", file))


def corpus(tmp_path):
    lines = (json.dumps({"text": f"document {i} " * 20}) for i in range(500))
    (tmp_path / "x.jsonl").write_text("\n".join(lines), "utf-8")
    return CORPORA.resolve({"name": "files", "path": str(tmp_path / "x.jsonl")})


def test_a_text_that_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    entry = corpus(tmp_path)
    monkeypatch.setattr("llama_ablate.data.corpora.documents._RECENT_S", 0.0)
    first = store.prepare(entry, TOKENIZERS.resolve("bytes"), tmp_path)
    monkeypatch.setattr(texts, "write", lambda *_: pytest.fail("it was read"))
    assert store.prepare(entry, TOKENIZERS.resolve("bytes"), tmp_path) == first
    monkeypatch.undo()
    file = tmp_path / "x.jsonl"
    before = file.stat()
    file.write_bytes(file.read_bytes().replace(b"document 1 ", b"dacument 1 "))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.prepare(entry, TOKENIZERS.resolve("bytes"), tmp_path) != first


def test_a_file_that_was_written_just_now_is_read_each_time(tmp_path):
    assert CORPORA.build(corpus(tmp_path)).state is None


def test_an_unknown_token_anywhere_is_found_and_one_that_stands_for_itself_is_no_loss(tmp_path):
    vocab = {"<unk>": 0, "a": 1, "b": 2}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, "<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.CharDelimiterSplit(" ")
    words.decoder = tokenizers.decoders.WordPiece(prefix="##")
    file = tmp_path / "tokenizer.json"
    file.write_text(BPE(words).to_json(), "utf-8")
    rare = "a b " * 200_000 + "c" + " a b" * 200_000
    for text, lost in ((rare, "'a b a b c a b a b a b a ' becomes 'a b a b <unk> a b a b a '"),):
        written = texts.write(corpus_of(text, "a"), tmp_path)
        found = [chunk.lost for chunk in encoding.encode(written, "train", file) if chunk.lost]
        assert found == [lost]
    written = texts.write(corpus_of("a <unk> b", "a"), tmp_path)
    assert [chunk.lost for chunk in encoding.encode(written, "train", file)] == [""]


def test_a_tokenizer_says_which_token_stands_for_the_unknown(llama2_tokenizer, words_tokenizer):
    made = [
        TOKENIZERS.build(TOKENIZERS.resolve({"name": "file", "path": str(path)})).make(None)
        for path in (llama2_tokenizer, words_tokenizer)
    ]
    assert [tokenizer.unknown for tokenizer in made] == [0, 0]
    assert Bytes().unknown is None
    assert from_json(made[1].to_json()).unknown == 0
