import json
import re
from dataclasses import asdict

import pytest
import torch
from safetensors.torch import load_file

from llama_ablate.errors import ConfigError
from llama_ablate.interop import huggingface
from llama_ablate.model.decoder import new_model
from tests.conftest import LLAMA, make_spec
from tests.laws import ALONE, model_of, name_of

from .checkpoints import FAMILIES, ours, tokens, transformers_model


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_logits_equal_those_of_transformers_read_and_written_again(name, tmp_path):
    from transformers import AutoModelForCausalLM

    theirs = transformers_model(name)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    model = huggingface.read(tmp_path / "theirs")
    expected = theirs(tokens()).logits
    assert expected.abs().max() > 1
    torch.testing.assert_close(model(tokens()), expected, rtol=0, atol=1e-4)

    family = re.split("[,-]", name)[0]
    huggingface.write(model, tmp_path / "ours", family, shard_bytes=20_000)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert type(again) is type(theirs)
    assert torch.equal(again(tokens()).logits, expected)
    assert huggingface.read(tmp_path / "ours").spec == model.spec


@torch.no_grad()
def test_a_model_that_keeps_documents_apart_is_exported_as_a_reader_of_one(tmp_path):
    from transformers import AutoModelForCausalLM

    model = new_model(make_spec(bias=False, separator=5, init_std=0.3), 0)
    huggingface.write(model, tmp_path / "x")
    document = torch.tensor([[5, 3, 8, 30, 2, 44]])
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "x").eval()
    several = torch.tensor([[17, 21, 4, *document[0]]])
    torch.testing.assert_close(theirs(document).logits, model(several)[:, 3:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_keep_the_precision_in_which_they_are_stored_unless_asked(dtype, tmp_path):
    transformers_model("llama-2").to(dtype).save_pretrained(tmp_path / "x")
    assert huggingface.read(tmp_path / "x").embedding.weight.dtype == dtype
    model = huggingface.read(tmp_path / "x", torch.float32)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    huggingface.write(huggingface.read(tmp_path / "x"), tmp_path / "y")
    assert {t.dtype for t in load_file(tmp_path / "y" / "model.safetensors").values()} == {dtype}
    config = json.loads((tmp_path / "y" / "config.json").read_text("utf-8"))
    assert config["dtype"] == str(dtype).removeprefix("torch.")


@torch.no_grad()
def test_gpt2s_first_checkpoints_have_no_prefix_and_carry_masks_along(tmp_path):
    from safetensors.torch import save_file

    theirs = transformers_model("gpt2")
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    state = {k.removeprefix("transformer."): v for k, v in load_file(file).items()}
    state |= {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64) for i in range(2)}
    save_file(state, file)
    expected = theirs(tokens()).logits
    torch.testing.assert_close(huggingface.read(tmp_path)(tokens()), expected, rtol=0, atol=1e-4)


@torch.no_grad()
def test_the_older_spellings_of_a_configuration_mean_the_same(tmp_path):
    """rope_theta and rope_scaling at the top, no head_dim: as checkpoints before 2025 have it."""
    theirs = transformers_model("llama-3.1")
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text("utf-8"))
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta")}
    config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    del config["head_dim"]
    file.write_text(json.dumps(config), "utf-8")
    expected = theirs(tokens()).logits
    torch.testing.assert_close(huggingface.read(tmp_path)(tokens()), expected, rtol=0, atol=1e-4)


def test_a_head_that_is_not_the_embedding_it_is_said_to_be_is_refused(tmp_path):
    from safetensors.torch import save_file

    huggingface.write(ours(make_spec(bias=False, tie=True)), tmp_path / "tied")
    file = tmp_path / "tied" / "model.safetensors"
    tensors = load_file(file)
    other = {"lm_head.weight": tensors["model.embed_tokens.weight"] + 1}
    save_file(tensors | other, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"lm_head\.weight holds others"):
        huggingface.read(tmp_path / "tied")


@torch.no_grad()
def test_an_interleaved_rotation_is_written_as_the_half_split_that_transformers_has(tmp_path):
    from transformers import AutoModelForCausalLM

    rope = {"name": "rope", "layout": "interleaved"}
    for name, attention in {"llama": "gqa", "qwen3": {"name": "gqa", "qk_norm": True}}.items():
        model = ours(make_spec(bias=False, position=rope, attention=attention, init_std=0.3))
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.data.uniform_(0.5, 1.5)
        assert huggingface.write(model, tmp_path / name).family == name
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / name).eval()
        torch.testing.assert_close(theirs(tokens()).logits, model(tokens()), rtol=0, atol=1e-4)


GPT2 = {
    "norm": "layernorm",
    "position": "learned",
    "attention": "mha",
    "feedforward": {"name": "gelu", "approximate": "tanh"},
    "tie": True,
}


