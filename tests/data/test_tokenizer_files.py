import base64
import json
import struct

import pytest
import tokenizers

from llama_ablate.commands.cli import main
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.data.tokenizer_files import (
    LLAMA3_SPECIAL,
    LLAMA3_SPLIT,
    read,
    read_saved,
)
from llama_ablate.errors import ConfigError
from tests.texts import prepared

PROMPT = "the answer to the ultimate question of life, the universe, and everything is "
SNEAKY = "a<|eot_id|>b</s>c<|endoftext|>"


@pytest.fixture(scope="session")
def gpt2_tokenizer(tmp_path_factory):
    """A tokenizer.json as GPT-2's: byte-level BPE and one special token."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        show_progress=False,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    model.train_from_iterator(["the cat sat on the mat"] * 50, trainer)
    file = tmp_path_factory.mktemp("gpt2") / "tokenizer.json"
    model.save(str(file))
    return file


def test_llama3s_ids_are_those_of_the_walk_through(llama3_tokenizer):
    tokenizer = read(llama3_tokenizer)
    assert tokenizer.encode("hello world!").tolist() == [15339, 1917, 0]
    ids = tokenizer.prompt(PROMPT)
    known = "128000 1820 4320 311 279 17139 3488 315 2324 11 279 15861 11 323 4395 374 220"
    assert ids == [int(one) for one in known.split()]
    assert "".join(tokenizer.piece(i) for i in ids) == "<|begin_of_text|>" + PROMPT
    assert tokenizer.decode(ids[1:]) == PROMPT
    assert tokenizer.piece(2983) == "42"


def test_llama3_has_256_special_tokens_behind_its_128000_ranks_by_the_names_of_llama31_too(
    llama3_tokenizer,
):
    """The ids are those of the table in Llama 3.1's own tokenizer.py, whose ranks are the same."""
    tokenizer = read(llama3_tokenizer)
    assert tokenizer.vocab == 128_256
    assert len(LLAMA3_SPECIAL) == len(set(LLAMA3_SPECIAL)) == 256
    expected = {
        "<|begin_of_text|>": 128000,
        "<|end_of_text|>": 128001,
        "<|finetune_right_pad_id|>": 128004,
        "<|start_header_id|>": 128006,
        "<|eom_id|>": 128008,
        "<|eot_id|>": 128009,
        "<|python_tag|>": 128010,
        "<|reserved_special_token_250|>": 128255,
    }
    for name, token in expected.items():
        assert tokenizer.prompt(f"the{name}", special=True) == [128000, 1820, token]
        assert tokenizer.decode([token]) == name
    assert tokenizer.special["<|reserved_special_token_2|>"] == tokenizer.pad == 128004
    assert tokenizer.bos == 128000
    assert tokenizer.stops == {128000, 128001, 128008, 128009}


@pytest.mark.parametrize("name", ["llama3_tokenizer", "llama2_tokenizer", "gpt2_tokenizer"])
def test_names_of_special_tokens_in_a_text_are_text_unless_asked(name, request):
    tokenizer = read(request.getfixturevalue(name))
    plain = tokenizer.prompt(SNEAKY)[tokenizer.bos is not None :]
    assert not set(plain) & set(tokenizer.special.values())
    assert tokenizer.decode(plain) == SNEAKY
    parsed = set(tokenizer.prompt(SNEAKY, special=True))
    named = {i for text, i in tokenizer.special.items() if text in SNEAKY}
    assert named
    assert parsed & set(tokenizer.special.values()) >= named


def test_an_experiment_can_take_a_tokenizer_file_and_its_content_is_its_identity(
    book, gpt2_tokenizer, tmp_path
):
    def prepared_by(file):
        return prepared(book, {"name": "file", "path": str(file)}, tmp_path / "cache")

    first = prepared_by(gpt2_tokenizer)
    text = book.read_text("utf-8")
    assert first.tokenizer.decode(first.split("train")) == text[: int(len(text) * 0.8)]
    moved = tmp_path / "elsewhere.json"
    moved.write_bytes(gpt2_tokenizer.read_bytes())
    assert prepared_by(moved).fingerprint == first.fingerprint
    changed = json.loads(moved.read_text("utf-8"))
    changed["model"]["merges"] = changed["model"]["merges"][:-1]
    moved.write_text(json.dumps(changed), "utf-8")
    assert prepared_by(moved).fingerprint != first.fingerprint


