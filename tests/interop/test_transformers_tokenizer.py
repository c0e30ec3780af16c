"""Exported tokenizers and stops against transformers, which reads nothing but the files."""

import base64
import io
import json
import random
import tempfile
import unicodedata
from pathlib import Path

import pytest
import tokenizers
import torch

from llama_ablate.commands.cli import main
from llama_ablate.data import texts
from llama_ablate.data.tokenizers.pieces import SentencePiece, from_llama2c
from llama_ablate.data.tokenizers.tokenizer import TOKENIZERS, Bytes, Chars
from llama_ablate.data.tokenizers.tokenizer_files import LLAMA3_SPLIT, Tiktoken, read
from llama_ablate.errors import ConfigError
from llama_ablate.interop import huggingface
from llama_ablate.interop.generation import Generation, Sampling
from llama_ablate.interop.loader import open_model
from tests.conftest import make_spec
from tests.texts import corpus_of

from .checkpoints import llama2c_pieces, ours

LINES = [
    "the cat sat on the mat",
    "the dog ran to the park, where it saw a bird!",
    "Was it <s> or </s>? 42 x 10 = 420.",
] * 20
NAMES = [
    "<s>",
    "</s>",
    "<unk>",
    "<0x0A>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|eom_id|>",
    "<|reserved_special_token_7|>",
    "<pad>",
    "<|",
    ">",
]
ODD = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n the",
    "\r\n",
    "\x00",
    "\x00a\x00",
    "\u2581",
    "\u2581 \u2581",
    " \u2581",
    "a\u2581",
    "\ufeff",
    "e\u0301",
    "\u00e9",
    "\ufb01",
    "I'\u017f",
    "\u0130",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u0085x",
    "\u2028",
    "\u3000a",
    "\u00a0a",
    "\u00ad",
    "\u00bd \u2460 \u2163",
    "\ud55c\uad6d\uc5b4",
    "\u1112\u1161\u11ab",
    "\uffff",
]