RATES = {"embedding": 0.1, "attention": 0.2, "sublayer": 0.3}
NONE = dict.fromkeys(RATES, 0.0)


@pytest.mark.parametrize(
    ("family", "changes", "rates", "kept", "left_out"),
    [
        ("gpt2", GPT2, RATES, ["embedding", "attention", "sublayer"], []),
        ("gpt2", GPT2, NONE, [], []),  # transformers takes 0.1 for what a config.json leaves out
        ("llama", {"bias": False}, RATES, ["attention"], ["embedding 0.1, sublayer 0.3"]),
        ("llama", {"bias": False, "init": "torch"}, NONE, [], []),
    ],
)
def test_a_models_dropout_is_exported_and_read_back_or_a_note_says_what_is_left_out(
    family, changes, rates, kept, left_out, tmp_path
):
    from transformers import AutoModelForCausalLM

    model = ours(make_spec(**changes, dropout=rates))
    notes = huggingface.write(model, tmp_path / "x", family).notes
    assert notes == [f"{family} has no such dropout, so it is left out: {it}" for it in left_out]
    assert asdict(huggingface.read(tmp_path / "x").spec.dropout) == {
        place: rate * (place in kept) for place, rate in rates.items()
    }
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "x")
    layers = {m.p for m in theirs.modules() if isinstance(m, torch.nn.Dropout)}
    attention = {m.attention_dropout for m in theirs.modules() if hasattr(m, "attention_dropout")}
    assert layers | attention == ({rates[place] for place in kept} or {0.0})


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (
            {"attention": {"name": "gqa", "window": 5}},
            "llama",
            "llama cannot express attention 'gqa' with window = 5; families that can: mistral",
        ),
        ({"parametrization": "mup"}, "llama", "llama cannot express parametrization = mup"),
        ({"attention": {"pattern": [{"name": "gqa", "window": 5}, "gqa"]}}, "mistral", "window"),
        (
            {"norm": "dyt", "position": "t5"},
            None,
            "no family can: llama, the nearest, lacks norm 'dyt', position 't5'",
        ),
        ({}, "lama", "--to lama: no such family; allowed: gemma2, gpt2, llama, mistral, qwen2, "),
    ],
    ids=str,
)
def test_what_a_family_cannot_express_is_refused_by_name(changes, kind, message, tmp_path):
    model = ours(make_spec(**{"bias": False} | changes))
    with pytest.raises(ConfigError, match=re.escape(message)):
        huggingface.write(model, tmp_path / "x", kind)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.parametrize("combination", ALONE, ids=name_of)
@torch.no_grad()
def test_every_component_and_option_is_exported_as_it_computes_or_refused_by_name(
    combination, tmp_path
):
    from transformers import AutoModelForCausalLM

    model = model_of(combination, bias=False, init_std=0.3)
    (slot,) = [slot for slot in combination if combination[slot] != LLAMA[slot]] or ["none"]
    refused = ""
    try:
        huggingface.write(model, tmp_path / "x")
    except ConfigError as error:
        refused = error.message
    if refused:
        assert f"{slot} '" in refused
        assert not list(tmp_path.iterdir())
    else:
        eager = {"attn_implementation": "eager"}
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "x", **eager).eval()
        torch.testing.assert_close(theirs(tokens()).logits, model(tokens()), rtol=0, atol=1e-4)


@torch.no_grad()
def test_heads_that_do_not_divide_the_width_go_to_a_family_that_allows_them(tmp_path):
    from transformers import AutoModelForCausalLM

    spec = make_spec(dim=40, heads=6, head_dim=8, bias=False, init_std=0.3)
    assert huggingface.write(ours(spec), tmp_path / "x").family == "mistral"
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "x").eval()
    expected = ours(spec)(tokens())
    torch.testing.assert_close(theirs(tokens()).logits, expected, rtol=0, atol=1e-4)
    lost = "llama cannot express dim 40 with 6 heads, which do not divide it; families that can: "
    with pytest.raises(ConfigError, match=f"{lost}mistral"):
        huggingface.write(ours(spec), tmp_path / "y", "llama")
    assert not (tmp_path / "y").exists()


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine").write_text("keep", "utf-8")
    with pytest.raises(ConfigError, match="is there already and not empty"):
        huggingface.write(ours(make_spec(bias=False)), tmp_path / "x")
    assert [p.name for p in tmp_path.rglob("*")] == ["x", "mine"]


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fails(*_given, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.save_torch_state_dict", fails)
    with pytest.raises(OSError, match="No space left"):
        huggingface.write(ours(make_spec(bias=False)), tmp_path / "x")
    assert not list(tmp_path.iterdir())