RANKS = b"".join(base64.b64encode(bytes([b])) + b" %d\n" % b for b in range(256))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", b'{"version": "1.0"}', "it is no tokenizer.json"),
        ("tokenizer.model", b"\x80\x04\x95pickle", "it is no SentencePiece model"),
        ("tokenizer.model", b"IQ== 0\nIg== 1\n", "some single byte has none"),
        ("tokenizer.model", RANKS + b"YWI= 400\n", "its ranks are not 0, 1, 2"),
        ("tokenizer.bin", struct.pack("<i", 5) + b"\0\0\0", "it is damaged at piece 0"),
    ],
)
def test_damaged_files_are_refused_in_one_line(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message) as refused:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.fixture
def slow_tokenizer(tmp_path):
    """A tokenizer.json whose regular expression tries too often: the library's Rust code panics."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE({chr(i): i for i in range(61)}, []))
    often = tokenizers.Regex(r"^(\w+\s?)*$")
    model.pre_tokenizer = tokenizers.pre_tokenizers.Split(often, "isolated")
    model.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


TOO_OFTEN = "the tokenizer cannot encode this text (Onig: Regex search error: retry-limit-in-match"


def test_a_tokenizer_that_panics_ends_a_plan_in_one_line_behind_what_rust_writes(
    experiment_file, slow_tokenizer, capfd
):
    tokenizer = f"{{name: file, path: '{slow_tokenizer}'}}"
    text = slow_tokenizer.with_name("text.txt")
    text.write_text("the cat sat on the mat " * 100 + "!", "utf-8")
    corpus = f"{{name: files, path: '{text}'}}"
    file = experiment_file(data=f"{{corpus: {corpus}, tokenizer: {tokenizer}}}")
    assert main(["plan", str(file)]) == 2
    out, err = capfd.readouterr()  # what Rust writes goes past sys.stderr
    assert out == ""
    last = err.splitlines()[-1]
    assert f"data.tokenizer: {TOO_OFTEN}" in last
    assert "tiny.yaml:3:" in last


def test_a_folder_with_gpt2s_two_files_is_the_tokenizer_of_its_tokenizer_json(
    gpt2_tokenizer, tmp_path
):
    whole = json.loads(gpt2_tokenizer.read_text("utf-8"))["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(whole["vocab"]), "utf-8")
    with pytest.raises(ConfigError, match=r"holds no tokenizer: none of.*both vocab\.json and"):
        read(tmp_path)
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in whole["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges), "utf-8")
    two, one = read(tmp_path), read(gpt2_tokenizer)
    text = f"the cat's mat, été {SNEAKY}"
    assert two.encode(text).tolist() == one.encode(text).tolist()
    assert (two.vocab, two.special, two.end) == (one.vocab, one.special, one.end)
    assert read_saved(two.to_json()).encode(text).tolist() == one.encode(text).tolist()
    (tmp_path / "merges.txt").write_text("x")
    with pytest.raises(ConfigError, match="cannot be read: they are no vocab"):
        read(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(gpt2_tokenizer.read_bytes())
    assert read(tmp_path).vocab == one.vocab


def test_a_tokenizer_by_name_is_tiktokens_and_told_where_it_cannot_be_loaded(monkeypatch):
    import tiktoken

    with pytest.raises(ConfigError, match=r"the tokenizer of 'a/b' is not cached: `hf download"):
        TOKENIZERS.build(TOKENIZERS.resolve({"name": "hub", "model": "a/b"}))
    with pytest.raises(ConfigError, match=r"'a/b/c' is no name of the hub"):
        TOKENIZERS.build(TOKENIZERS.resolve({"name": "hub", "model": "a/b/c"}))
    ranks = {bytes([b]): b for b in range(256)} | {b"th": 256, b"the": 258}
    small = tiktoken.Encoding(
        "x", pat_str=LLAMA3_SPLIT, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 257}
    )
    maker = TOKENIZERS.build(TOKENIZERS.resolve("cl100k_base"))
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: {"cl100k_base": small}[name])
    with pytest.raises(ConfigError, match="tiktoken cannot load 'p50k_base'"):
        TOKENIZERS.build(TOKENIZERS.resolve("p50k_base")).make(None)
    made = maker.make(None)
    ids = made.encode("the cat<|endoftext|>").tolist()
    assert ids[:2] == [258, ord(" ")]
    assert 257 not in ids
    assert (made.vocab, made.end, made.bos) == (259, 257, None)
    again = read_saved(made.to_json())
    assert again.encode("the cat").tolist() == ids[:5]
    assert again.special == made.special
    lines = b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    saved = json.loads(made.to_json())  # as it was when the file of ranks was read
    assert base64.b64decode(saved["model"]) == lines
    assert (saved["pattern"], saved["special"]) == (LLAMA3_SPLIT, {"<|endoftext|>": 257})
