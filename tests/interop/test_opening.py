import json
import re
import shutil

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentencepiece import SentencePieceProcessor

from llama_ablate.commands.cli import main
from llama_ablate.errors import ConfigError
from llama_ablate.interop.loader import open_model
from tests.in_process import run_in_process

from .checkpoints import META_PARAMS, meta_tensors, tokens, transformers_model, write_meta


@pytest.fixture
def checkpoint(tmp_path):
    transformers_model("llama-2").save_pretrained(tmp_path / "x")
    return tmp_path / "x"


def _config(**changes):
    def change(folder):
        file = folder / "config.json"
        values = json.loads(file.read_text("utf-8")) | changes
        file.write_text(json.dumps({k: v for k, v in values.items() if v != "gone"}), "utf-8")

    return change


def _cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _index(weight_map):
    def change(folder):
        values = json.dumps({"weight_map": weight_map})
        (folder / "model.safetensors.index.json").write_text(values, "utf-8")

    return change


def _only_pickle(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _yarn(**keys):
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
    return _config(rope_parameters=rope | keys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_cut, "is damaged or no safetensors file"),
        (_only_pickle, "pytorch_model.bin is pickled and may hold code"),
        (_index({"a": "../../etc/passwd"}), "names a file outside its folder: ../../etc/passwd"),
        (_index({"a": "model-00001-of-00002.safetensors"}), "lacks the shard model-00001-of-00002"),
        (_config(model_type="gemma3"), "model_type 'gemma3' is not known; allowed: gemma2, gpt2"),
        (_config(model_type="a\nb\x1b[31m"), "a\\nb\\x1b[31m"),
        (_config(tie_word_embeddings=True), "shares the embedding's weights, but lm_head"),
        (_config(hidden_size="gone"), "config.json': the key 'hidden_size' is missing"),
        (_config(hidden_size="32"), "config.json' describes no model: dim: '32'"),
        (_config(num_hidden_layers=1), "it has besides model.layers.1."),
        (_config(vocab_size=62), "is 61 x 32, where its configuration asks for 62 x 32"),
        (_config(hidden_act="gelu_new"), "hidden_act is gelu_new; supported: silu, gelu, relu"),
        (_yarn(attention_factor=1.0), "attention_factor is 1; supported: 1.06931, which is 1 + ln"),
        (_config(attention_bias=True), "attention_bias is true and mlp_bias another"),
        (_config(quantization_config={"bits": 4}), "the checkpoint is quantized"),
        (lambda f: (f / "config.json").write_text("[" * 100_000, "utf-8"), "is no JSON"),
    ],
    ids=[f"case {i}" for i in range(16)],
)
def test_checkpoints_that_are_cut_foreign_or_hostile_are_refused_in_one_line(
    change, message, checkpoint, capsys
):
    change(checkpoint)
    assert main(["generate", str(checkpoint), "--prompt", "x"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
    assert "did you mean" not in err  # a similar family computes other numbers


def test_a_checkpoint_larger_than_memory_is_refused_before_it_is_read(checkpoint, monkeypatch):
    class Little:
        available = 20_000

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Little)
    with pytest.raises(ConfigError, match=r"needs 0\.0 GiB; 0\.0 GiB are free"):
        open_model(checkpoint)


def test_a_tokenizer_that_is_missing_or_does_not_belong_is_refused(checkpoint, llama2_tokenizer):
    with pytest.raises(ConfigError, match=r"the tokenizer has \d+ tokens and .* 61: they"):
        _ = open_model(checkpoint, tokenizer=llama2_tokenizer).tokenizer
    with pytest.raises(ConfigError, match="give one with --tokenizer FILE"):
        _ = open_model(checkpoint).tokenizer


@pytest.mark.parametrize("where", ["nowhere", "empty"])
def test_what_is_no_model_is_told_apart_by_what_a_model_would_have(where, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=re.escape("a run (record.json), a Hugging Face")):
        open_model(tmp_path / where)


def test_a_finished_run_is_opened_by_label_id_or_folder(experiment_file, tmp_path):
    assert run_in_process(experiment_file(), tmp_path) == 0
    root = tmp_path / "tiny"
    plan = json.loads((root / "plan.json").read_text("utf-8"))
    first = plan["tables"][0]["runs"][0]["id"]
    folder = next((root / "runs").glob(f"*{first}"))
    called = (root / name for name in ("baseline", "rmsnorm", "rmsnorm (baseline)", first))
    opened = [open_model(path) for path in (*called, folder)]
    for other in opened[1:]:
        assert torch.equal(other.model.embedding.weight, opened[0].model.embedding.weight)
    assert opened[0].tokenizer.vocab == 256
    with pytest.raises(ConfigError, match="did you mean 'baseline'"):
        open_model(root / "basline")
    with pytest.raises(ConfigError, match="is a whole experiment; name one of its variants"):
        open_model(root)
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ConfigError, match=r"weights\.safetensors: damaged, not what"):
        open_model(folder)