def _texts(count=2000):
    """Return texts of all sorts: any letters, runs of white space, names, words, accents."""
    draw = random.Random(0)
    planes = [(32, 127), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    makers = (
        lambda: chr(draw.randrange(*draw.choice(planes))),
        lambda: draw.choice(" \t\n\r\x0b\x0c\u00a0\u2003\u3000\u2581 ab"),
        lambda: draw.choice([*NAMES, " ", "a"]),
        lambda: draw.choice(" ".join(LINES[:3]).split()) + draw.choice(["", " ", " ", "  "]),
        lambda: draw.choice("aab b "),
        lambda: draw.choice("aeE") + chr(draw.randrange(0x300, 0x370)),
        lambda: draw.choice("aA1.!' -'sStTLl\u017f\u212a"),
    )
    made = [
        "".join(make() for _ in range(draw.randrange(30)))
        for make in makers
        for _ in range(1 + (count - len(ODD)) // len(makers))
    ]
    return (ODD + made)[:count]


TEXTS = _texts()


def _sentencepiece(**options):
    import sentencepiece

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=out,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        **{"vocab_size": 400} | options,
    )
    return SentencePiece(out.getvalue())


def _llama2(**options):
    """Return what Llama 2's tokenizer is: BPE with bytes that leaves texts as they are."""
    return _sentencepiece(
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        **options,
    )


def _tokenizer_json(folder, special=("<|endoftext|>", "<pad>"), template=None):
    """Return what a tokenizer.json holds: byte-level BPE, special tokens, what stands around."""
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        show_progress=False,
        special_tokens=list(special),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    model.train_from_iterator(LINES, trainer)
    if template:
        known = [(name, model.token_to_id(name)) for name in special]
        model.post_processor = tokenizers.processors.TemplateProcessing(
            single=template, special_tokens=known
        )
    model.save(str(folder / "tokenizer.json"))
    return read(folder / "tokenizer.json")


def _trained():
    maker = TOKENIZERS.build(TOKENIZERS.resolve({"name": "bpe", "vocab": 300}))
    with tempfile.TemporaryDirectory() as folder:
        text = "\n".join(LINES)
        return maker.make(texts.write(corpus_of(text, text, text), Path(folder)))


def _ranks():
    """Return tiktoken's list of ranks, as Llama 3 has it, of what its own trainer merges."""
    from tiktoken._educational import bpe_train

    ranks = bpe_train("\n".join(LINES[:3]), 300, LLAMA3_SPLIT, visualise=None)
    return Tiktoken(b"".join(base64.b64encode(t) + b" %d\n" % r for t, r in ranks.items()))


BEGINS = {
    "special": ("<|begin_of_text|>", "<|eot_id|>", "</s>"),
    "template": "<|begin_of_text|> $A",
}
#: How each kind of tokenizer is made, in a folder where it needs one.
KINDS = {
    "bytes": lambda _: Bytes(),
    "chars": lambda _: Chars("".join(sorted(set("".join(TEXTS))))),
    "bpe": lambda _: _trained(),
    "tokenizer.json": _tokenizer_json,
    "tokenizer.json that begins texts": lambda folder: _tokenizer_json(folder, **BEGINS),
    "tokenizer.json that ends texts": lambda folder: _tokenizer_json(
        folder, ("<fin>",), "$A <fin>"
    ),
    "ranks of Llama 3": lambda _: _ranks(),
    "SentencePiece of Llama 2": lambda _: _llama2(),
    "SentencePiece that splits digits": lambda _: _llama2(split_digits=True, pad_id=3),
    "SentencePiece without a space in front": lambda _: _llama2(add_dummy_prefix=False),
    "SentencePiece with unknown letters": lambda _: _sentencepiece(
        model_type="bpe", normalization_rule_name="identity"
    ),
    "SentencePiece of characters": lambda _: _sentencepiece(
        model_type="char", normalization_rule_name="identity"
    ),
    "SentencePiece unigram": lambda _: _sentencepiece(normalization_rule_name="identity"),
    "SentencePiece unigram with bytes": lambda _: _sentencepiece(
        normalization_rule_name="identity", byte_fallback=True, remove_extra_whitespaces=False
    ),
    "llama2.c": lambda _: from_llama2c(llama2c_pieces(_llama2()._model)),
}


def _model(tokenizer, **changes):
    usual = {"bias": False, "vocab": tokenizer.vocab, "init_std": 0.5}
    return ours(make_spec(**usual | changes))


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_2000_texts_as_the_exported_tokenizer_does(kind, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = KINDS[kind](tmp_path)
    written = huggingface.write(_model(tokenizer, dim=8, heads=2), tmp_path / "x", None, tokenizer)
    assert (written.family, written.notes) == ("llama", [])
    theirs = AutoTokenizer.from_pretrained(tmp_path / "x")
    assert len(TEXTS) == 2000
    ids = [tokenizer.prompt(text) for text in TEXTS]
    assert theirs(TEXTS)["input_ids"] == ids
    plain = [tokenizer.encode(text).tolist() for text in TEXTS]
    assert theirs(TEXTS, add_special_tokens=False)["input_ids"] == plain
    for text, row in zip(TEXTS, plain, strict=True):
        if tokenizer.decode(row) == text:
            assert theirs.decode(row) == text

    parses = AutoTokenizer.from_pretrained(tmp_path / "x", split_special_tokens=False)
    named = [f"{text}{name}{text}" for text, name in zip(TEXTS[::9], 99 * NAMES, strict=False)]
    expected = [tokenizer.prompt(text, special=True) for text in named]
    assert parses(named)["input_ids"] == expected

    back = open_model(tmp_path / "x").tokenizer
    assert [back.prompt(text) for text in TEXTS] == ids
    assert (back.bos, back.end, back.pad, back.stops) == (
        tokenizer.bos,
        tokenizer.end,
        tokenizer.pad,
        tokenizer.stops,
    )


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_transformers_generates_what_the_exported_model_does_and_stops_where_it_stops(
    kind, tmp_path
):
    """Each stop in turn is made the likeliest token about every other time."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = KINDS[kind](tmp_path)
    model = _model(tokenizer, dim=16, heads=2)
    huggingface.write(model, tmp_path / "x", None, tokenizer)
    config = json.loads((tmp_path / "x" / "config.json").read_text("utf-8"))
    assert [config[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [
        tokenizer.bos,
        tokenizer.separator,
        tokenizer.pad,
    ]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "x").eval()
    reads = AutoTokenizer.from_pretrained(tmp_path / "x")
    heads = [model.head.weight, theirs.lm_head.weight]
    drawn, ended = heads[0].clone(), set()
    for stop in [None, *tokenizer.stops]:
        for weight in heads:
            weight.copy_(drawn)
            if stop is not None:
                weight[stop] = 3 * drawn[model.spec.vocab // 2]
        for text in ("the cat", "a dog ran", "420"):
            prompt = tokenizer.prompt(text)
            generation = Generation(
                model, [prompt], max_tokens=8, sampling=Sampling(0), stops=tokenizer.stops
            )
            expected = [token for (token,) in generation]
            given = reads(text, return_tensors="pt")
            assert given["input_ids"].tolist() == [prompt]
            found = theirs.generate(**given, max_new_tokens=8, do_sample=False)[0].tolist()
            found = found[len(prompt) :]
            if generation.ended == "stop token":
                ended.add(found.pop())
            assert found == expected
    assert ended == tokenizer.stops


#: What a model has that each family can express.
FAMILIES = {
    "llama": {},
    "mistral": {},
    "qwen2": {"attention": {"name": "mha", "qkv_bias": True}},
    "qwen3": {"attention": {"name": "mha", "qk_norm": True}},
    "gpt2": {
        "norm": {"name": "layernorm"},
        "position": "learned",
        "bias": True,
        "feedforward": {"name": "gelu", "approximate": "tanh"},
    },
    "gemma2": {"feedforward": {"name": "geglu", "approximate": "tanh"}, "block": "sandwich"},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["bytes", "chars", "bpe", "SentencePiece of Llama 2"])
def test_every_family_reads_texts_as_the_exported_tokenizer_does(kind, family, tmp_path):
    """Of qwen2 transformers' AutoTokenizer rebuilds the tokenizer: a note says so."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer, texts = KINDS[kind](tmp_path), TEXTS[::20]
    model = _model(tokenizer, dim=16, heads=2, **FAMILIES[family])
    written = huggingface.write(model, tmp_path / "x", family, tokenizer)
    expected = [tokenizer.prompt(text) for text in texts]
    follows = PreTrainedTokenizerFast.from_pretrained(tmp_path / "x")
    assert follows(texts)["input_ids"] == expected
    found = AutoTokenizer.from_pretrained(tmp_path / "x")(texts)["input_ids"]
    assert [found == expected] == [not written.notes] == [family != "qwen2"]
    assert all("AutoTokenizer splits texts for qwen2 by rules of" in note for note in written.notes)


@pytest.mark.parametrize("kind", KINDS)
def test_what_lm_evaluation_harness_takes_for_the_beginning_of_a_text_is_there(kind, tmp_path):
    """Its model `hf` decodes the first of these that is no None, and adds a token without any."""
    from transformers import AutoTokenizer

    tokenizer = KINDS[kind](tmp_path)
    huggingface.write(_model(tokenizer, dim=8, heads=2), tmp_path / "x", None, tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "x")
    begins, ends = theirs.bos_token_id, theirs.eos_token_id
    assert (begins, ends) == (tokenizer.bos, tokenizer.separator)
    prefix = ends if begins is None else begins
    assert theirs.decode(prefix) == tokenizer.piece(prefix)
    assert len(theirs) == tokenizer.vocab


def test_without_a_token_between_documents_a_note_says_what_lm_evaluation_harness_needs(tmp_path):
    tokenizer = Chars("abc")  # of a text that is one document
    (note,) = huggingface.write(_model(tokenizer), tmp_path / "x", None, tokenizer).notes
    assert note.endswith("model hf needs prefix_token_id")


def test_a_character_that_a_vocabulary_lacks_is_refused_by_transformers_too(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = Chars("bcd")
    huggingface.write(_model(tokenizer), tmp_path / "x", None, tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "x")
    assert theirs("dbc")["input_ids"] == [2, 0, 1]
    with pytest.raises(Exception, match="WordLevel error"):
        theirs("dbc\u00e9")
    with pytest.raises(ConfigError, match="the tokenizer cannot encode this text"):
        open_model(tmp_path / "x").tokenizer.encode("dbc\u00e9")


def test_without_a_tokenizer_nothing_is_taken_for_an_end(tmp_path):
    from transformers import AutoModelForCausalLM

    for family in ("llama", "mistral"):  # whose configurations take 2 for the end by default
        huggingface.write(ours(make_spec(bias=False)), tmp_path / family, family)
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / family)
        assert theirs.config.bos_token_id is theirs.config.eos_token_id is None
        assert theirs.generation_config.eos_token_id is None


def test_prompts_of_several_lengths_are_padded_on_the_left(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = _tokenizer_json(tmp_path)
    huggingface.write(_model(tokenizer), tmp_path / "x", None, tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "x")
    short, long = tokenizer.prompt("a"), tokenizer.prompt("the dog, where")
    pads = [tokenizer.pad] * (len(long) - len(short))
    assert theirs(["a", "the dog, where"], padding=True)["input_ids"] == [pads + short, long]


def _joins(character):
    """Return whether a character is a part of the letter before it."""
    marks = unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")
    return marks or "\u1100" <= character < "\u1200"


def test_a_normalization_that_transformers_only_comes_near_to_is_written_with_a_note(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = _sentencepiece(model_type="bpe", byte_fallback=True)  # with NFKC, as by default
    written = huggingface.write(_model(tokenizer), tmp_path / "x", None, tokenizer)
    (note,) = written.notes
    assert "may read accents and other marks otherwise" in note
    theirs = AutoTokenizer.from_pretrained(tmp_path / "x")
    texts = [text for text in TEXTS if not any(map(_joins, text))]
    assert len(texts) > 1200
    assert theirs(texts)["input_ids"] == [tokenizer.prompt(text) for text in texts]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "word"}, "a SentencePiece model of whole words"),
        ({"user_defined_symbols": ["cat"]}, "a SentencePiece model with user-defined symbols"),
        ({"treat_whitespace_as_suffix": True}, "a SentencePiece model with spaces behind words"),
    ],
    ids=["words", "symbols", "suffixes"],
)
def test_a_tokenizer_that_transformers_cannot_have_is_left_out_with_a_note(
    options, message, tmp_path
):
    tokenizer = _sentencepiece(**options)
    written = huggingface.write(_model(tokenizer), tmp_path / "x", None, tokenizer)
    assert written.notes == [f"no tokenizer is written: transformers has none for {message}"]
    files = sorted(path.name for path in (tmp_path / "x").iterdir())
    assert files == ["config.json", "generation_config.json", "model.safetensors"]


