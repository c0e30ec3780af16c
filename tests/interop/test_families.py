"""Families of Hugging Face models that the components cover: random configurations, both ways."""

import random

import pytest
import torch

from llama_ablate.interop import huggingface

from .checkpoints import tokens

#: Relative to the largest logit; or three times what transformers' own float32 errs.
CLOSE, TIMES = 5e-5, 3


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


def experts(draw, number, width=None):
    of_each = {} if width is None else {width: draw.choice([8, 16])}
    return {number: draw.choice([4, 6]), "num_experts_per_tok": draw.choice([2, 3]), **of_each}


def mistral(draw, of):
    return of | eps(draw) | wide_heads(draw) | {"sliding_window": draw.choice([None, 3, 7])}


def switched(draw, of):
    """Qwen's: windows where `use_sliding_window` says so, and `layer_types` in which layers."""
    on = draw.random() < 0.7
    own = kinds(draw, of) | {"use_sliding_window": True} if on else {}
    return of | eps(draw) | tied(draw) | own


def qwen3(draw, of):
    return switched(draw, of) | wide_heads(draw)


def ministral(draw, of):
    return of | eps(draw) | tied(draw) | wide_heads(draw) | kinds(draw, of)


def smollm3(draw, of):
    layers = {"no_rope_layers": [draw.choice([0, 1]) for _ in range(of["num_hidden_layers"])]}
    no_tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    return switched(draw, of) | draw.choice([layers, {"no_rope_layer_interval": 2}]) | no_tokens


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


def phi(draw, of):
    of = of | {"hidden_size": of["num_attention_heads"] * 8}
    return of | eps(draw, "layer_norm_eps") | {"partial_rotary_factor": draw.choice([0.25, 0.5, 1])}


def cohere(draw, of):
    scale = {"logit_scale": draw.choice([0.0625, 0.3, 1.0])}
    return of | eps(draw, "layer_norm_eps") | tied(draw) | scale


def mixtral(draw, of):
    return mistral(draw, of) | experts(draw, "num_local_experts")


def qwen3_moe(draw, of):
    dense = [i for i in range(1, of["num_hidden_layers"]) if draw.random() < 0.5]
    of = of | eps(draw) | tied(draw) | wide_heads(draw)
    own = {"norm_topk_prob": True, "mlp_only_layers": dense}
    return of | own | experts(draw, "num_experts", "moe_intermediate_size")


def deepseek_v3(draw, of):
    width = draw.choice([4, 8])
    return (
        of
        | experts(draw, "n_routed_experts", "moe_intermediate_size")
        | tied(draw)
        | {
            "num_key_value_heads": of["num_attention_heads"],
            "q_lora_rank": None,
            "kv_lora_rank": draw.choice([8, 16]),
            "qk_nope_head_dim": width,
            "v_head_dim": width,
            "qk_rope_head_dim": draw.choice([2, 4]),
            "rope_interleave": draw.random() < 0.5,
            "n_shared_experts": draw.choice([1, 2]),
            "first_k_dense_replace": draw.choice([0, of["num_hidden_layers"] - 1]),
            "routed_scaling_factor": draw.choice([1.0, 2.5]),
            "n_group": 1,
            "topk_group": 1,
        }
    )


#: family: class in transformers, and what draws a configuration
DRAWN = {
    "qwen2": ("Qwen2", switched),
    "qwen3": ("Qwen3", qwen3),
    "ministral": ("Ministral", ministral),
    "smollm3": ("SmolLM3", smollm3),
    "gemma2": ("Gemma2", gemma2),
    "phi": ("Phi", phi),
    "cohere": ("Cohere", cohere),
    "mixtral": ("Mixtral", mixtral),
    "qwen3_moe": ("Qwen3Moe", qwen3_moe),
    "deepseek_v3": ("DeepseekV3", deepseek_v3),
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
    found = model(tokens())
    if (worst := error(found, expected)) > CLOSE:
        exact = theirs.double()(tokens()).logits
        assert error(found, exact) <= TIMES * error(expected, exact), worst
    huggingface.write(model, tmp_path / "ours", family)
    eager = {"attn_implementation": "eager"} if family == "gemma2" else {}
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", **eager).eval()
    assert type(again) is type(theirs)
    assert error(again(tokens()).logits, expected) <= CLOSE
    assert huggingface.describe(tmp_path / "ours")[-1] == model.spec