def test_an_exported_run_brings_its_tokenizer_and_computes_the_same(experiment_file, tmp_path):
    corpus = f"{{name: files, path: '{tmp_path / 'book.txt'}'}}"
    data = f"{{corpus: {corpus}, tokenizer: {{name: bpe, vocab: 300}}}}"
    file = experiment_file("{}", base="llama2-tiny", seeds="1", data=data)
    assert run_in_process(file, tmp_path) == 0
    run = tmp_path / "tiny" / "baseline"
    assert main(["export", str(run), str(tmp_path / "exported")]) == 0
    ours, theirs = open_model(run), open_model(tmp_path / "exported")
    ids = ours.tokenizer.prompt("the cat sat on")
    assert theirs.tokenizer.prompt("the cat sat on") == ids
    assert theirs.tokenizer.decode(ids) == "the cat sat on"
    assert torch.equal(ours.model(torch.tensor([ids])), theirs.model(torch.tensor([ids])))


def test_mixed_precisions_are_opened_in_the_widest(checkpoint):
    file = checkpoint / "model.safetensors"
    state = load_file(file)
    save_file({k: v if v.dim() > 1 else v.half() for k, v in state.items()}, file)
    assert open_model(checkpoint).model.embedding.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"use_sliding_window": True}, None),  # from layer 28 on
        ({"use_sliding_window": True, "max_window_layers": 0}, 5),
        ({"use_sliding_window": False}, None),
    ],
)
@torch.no_grad()
def test_qwens_windows_are_read_as_transformers_reads_them(changes, window, tmp_path):
    from transformers import AutoModelForCausalLM

    transformers_model("qwen2").save_pretrained(tmp_path)
    _config(sliding_window=5, layer_types="gone", **changes)(tmp_path)
    model = open_model(tmp_path).model
    assert model.spec.attention["window"] == window
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(model(tokens()), theirs(tokens()).logits, rtol=0, atol=1e-4)


@pytest.fixture
def with_tokenizer(tmp_path, llama2_tokenizer):
    """Write a checkpoint in Meta's layout beside a tokenizer: a function of its last gains."""
    vocab = SentencePieceProcessor(model_file=str(llama2_tokenizer)).get_piece_size()

    def write(gain=1.0):
        state = meta_tensors(vocab=vocab) | {"norm.weight": torch.full((32,), gain)}
        folder = write_meta(tmp_path / "x", state, params=META_PARAMS | {"vocab_size": vocab})
        shutil.copy(llama2_tokenizer, folder)
        return folder

    return write


def test_a_tokenizer_given_stands_in_for_a_damaged_one(with_tokenizer, llama2_tokenizer, capsys):
    folder = with_tokenizer()
    (folder / "tokenizer.model").write_bytes(b"damaged")
    command = ["generate", str(folder), "--prompt", "the", "--max-tokens", "1"]
    assert main(command) == 2
    assert "tokenizer.model' cannot be read" in capsys.readouterr().err
    assert main([*command, "--tokenizer", str(llama2_tokenizer)]) == 0
    assert main(["summary", str(folder)]) == 0


def test_weights_that_are_no_numbers_are_told_and_not_decoded(with_tokenizer, capsys):
    folder = with_tokenizer(gain=float("nan"))
    assert main(["generate", str(folder), "--prompt", "the", "--temperature", "0"]) == 2
    assert "the model's logits are not finite numbers" in capsys.readouterr().err
