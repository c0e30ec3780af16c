"""`trace`, and `generate` on an untrained preset."""

import json

import pytest
import torch
import torch.nn.functional as F

from llama_ablate.commands.cli import main
from llama_ablate.design.variants import resolve_preset
from llama_ablate.errors import ConfigError
from llama_ablate.interop import stored_tensors
from llama_ablate.interop.loader import open_preset
from llama_ablate.interop.trace import trace
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.decoder import new_model
from tests.conftest import LLAMA, make_spec

TEXT = list(b"hello world, again")


@pytest.fixture(scope="module")
def demo():
    return new_model(resolve_preset("llama2-demo")[0], 0).eval()


def named(rows, module, operation):
    return [row for row in rows if (row.module, row.operation) == (module, operation)]


def test_a_trace_has_the_tensors_of_the_walk_in_order_with_their_shapes(demo):
    """Document 003's walk through a layer, at the sizes of llama2-demo: 8 heads, 2 of them kv."""
    rows = trace(demo, TEXT)
    T = len(TEXT)
    walk = [
        ("embedding", "embedding", (1, T, 256)),
        ("blocks.0.attn_norm", "rms_norm", (1, T, 256)),
        ("blocks.0.attn", "split", (1, 8, T, 32)),
        ("blocks.0.attn", "split", (1, 2, T, 32)),
        ("blocks.0.attn", "addcmul", (1, 8, T, 32)),
        ("blocks.0.attn", "addcmul", (1, 2, T, 32)),
        ("blocks.0.attn", "matmul", (1, 8, T, T)),
        ("blocks.0.attn", "softmax", (1, 8, T, T)),
        ("blocks.0.attn", "matmul", (1, 8, T, 32)),
        ("blocks.0.attn", "flatten", (1, T, 256)),
        ("blocks.0.attn.out", "linear", (1, T, 256)),
        ("blocks.0", "add", (1, T, 256)),
        ("blocks.0.ffn.gate", "linear", (1, T, 704)),
        ("blocks.0.ffn", "mul", (1, T, 704)),
        ("blocks.0.ffn.down", "linear", (1, T, 256)),
        ("blocks.1.attn_norm", "rms_norm", (1, T, 256)),
        ("norm", "rms_norm", (1, T, 256)),
        ("head", "linear", (1, T, 1000)),
    ]
    seen = iter([(row.module, row.operation, row.shape) for row in rows])
    assert all(step in seen for step in walk)
    assert named(rows, "head", "linear")[0].code == "logits_BTV: Tensor = self.head(x_BTD)"
    assert {row.dtype for row in rows} >= {"float32", "int64", "bool"}


@torch.no_grad()
def test_the_statistics_are_those_of_the_tensors_and_the_logits_those_of_a_plain_pass(demo):
    rows = trace(demo, TEXT)
    tokens = torch.tensor([TEXT])
    for row, tensor in (
        (rows[-1], demo(tokens)),
        (named(rows, "embedding", "embedding")[0], F.embedding(tokens, demo.embedding.weight)),
    ):
        assert row.mean == pytest.approx(tensor.mean().item(), abs=1e-6)
        assert row.rms == pytest.approx(tensor.square().mean().sqrt().item(), rel=1e-5)
        assert row.max == pytest.approx(tensor.abs().max().item(), rel=1e-5)
        assert row.finite == 1
    (mask,) = [row for row in rows if row.operation == "masked_fill"]
    T = len(TEXT)
    assert mask.finite == pytest.approx((T + 1) / (2 * T))
    assert (mask.mean, mask.rms, mask.max) == (0, 0, 0)


def test_a_trace_leaves_no_hook_behind_and_changes_nothing(demo):
    before = demo(torch.tensor([TEXT]))
    first, second = trace(demo, TEXT), trace(demo, TEXT)
    modules = list(demo.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules)
    assert torch.equal(demo(torch.tensor([TEXT])), before)
    assert first[-30:] == second[-30:]
    for tokens in ([], [1] * 65):
        with pytest.raises(ConfigError, match=f"the prompt has {len(tokens)} tokens"):
            trace(demo, tokens)


@pytest.mark.parametrize(
    ("slot", "name"), [(slot, name) for slot, registry in REGISTRIES.items() for name in registry]
)
def test_every_component_can_be_traced(slot, name):
    model = new_model(make_spec(**LLAMA | {slot: name}), 0)
    rows = trace(model, [1, 2, 3, 4, 5])
    assert rows[-1].shape == (1, 5, 61)
    modules = {row.module for row in rows}
    assert modules >= {"embedding", "blocks.0", "blocks.1", "head"}
    assert any(module.startswith("blocks.1.attn.") for module in modules)
    assert any(module.startswith("blocks.1.ffn.") for module in modules)


def test_trace_prints_a_table_of_one_layer_and_writes_json(capsys):
    prompt = ["trace", "llama2-demo", "--prompt", "hello", "--layer", "1"]
    assert main(prompt) == 0
    out, err = capsys.readouterr()
    assert err == "note: 'llama2-demo' is a preset: initial weights of seed 0, untrained\n"
    assert "blocks.1.attn " in out
    assert "blocks.0" not in out
    assert "1 x 8 x 5 x 5" in out
    assert main([*prompt, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["tokens"] == list(b"hello")
    assert values["tensors"][-1]["shape"] == [1, 5, 1000]
    assert main([*prompt[:-1], "2"]) == 2
    assert "--layer 2: 'llama2-demo', untrained has layers 0 to 1" in capsys.readouterr().err


def test_generate_on_a_preset_draws_its_weights_from_a_seed_and_says_so(capsys):
    command = ["generate", "llama2-demo", "--prompt", "a", "--max-tokens", "8", "--json"]
    texts = []
    for more in ([], ["--init-seed", "1"], ["--set", "model.layers=1"]):
        assert main([*command, "--temperature", "0", *more]) == 0
        out, err = capsys.readouterr()
        assert "untrained" in err
        texts.append(json.loads(out)["tokens"])
    first, *others = texts
    assert first not in others
    assert all(0 <= token < 256 for token in first)
    expected = new_model(resolve_preset("llama2-demo")[0], 3).state_dict()
    torch.testing.assert_close(
        open_preset("llama2-demo", seed=3).model.state_dict(), expected, rtol=0, atol=0
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama2-dem"], "did you mean 'llama2-demo'?"),
        (["a/b", "--init-seed", "1"], "--init-seed is for a preset; 'a/b' is not one"),
        (["llama2-demo", "--set", "model.vocab=100"], "the tokenizer has 256 tokens and"),
    ],
)
def test_mistakes_with_presets_are_told_in_one_line(arguments, message, capsys):
    assert main(["generate", *arguments, "--prompt", "a"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.removeprefix("note: 'llama2-demo'").strip().splitlines()) <= 2


def test_a_preset_that_does_not_fit_memory_is_refused_before_it_is_built(monkeypatch):
    monkeypatch.setattr(
        "llama_ablate.interop.loader.new_model", lambda *_: pytest.fail("nothing may be built")
    )
    monkeypatch.setattr(stored_tensors, "free_bytes", lambda _: 64 << 30)
    with pytest.raises(ConfigError, match=r"'llama3-70b' needs 262\.8 GiB; 64"):
        open_preset("llama3-70b")
