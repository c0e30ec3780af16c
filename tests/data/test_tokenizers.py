"""Every kind of tokenizer against the library that its format is of."""

import json
import subprocess
import sys

import pytest
import sentencepiece
import tokenizers

from llama_ablate.commands.cli import main
from llama_ablate.data.tokenizer_files import read, read_saved
from llama_ablate.errors import ConfigError
from tests.in_process import own_registries, run_in_process
from tests.texts import sentences
from tests.tokenizer_kinds import KINDS, TEXTS, sentencepiece_file


@pytest.mark.parametrize("kind", KINDS)
def test_the_ids_of_2000_texts_are_those_of_the_formats_own_library(kind, tmp_path, volume):
    """Of every fourth of them in the fast tier."""
    ours, encode = KINDS[kind](tmp_path)
    texts = TEXTS[:: volume(4, 1, 1)]
    expected = [list(encode(text)) for text in texts]
    assert [ours.encode(text).tolist() for text in texts] == expected
    assert [ids.tolist() for ids in ours.encode_many(texts)] == expected
    if ours.unknown is None:
        assert [ours.decode(ids) for ids in expected] == texts
    again = read_saved(ours.to_json())
    assert [again.encode(text).tolist() for text in texts] == expected
    known = ("vocab", "bos", "end", "pad", "stops", "special", "unknown")
    assert [getattr(again, name) for name in known] == [getattr(ours, name) for name in known]


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram"},
        {"model_type": "unigram", "byte_fallback": True, "normalization_rule_name": "nmt_nfkc"},
        {"model_type": "word"},
        {"model_type": "bpe", "user_defined_symbols": ["cat"]},
        {"model_type": "bpe", "treat_whitespace_as_suffix": True},
    ],
    ids=["unigram", "default with bytes", "words", "symbols", "suffixes"],
)
def test_a_sentencepiece_model_of_any_kind_is_read_by_its_package_and_not_exported(
    options, tmp_path
):
    file = sentencepiece_file(tmp_path, **options)
    own = sentencepiece.SentencePieceProcessor(model_file=str(file))
    ours = read(file)
    again = read_saved(ours.to_json())
    for text in TEXTS[:300]:
        ids = own.encode(text)
        assert ours.encode(text).tolist() == again.encode(text).tolist() == ids
        assert ours.decode(ids) == own.decode(ids)
    assert (ours.vocab, ours.unknown, ours.bos) == (len(own), own.unk_id(), own.bos_id())
    assert ours.decode([ours.bos, *own.encode("the cat")]).startswith("<s>")
    assert ours.end == ours.special["</s>"] == own.eos_id()
    assert ours.piece(own.piece_to_id("<s>")) == "<s>"
    with pytest.raises(ConfigError, match=r"other rules than Llama.s has no equal"):
        ours.expressed()


PLUGIN = """
import tokenizers
from llama_ablate import TOKENIZERS

@TOKENIZERS.register("letters")
def letters():
    \"\"\"Take the letters of the alphabet.\"\"\"
    vocab = {character: i for i, character in enumerate("?\\0\\n abcdefghijklmnopqrstuvwxyz.,")}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="?"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\\s\\S]"), "isolated")
    model.decoder = tokenizers.decoders.Fuse()
    return model
"""


def test_a_plugins_tokenizer_works_from_plan_to_export(experiment_file, tmp_path):
    plugin = tmp_path / "letters.py"
    plugin.write_text(PLUGIN)
    (tmp_path / "book.txt").write_text(sentences(600))
    corpus = {"name": "files", "path": str(tmp_path / "book.txt")}
    file = experiment_file(
        data=json.dumps({"corpus": corpus, "tokenizer": "letters"}), variants="{}", seeds="1"
    )
    with_plugin = ["--plugin", str(plugin)]
    with own_registries():
        assert run_in_process(file, tmp_path, *with_plugin) == 0
        (run,) = (tmp_path / "tiny" / "runs").iterdir()
        assert main(["export", str(run), str(tmp_path / "x"), *with_plugin]) == 0
    exported = tokenizers.Tokenizer.from_file(str(tmp_path / "x" / "tokenizer.json"))
    assert exported.decode(exported.encode("the mat.").ids) == "the mat."


def test_files_are_read_without_optional_packages_except_sentencepieces_own(tmp_path):
    """With core dependencies alone: nothing imports tiktoken or transformers."""
    texts = ["the cat", "an \u00e9 \U0001f642"]
    expected = {}
    for kind in ("ranks of Llama 3", "llama2.c"):
        ours, _ = KINDS[kind](tmp_path)
        expected[ours.to_json()] = [ours.encode(text).tolist() for text in texts]
    (tmp_path / "expected.json").write_text(json.dumps([texts, list(expected.items())]))
    code = (
        "import json, sys; sys.modules |= dict.fromkeys(['tiktoken', 'sentencepiece', "
        "'transformers']); from llama_ablate.data.tokenizer_files import read_saved; "
        "texts, rows = json.load(open(sys.argv[1])); "
        "assert all([read_saved(saved).encode(text).tolist() for text in texts] == ids "
        "for saved, ids in rows)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "expected.json"], check=True)
