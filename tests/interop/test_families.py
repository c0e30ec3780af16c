"""Families of Hugging Face models that the components cover: random configurations, both ways."""

import itertools
import json
import random

import pytest
import torch

from llama_ablate.errors import ConfigError
from llama_ablate.interop import huggingface
from llama_ablate.interop.canonical_spec import canonical
from llama_ablate.interop.families import FAMILIES
from llama_ablate.model.decoder import build, new_model
from tests.conftest import make_spec

from .checkpoints import SIZES, tokens

CLOSE = 5e-5  # of the largest logit


def sizes(draw):
    """Return sizes that every family has."""
    heads = draw.choice([2, 4, 6])
    return {
        "vocab_size": 61,
        "hidden_size": heads * draw.choice([4, 8]),
        "num_hidden_layers": draw.choice([1, 2, 3]),
        "num_attention_heads": heads,
        "num_key_value_heads": draw.choice([1, 2, heads]),
        "intermediate_size": draw.choice([24, 40]),
        "max_position_embeddings": 64,
        "initializer_range": 0.3,
        "rope_theta": draw.choice([1e3, 1e4, 5e5]),
    }


def eps(draw, key="rms_norm_eps"):
    return {key: draw.choice([1e-5, 1e-6])}


def tied(draw):
    return {"tie_word_embeddings": draw.random() < 0.5}


def wide_heads(draw):
    return {"head_dim": draw.choice([8, 16])}


def kinds(draw, of):
    """Return the kind of each layer."""
    drawn = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(3)]
    return {
        "layer_types": drawn[: of["num_hidden_layers"]],
        "sliding_window": draw.choice([3, 7]),
    }


def switched(draw, of):
    """Qwen's: windows where `use_sliding_window` says so, and `layer_types` in which layers."""
    on = draw.random() < 0.7
    own = kinds(draw, of) | {"use_sliding_window": True} if on else {}
    return of | eps(draw) | tied(draw) | own


def qwen3(draw, of):
    return switched(draw, of) | wide_heads(draw)


def gemma2(draw, of):
    width = draw.choice([8, 16])
    return (
        of
        | eps(draw)
        | tied(draw)
        | draw.choice([kinds(draw, of), {"sliding_window": 5}])
        | {
            "head_dim": width,
            "query_pre_attn_scalar": width,
            "attn_logit_softcapping": draw.choice([None, 5.0, 50.0]),
            "final_logit_softcapping": draw.choice([None, 5.0, 30.0]),
            "hidden_activation": draw.choice(["gelu_pytorch_tanh", "gelu"]),
            "attn_implementation": "eager",
        }
    )


#: family: class in transformers, and what draws a configuration
DRAWN = {
    "qwen2": ("Qwen2", switched),
    "qwen3": ("Qwen3", qwen3),
    "gemma2": ("Gemma2", gemma2),
}
FAST = 1
EACH = [
    pytest.param(family, seed, marks=[] if seed < FAST else [pytest.mark.full])
    for family in DRAWN
    for seed in range(20)
]


def theirs_of(family, seed):
    """Return a model of transformers of a random configuration, with random weights."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    draw = random.Random(seed)
    name, configuration = DRAWN[family]
    config = getattr(transformers, f"{name}Config")(**configuration(draw, sizes(draw)))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("lm_head.bias"):
            parameter.data.zero_()
        elif parameter.dim() == 1 and "inv_freq" not in name:  # all alike, else
            parameter.data.uniform_(*((-0.5, 0.5) if family == "gemma2" else (0.5, 1.5)))
    return model


def error(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


@pytest.mark.parametrize(("family", "seed"), EACH)
@torch.no_grad()
def test_a_random_configuration_is_read_and_exported_as_transformers_computes_it(
    family, seed, tmp_path
):
    from transformers import AutoModelForCausalLM

    theirs = theirs_of(family, seed)
    theirs.save_pretrained(tmp_path / "theirs")
    expected = theirs(tokens()).logits
    model = huggingface.read(tmp_path / "theirs")
    assert error(model(tokens()), expected) <= CLOSE
    huggingface.write(model, tmp_path / "ours", family)
    eager = {"attn_implementation": "eager"} if family == "gemma2" else {}
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", **eager).eval()
    assert type(again) is type(theirs)
    assert error(again(tokens()).logits, expected) <= CLOSE
    assert canonical(huggingface.describe(tmp_path / "ours")[-1]) == canonical(model.spec)


#: What there is no reading without: a default that no component computes, or that is no size here.
SAID = {
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8},
    "qwen3": {"head_dim": 8},
}


@pytest.mark.parametrize("family", DRAWN)
def test_what_a_configuration_leaves_out_is_what_transformers_takes(family, tmp_path):
    import transformers

    given = SIZES | SAID.get(family, {})
    whole = getattr(transformers, f"{DRAWN[family][0]}Config")(**given).to_dict()
    specs = []
    for config in (whole, given | {"model_type": family}):
        (tmp_path / "config.json").write_text(json.dumps(config, default=str), "utf-8")
        specs.append(huggingface.describe(tmp_path)[-1])
    assert specs[0] == specs[1]


def test_what_no_component_computes_is_refused_by_its_key():
    written = FAMILIES["gemma2"].config(make_spec(bias=False))
    for key, value in (("query_pre_attn_scalar", 144), ("attention_bias", True)):
        with pytest.raises(ConfigError, match=f"{key} .*; supported: "):
            FAMILIES["gemma2"].model(written | {key: value})


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(name, marks=[] if name == "gemma2" else [pytest.mark.full])
        for name in sorted(FAMILIES)
    ],
)
def test_whatever_a_key_holds_a_configuration_is_read_or_refused(kind, tmp_path):
    written = FAMILIES[kind].config(make_spec(bias=False))
    keys = {*written, "layer_types", "use_sliding_window", "no_rope_layers", "max_window_layers"}
    values = [None, -1, 0, 1 << 70, 2.5, "x", [], ["x"], {}, True, [None] * 2]
    refusals = []
    for key, value in itertools.product(sorted(keys - {"model_type"}), values):
        (tmp_path / "config.json").write_text(json.dumps(written | {key: value}), "utf-8")
        try:
            family, config, spec = huggingface.describe(tmp_path)
            assert [*family.entries([*build(spec, "meta").state_dict()], config)]
        except ConfigError as error:
            refusals.append(error.message)
    assert len(refusals) > len(keys)
    assert [message for message in refusals if "\n" in message] == []


@torch.no_grad()
def test_a_model_made_here_is_exported_to_the_family_that_has_its_parts(tmp_path):
    from transformers import AutoModelForCausalLM

    parts = {
        "attention": {"pattern": [{"name": "gqa", "window": 5}, "gqa"]},
        "feedforward": {"name": "geglu", "approximate": "tanh"},
        "block": "sandwich",
    }
    model = new_model(make_spec(bias=False, init_std=0.3, **parts), 0)
    for tensor in model.state_dict().values():
        if tensor.dim() == 1:
            tensor.uniform_(0.5, 1.5)
    assert huggingface.write(model, tmp_path / "x").family == "gemma2"
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "x", attn_implementation="eager")
    assert error(theirs.eval()(tokens()).logits, model.eval()(tokens())) <= CLOSE
