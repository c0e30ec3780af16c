import json
import re
import struct
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from llama_ablate.commands.cli import main
from llama_ablate.errors import ConfigError
from llama_ablate.files.strict_json import sealed
from llama_ablate.interop.loader import open_model
from tests.in_process import run_in_process

from .checkpoints import meta_tensors, tokens, transformers_model, write_llama3, write_meta


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


def _header(claimed):
    """A safetensors file whose header claims what the file does not hold."""

    def change(folder):
        head = json.dumps(claimed).encode()
        file = folder / "model.safetensors"
        file.write_bytes(struct.pack("<Q", len(head)) + head)

    return change


def _yarn(**keys):
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
    return _config(rope_parameters=rope | keys)


HUGE = {"x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_cut, "is damaged or no safetensors file"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x80\x04pickle"), "is damaged or no"),
        (_header(HUGE), "is damaged or no safetensors file"),
        (_only_pickle, "pytorch_model.bin is pickled and may hold code"),
        (_index({"a": "../../etc/passwd"}), "names a file outside its folder: ../../etc/passwd"),
        (_index({"a": "/etc/passwd"}), "names a file outside its folder: /etc/passwd"),
        (_index({"a": "model-00001-of-00002.safetensors"}), "lacks the shard model-00001-of-00002"),
        (_index(["a"]), "holds no weight_map"),
        (_config(model_type="mamba2"), "model_type 'mamba2' is not known; allowed: gemma2, gpt2"),
        (_config(model_type="gpt2"), "the key 'n_embd' is missing"),
        (_config(model_type="qwen3"), "lacks model.layers.0.self_attn.q_norm.weight"),
        (_config(model_type="gone"), "model_type 'None' is not known"),
        (_config(hidden_size="gone"), "config.json': the key 'hidden_size' is missing"),
        (_config(hidden_size="32"), "config.json' describes no model: dim: '32'"),
        (_config(num_hidden_layers=3), "it lacks model.layers.2."),
        (_config(num_hidden_layers=1), "it has besides model.layers.1."),
        (_config(vocab_size=62), "is 61 x 32, where its configuration asks for 62 x 32"),
        (_config(hidden_act="gelu_new"), "hidden_act is gelu_new; supported: silu, gelu, relu"),
        (_config(rope_parameters={"rope_type": "dynamic", "factor": 2.0}), "rope_type is dynamic;"),
        (_config(rope_parameters={"rope_type": "yarn", "factor": 2.0}), "original_max_position_e"),
        (_yarn(attention_factor=1.0), "attention_factor is 1; supported: 1.06931, which is 1 + ln"),
        (_yarn(mscale=1.0, mscale_all_dim=0.5), "attention_factor is 1.0335; supported: 1.06931"),
        (_yarn(beta_fast="quick"), "'quick'"),
        (_config(rope_parameters="fast"), "has a value of the wrong kind"),
        (_config(attention_bias=True), "attention_bias is true and mlp_bias another"),
        (_config(quantization_config={"bits": 4}), "the checkpoint is quantized"),
        (lambda f: (f / "config.json").write_text("{", "utf-8"), "config.json' is no JSON"),
        (lambda f: (f / "config.json").write_text("[" * 100_000, "utf-8"), "is no JSON"),
    ],
    ids=[f"case {i}" for i in range(28)],
)
def test_checkpoints_that_are_cut_foreign_or_hostile_are_refused_in_one_line(
    change, message, checkpoint, capsys
):
    change(checkpoint)
    assert main(["generate", str(checkpoint), "--prompt", "x"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("kind", ["smollm", "mixtral2", "gpt_neox", "opt", "gpt_neo", "gemma3"])
def test_the_name_of_another_architecture_is_not_taken_for_a_misspelling(kind, checkpoint, capsys):
    """Whoever followed such a hint would get numbers, and wrong ones."""
    _config(model_type=kind)(checkpoint)
    assert main(["summary", str(checkpoint)]) == 2
    err = capsys.readouterr().err
    assert f"model_type '{kind}' is not known; allowed: gemma2, gpt2, llama, mistral" in err
    assert "did you mean" not in err


def test_a_checkpoint_larger_than_memory_is_refused_before_it_is_read(checkpoint, monkeypatch):
    class Little:
        available = 20_000

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Little)
    with pytest.raises(ConfigError, match=r"needs 0\.0 GiB for its weights; 0\.0 GiB are free"):
        open_model(checkpoint)


def test_a_checkpoint_that_claims_more_than_this_machine_has_is_refused(tmp_path):
    """A whole Llama of 8 TB: its file is sparse, so it takes no disk, and its header is true."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 65536,
                "num_hidden_layers": 1,
                "num_attention_heads": 512,
                "intermediate_size": 10_000_000,
                "vocab_size": 100_000,
            }
        ),
        "utf-8",
    )
    d, f, v = 65536, 10_000_000, 100_000
    shapes = {"embed_tokens": [v, d], "norm": [d]}
    layer = {
        "self_attn.q_proj": [d, d],
        "self_attn.k_proj": [d, d],
        "self_attn.v_proj": [d, d],
        "self_attn.o_proj": [d, d],
        "mlp.gate_proj": [f, d],
        "mlp.up_proj": [f, d],
        "mlp.down_proj": [d, f],
        "input_layernorm": [d],
        "post_attention_layernorm": [d],
    }
    shapes |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    names = {f"model.{n}.weight": s for n, s in shapes.items()} | {"lm_head.weight": [v, d]}
    head, at = {}, 0
    for name, shape in names.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        try:
            file.truncate(8 + len(text) + at)
        except OSError:
            pytest.skip(f"this file system holds no sparse file of {at:,} bytes")
    with pytest.raises(ConfigError, match=r"needs 7,437\.0 GiB for its weights; [\d.]+ GiB"):
        open_model(tmp_path)


def test_a_tokenizer_that_does_not_belong_is_refused(checkpoint, llama3_tokenizer):
    with pytest.raises(ConfigError, match=r"the tokenizer has 128,256 tokens and .* 61: they"):
        _ = open_model(checkpoint, tokenizer=llama3_tokenizer).tokenizer


def test_a_model_without_a_tokenizer_says_how_to_give_one(checkpoint):
    with pytest.raises(ConfigError, match="give one with --tokenizer FILE"):
        _ = open_model(checkpoint).tokenizer


@pytest.mark.parametrize("where", ["nowhere", "empty", "model.txt"])
def test_what_is_no_model_is_told_apart_by_what_a_model_would_have(where, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.txt").write_text("x", "utf-8")
    with pytest.raises(ConfigError, match=re.escape("a run (record.json), a Hugging Face")):
        open_model(tmp_path / where)


def test_a_finished_run_is_opened_by_label_id_or_folder(
    unsealed, experiment_file, tmp_path, capsys, monkeypatch
):
    out = tmp_path / "results"
    assert run_in_process(experiment_file(), out) == 0
    capsys.readouterr()
    root = out / "tiny"
    plan = json.loads((root / "plan.json").read_text("utf-8"))
    first = plan["tables"][0]["runs"][0]["id"]
    folder = next((root / "runs").glob(f"*{first}"))
    called = (root / name for name in ("baseline", "rmsnorm", "rmsnorm (baseline)", first))
    opened = [open_model(path) for path in (*called, folder)]
    for other in opened[1:]:
        assert torch.equal(other.model.embedding.weight, opened[0].model.embedding.weight)
    assert opened[0].tokenizer.vocab == 256
    with monkeypatch.context() as there:
        there.chdir(folder.parent)
        assert open_model(Path(folder.name)).title == opened[0].title
    with pytest.raises(ConfigError, match="did you mean 'baseline'"):
        open_model(root / "basline")
    with pytest.raises(ConfigError, match="is a whole experiment; name one of its variants"):
        open_model(root)
    text = (root / "plan.json").read_text("utf-8")
    changed = json.dumps(unsealed(root / "plan.json"))
    renamed = json.loads(changed.replace('"label": "baseline"', '"label": "base/line"'))
    (root / "plan.json").write_bytes(sealed(renamed, "plan.json"))
    assert open_model(root / "base" / "line").model.spec == opened[0].model.spec
    (root / "plan.json").write_text("[]", "utf-8")
    with pytest.raises(ConfigError, match=r"plan\.json: damaged, it holds no mapping"):
        open_model(root / "baseline")
    (root / "plan.json").write_text(text, "utf-8")
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(ConfigError, match=r"weights\.safetensors: damaged, not what"):
        open_model(folder)


def test_an_exported_run_brings_its_tokenizer_and_computes_the_same(
    experiment_file, tmp_path, capsys
):
    out = tmp_path / "results"
    for tokenizer in ("bytes", "chars", "{name: bpe, vocab: 300}"):
        file = experiment_file(
            variants="{design: list, entries: [{label: llama, norm: rmsnorm}, "
            "{label: other, norm: layernorm}]}",
            base="llama2-tiny",
            seeds="1",
            name=f"t{tokenizer[0:5].strip('{')}",
            data=f"{{corpus: {{name: files, path: '{tmp_path / 'book.txt'}'}}, "
            f"tokenizer: {tokenizer}}}",
        )
        assert run_in_process(file, out) == 0
        root = next(p for p in out.iterdir() if not (p / "seen").exists())
        (root / "seen").touch()
        folder = tmp_path / "exported" / root.name
        assert main(["export", str(root / "llama"), str(folder)]) == 0
        capsys.readouterr()
        ours, theirs = open_model(root / "llama"), open_model(folder)
        ids = ours.tokenizer.prompt("the cat sat on")
        assert theirs.tokenizer.prompt("the cat sat on") == ids
        assert theirs.tokenizer.decode(ids) == "the cat sat on"
        tokens = torch.tensor([ids])
        assert torch.equal(ours.model(tokens), theirs.model(tokens))


def test_summary_counts_a_checkpoint_as_it_does_a_preset(tmp_path, capsys):
    write_meta(tmp_path / "m", meta_tensors())
    assert main(["summary", str(tmp_path / "m"), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["total"]["parameters"] == sum(t.numel() for t in meta_tensors().values())


def test_a_stored_head_that_is_not_the_embedding_contradicts_tied_weights(checkpoint):
    _config(tie_word_embeddings=True)(checkpoint)
    with pytest.raises(ConfigError, match=r"shares the embedding's weights, but lm_head"):
        open_model(checkpoint)


def test_mixed_precisions_are_opened_in_the_widest(checkpoint):
    file = checkpoint / "model.safetensors"
    state = load_file(file)
    save_file({k: v if v.dim() > 1 else v.half() for k, v in state.items()}, file)
    assert open_model(checkpoint).model.embedding.weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"use_sliding_window": True, "sliding_window": 5, "layer_types": None}, None),
        (
            {
                "use_sliding_window": True,
                "sliding_window": 5,
                "layer_types": None,
                "max_window_layers": 0,
            },
            5,
        ),
        ({"use_sliding_window": False, "sliding_window": 5, "layer_types": None}, None),
    ],
    ids=["from layer 28 on", "in all layers", "switched off"],
)
@torch.no_grad()
def test_qwens_windows_are_read_as_transformers_reads_them(changes, window, tmp_path):
    from transformers import AutoModelForCausalLM

    transformers_model("qwen2").save_pretrained(tmp_path / "x")
    values = json.loads((tmp_path / "x" / "config.json").read_text("utf-8")) | changes
    values = {k: v for k, v in values.items() if v is not None}
    (tmp_path / "x" / "config.json").write_text(json.dumps(values), "utf-8")
    model = open_model(tmp_path / "x").model
    assert model.spec.attention["window"] == window
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "x").eval()
    torch.testing.assert_close(model(tokens()), theirs(tokens()).logits, rtol=0, atol=1e-4)
    if window:
        from llama_ablate.interop import huggingface

        assert huggingface.write(model, tmp_path / "y").family == "qwen2"
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "y").eval()
        assert torch.equal(again(tokens()).logits, theirs(tokens()).logits)


def test_a_tokenizer_given_stands_in_for_a_damaged_one_beside_the_model(tmp_path, capsys):
    write_llama3(tmp_path / "x")
    good = tmp_path / "good.model"
    good.write_bytes((tmp_path / "x" / "tokenizer.model").read_bytes())
    (tmp_path / "x" / "tokenizer.model").write_bytes(b"damaged")
    command = ["generate", str(tmp_path / "x"), "--prompt", "the", "--max-tokens", "1"]
    assert main(command) == 2
    assert "tokenizer.model' cannot be read" in capsys.readouterr().err
    assert main([*command, "--tokenizer", str(good)]) == 0
    assert main(["summary", str(tmp_path / "x")]) == 0


def test_names_of_several_lines_are_shown_in_one(checkpoint, capsys):
    _config(model_type="a\nb\x1b[31m")(checkpoint)
    assert main(["summary", str(checkpoint)]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "a\\nb\\x1b[31m" in err


def test_weights_that_are_no_numbers_are_told_and_not_decoded(tmp_path, capsys):
    state = meta_tensors(vocab=128_256)
    state["norm.weight"][0] = float("nan")
    folder = write_llama3(tmp_path / "x")
    torch.save(state, folder / "consolidated.00.pth")
    assert main(["generate", str(folder), "--prompt", "the", "--temperature", "0"]) == 2
    assert "the model's logits are not finite numbers" in capsys.readouterr().err
