"""The recipes of `experiments/recipes`: their parameters, and their layers beside transformers'."""

import re
from pathlib import Path

import pytest
import torch
import transformers

from llama_ablate.config import experiment
from llama_ablate.design import plan
from llama_ablate.model.components import spec_from
from llama_ablate.model.decoder import build, new_model
from tests.test_run_ids import stand_in_text  # noqa: F401

FOLDER = Path(__file__).parents[1] / "experiments" / "recipes"
#: Models of transformers, and the names that our tensors have there.
PEERS = {
    "olmo2_10m": (
        "Olmo2",
        {
            "embedding": "model.embed_tokens",
            "head": "lm_head",
            r"^norm\.gain": "model.norm.weight",
            r"blocks\.": "model.layers.",
            r"attn_norm\.gain": "post_attention_layernorm.weight",
            r"ffn_norm\.gain": "post_feedforward_layernorm.weight",
            r"attn\.([qk])_norm\.norm\.gain": r"self_attn.\1_norm.weight",
            r"attn\.([qkv])\.": r"self_attn.\1_proj.",
            r"attn\.out": "self_attn.o_proj",
            r"ffn\.(\w+)\.": r"mlp.\1_proj.",
        },
    ),
    "pythia_14m": (
        "GPTNeoX",
        {
            "embedding": "gpt_neox.embed_in",
            "head": "lm_head",
            r"^norm\.": "gpt_neox.final_layer_norm.",
            r"blocks\.": "gpt_neox.layers.",
            r"attn_norm\.": "input_layernorm.",
            r"ffn_norm\.": "post_attention_layernorm.",
            r"attn\.([qkv])\.": r"attention.query_key_value.",
            r"attn\.out": "attention.dense",
            r"ffn\.up": "mlp.dense_h_to_4h",
            r"ffn\.down": "mlp.dense_4h_to_h",
            "gain$": "weight",
        },
    ),
}


pytestmark = pytest.mark.usefixtures("stand_in_text")


def planned(recipe):
    """Plan a recipe; return its baseline, and the baseline's spec."""
    (table,) = plan.make(experiment.load(FOLDER / f"{recipe}.yaml")).tables
    return table.variants[0], spec_from(table.variants[0].model)


def peer_of(recipe, spec):
    """Build transformers' model of a spec."""
    kind = PEERS[recipe][0]
    position = dict(spec.position.options)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=spec.vocab,
        hidden_size=spec.dim,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=dict(spec.attention.options).get("kv_heads", spec.heads),
        head_dim=spec.head_dim,
        intermediate_size=build(spec, "meta").blocks[0].ffn.width,
        max_position_embeddings=spec.context,
        tie_word_embeddings=spec.tie,
        rms_norm_eps=spec.norm["eps"],
        rope_parameters={
            "rope_type": "default",
            "rope_theta": position["theta"],
            "partial_rotary_factor": position["fraction"],
        },
        pad_token_id=None,
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def test_the_table_of_the_readme_states_the_parameters_of_each_recipe():
    rows = re.findall(r"\[`(\w+)\.yaml`\].*?\| ([\d,]+) \|", (FOLDER / "README.md").read_text())
    assert [name for name, _ in rows] == sorted(path.stem for path in FOLDER.glob("*.yaml"))
    for name, stated in rows:
        assert planned(name)[0].parameters == int(stated.replace(",", ""))


@pytest.mark.parametrize("recipe", PEERS)
@torch.no_grad()
def test_a_recipe_computes_what_the_model_of_transformers_does(recipe):
    spec = planned(recipe)[1]
    ours, theirs = new_model(spec, 0), peer_of(recipe, spec)
    for parameter in theirs.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))  # gains and biases, too
    known = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        there = name
        for pattern, other in PEERS[recipe][1].items():
            there = re.sub(rf"(?:^|(?<=\.)){pattern}", other, there, count=1)
        tensor = known[there]
        if "query_key_value" in there:
            heads = tensor.view(spec.heads, 3, spec.head_dim, *tensor.shape[1:])
            tensor = heads[:, "qkv".index(name.split(".attn.")[1][0])].reshape(parameter.shape)
        parameter.copy_(tensor)
    tokens = torch.randint(0, spec.vocab, (2, 40), generator=torch.Generator().manual_seed(1))
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens), expected, rtol=1e-3, atol=1e-3 * expected.std())
