"""Exported tokenizers and stops against transformers, which reads nothing but the files."""

import json

import pytest
import torch

from llama_ablate.data.tokenizer import Chars
from llama_ablate.errors import ConfigError
from llama_ablate.interop import huggingface
from llama_ablate.interop.generation import Generation, Sampling
from llama_ablate.interop.loader import open_model
from tests.conftest import make_spec
from tests.tokenizer_kinds import KINDS, NAMES, TEXTS

from .checkpoints import ours

#: Kinds that stand for all: `tests/data/test_tokenizers.py` has the others.
SOME = [
    "bytes",
    "bpe",
    "ranks of Llama 3",
    "SentencePiece of Llama 2",
    pytest.param("chars", marks=pytest.mark.full),
    pytest.param("tokenizer.json that begins texts", marks=pytest.mark.full),
]


def _model(tokenizer, **changes):
    usual = {"bias": False, "vocab": tokenizer.vocab, "init_std": 0.5}
    return ours(make_spec(**usual | changes))


@pytest.mark.parametrize("kind", SOME)
def test_transformers_reads_2000_texts_as_the_exported_tokenizer_does(kind, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = KINDS[kind](tmp_path)[0]
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

    # What lm-evaluation-harness takes for the beginning of a text is the first that there is.
    begins, ends = theirs.bos_token_id, theirs.eos_token_id
    assert (begins, ends) == (tokenizer.bos, tokenizer.separator)
    prefix = ends if begins is None else begins
    assert theirs.decode(prefix) == tokenizer.piece(prefix)
    assert len(theirs) == tokenizer.vocab

    back = open_model(tmp_path / "x").tokenizer
    assert [back.prompt(text) for text in TEXTS] == ids
    assert (back.bos, back.end, back.pad, back.stops) == (
        tokenizer.bos,
        tokenizer.end,
        tokenizer.pad,
        tokenizer.stops,
    )


@pytest.mark.parametrize("kind", SOME)
@torch.no_grad()
def test_transformers_generates_what_the_exported_model_does_and_stops_where_it_stops(
    kind, tmp_path
):
    """Each stop in turn is made the likeliest token about every other time."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = KINDS[kind](tmp_path)[0]
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
def test_every_family_reads_texts_as_the_exported_tokenizer_does(family, tmp_path):
    """Of qwen2 transformers' AutoTokenizer rebuilds the tokenizer: a note says so."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    tokenizer, texts = KINDS["SentencePiece of Llama 2"](tmp_path)[0], TEXTS[::20]
    model = _model(tokenizer, dim=16, heads=2, **FAMILIES[family])
    written = huggingface.write(model, tmp_path / "x", family, tokenizer)
    expected = [tokenizer.prompt(text) for text in texts]
    follows = PreTrainedTokenizerFast.from_pretrained(tmp_path / "x")
    assert follows(texts)["input_ids"] == expected
    found = AutoTokenizer.from_pretrained(tmp_path / "x")(texts)["input_ids"]
    assert [found == expected] == [not written.notes] == [family != "qwen2"]
    assert all("AutoTokenizer splits texts for qwen2 by rules of" in note for note in written.notes)


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

    tokenizer, _ = KINDS["tokenizer.json"](tmp_path)
    huggingface.write(_model(tokenizer), tmp_path / "x", None, tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "x")
    short, long = tokenizer.prompt("a"), tokenizer.prompt("the dog, where")
    pads = [tokenizer.pad] * (len(long) - len(short))
    assert theirs(["a", "the dog, where"], padding=True)["input_ids"] == [pads + short, long]
