"""The recipes of `experiments/recipes`: their parameters, and their layers beside transformers'."""

import re
from pathlib import Path

import pytest
import torch
import transformers

from llama_ablate.config import experiment
from llama_ablate.design import plan
from llama_ablate.model.components import spec_from
from llama_ablate.model.decoder import new_model
from tests.test_run_ids import stand_in_text  # noqa: F401

FOLDER = Path(__file__).parents[1] / "experiments" / "recipes"
#: Names that our tensors have in transformers' Olmo2ForCausalLM.
NAMES = {
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
}


pytestmark = pytest.mark.usefixtures("stand_in_text")


def planned(recipe):
    """Plan a recipe; return its baseline, and the baseline's spec."""
    (table,) = plan.make(experiment.load(FOLDER / f"{recipe}.yaml")).tables
    return table.variants[0], spec_from(table.variants[0].model)


def test_the_table_of_the_readme_states_the_parameters_of_each_recipe():
    rows = re.findall(r"\[`(\w+)\.yaml`\].*?\| ([\d,]+) \|", (FOLDER / "README.md").read_text())
    assert [name for name, _ in rows] == sorted(path.stem for path in FOLDER.glob("*.yaml"))
    for name, stated in rows:
        assert planned(name)[0].parameters == int(stated.replace(",", ""))


@torch.no_grad()
def test_the_recipe_of_olmo_2_computes_what_the_model_of_transformers_does():
    spec = planned("olmo2_10m")[1]
    ours = new_model(spec, 0)
    config = transformers.Olmo2Config(
        vocab_size=spec.vocab,
        hidden_size=spec.dim,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        intermediate_size=ours.blocks[0].ffn.width,
        max_position_embeddings=spec.context,
        tie_word_embeddings=spec.tie,
        rms_norm_eps=spec.norm["eps"],
        rope_parameters={"rope_type": "default", "rope_theta": spec.position["theta"]},
        pad_token_id=None,
    )
    theirs = transformers.Olmo2ForCausalLM(config).eval()
    for parameter in theirs.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))  # gains, too
    known = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        there = name
        for pattern, other in NAMES.items():
            there = re.sub(rf"(?:^|(?<=\.)){pattern}", other, there, count=1)
        parameter.copy_(known[there])
    tokens = torch.randint(0, spec.vocab, (2, 40), generator=torch.Generator().manual_seed(1))
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens), expected, rtol=1e-3, atol=1e-3 * expected.std())