def test_transformers_does_not_doubt_how_a_large_vocabulary_of_mistral_splits_texts(
    tmp_path, monkeypatch
):
    from transformers import AutoTokenizer, tokenization_utils_tokenizers

    doubts = []
    monkeypatch.setattr(tokenization_utils_tokenizers.logger, "warning", doubts.append)
    tokenizer = Chars("".join(map(chr, range(0x20000, 0x20000 + 100_001))))
    huggingface.write(_model(tokenizer, dim=8, heads=2), tmp_path / "x", "mistral", tokenizer)
    text = "\U00020001\U00020003"
    assert AutoTokenizer.from_pretrained(tmp_path / "x")(text)["input_ids"] == [1, 3]
    assert not doubts


def test_the_command_says_in_a_line_what_it_leaves_out(tmp_path, capsys):
    words = tmp_path / "words.model"
    words.write_bytes(_sentencepiece(model_type="word").data)
    huggingface.write(ours(make_spec(bias=False, vocab=400)), tmp_path / "x")
    command = ["export", str(tmp_path / "x"), str(tmp_path / "y"), "--tokenizer", str(words)]
    assert main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    (note,) = json.loads(out)["notes"]
    assert note.endswith("transformers has none for a SentencePiece model of whole words")
    assert err == f"note: {note}\n"
