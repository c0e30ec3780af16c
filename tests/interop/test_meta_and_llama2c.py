import json
import re
from pathlib import Path

import pytest
import torch

from llama_ablate.commands.cli import main
from llama_ablate.design.variants import resolve_preset
from llama_ablate.errors import ConfigError
from llama_ablate.interop import llama2c, meta
from llama_ablate.interop.families import META
from llama_ablate.interop.loader import open_model
from llama_ablate.model.decoder import build

from .checkpoints import (
    META_PARAMS,
    META_WIDTH,
    llama2c_pieces,
    meta_logits,
    meta_tensors,
    tokens,
    write_llama2c,
    write_meta,
)


@pytest.mark.parametrize(("shards", "embedding_axis"), [(1, 0), (2, 0), (2, 1)])
@torch.no_grad()
def test_metas_layout_computes_what_metas_code_does(shards, embedding_axis, tmp_path):
    """61 rows do not halve: chunks of 31 and 30, as a vocabulary-parallel table may have them."""
    state = meta_tensors()
    model = meta.read(write_meta(tmp_path, state, shards, embedding_axis))
    torch.testing.assert_close(model(tokens()), meta_logits(state, tokens()), rtol=0, atol=1e-4)
    assert model.spec.context == 8192
    assert model.blocks[0].ffn.width == META_WIDTH


def test_llama3_8b_has_the_shapes_of_its_own_file():
    """From the walk-through's print."""
    spec = resolve_preset("llama3-8b")[0]
    shapes = {n: tuple(p.shape) for n, p in build(spec, "meta").named_parameters()}
    printed = {
        "embedding": (128256, 4096),
        "blocks.0.attn.q": (4096, 4096),
        "blocks.0.attn.k": (1024, 4096),
        "blocks.0.attn.v": (1024, 4096),
        "blocks.0.attn.out": (4096, 4096),
        "blocks.0.ffn.gate": (14336, 4096),
        "blocks.0.ffn.up": (14336, 4096),
        "blocks.0.ffn.down": (4096, 14336),
    }
    for name, shape in printed.items():
        assert shapes[f"{name}.weight"] == shape


def test_llama2_leaves_vocabulary_heads_and_base_to_be_found(tmp_path):
    params = {k: META_PARAMS[k] for k in ("dim", "n_layers", "n_heads", "norm_eps", "multiple_of")}
    state = meta_tensors()
    generator = torch.Generator().manual_seed(1)
    for name in list(state):
        if name.endswith(("wk.weight", "wv.weight")):
            state[name] = torch.randn(32, 32, generator=generator)
        if "feed_forward" in name:  # without the multiplier of 1.3: 8 * 32 / 3 -> 96
            shape = (32, 96) if "w2" in name else (96, 32)
            state[name] = torch.randn(shape, generator=generator)
    model = meta.read(write_meta(tmp_path, state, params=params | {"vocab_size": -1}))
    assert (model.spec.vocab, model.spec.attention.name) == (61, "mha")
    assert model.spec.position["theta"] == 1e4
    assert model.spec.context == 4096


def test_llama31s_scaling_is_taken_from_params_and_refused_without_its_factor(tmp_path):
    params = META_PARAMS | {"use_scaled_rope": True}
    with pytest.raises(ConfigError, match=r"without rope_scale_factor: add it, such as 8"):
        meta.read(write_meta(tmp_path, meta_tensors(), params=params))
    params |= {"rope_scale_factor": 4}
    model = meta.read(write_meta(tmp_path, meta_tensors(), params=params))
    assert model.spec.position["scaling"] == "llama3"
    assert model.spec.position["factor"] == 4.0
    assert model.spec.context == 131_072


@pytest.mark.parametrize(
    ("stated", "context", "factor"),
    [
        ({"dim": 4096, "use_scaled_rope": True}, 131_072, 8.0),  # Llama 3.1 of 8B
        ({"dim": 2048, "use_scaled_rope": True}, 131_072, 32.0),  # Llama 3.2 of 1B
        ({"dim": 4096, "rope_theta": 1e6}, 16_384, 1.0),  # Code Llama
        ({"dim": 4096, "rope_theta": 5e5}, 8192, 1.0),  # Llama 3
        ({"dim": 4096, "norm_eps": 1e-6}, 2048, 1.0),  # Llama 1
        ({"dim": 4096}, 4096, 1.0),  # Llama 2
    ],
)
def test_context_and_scaling_of_a_published_file_are_the_published_ones(stated, context, factor):
    sizes = {"n_layers": 2, "n_heads": 32, "vocab_size": 100}
    spec = META.spec({**sizes, **stated}, Path("params.json"))
    assert (spec.context, spec.position["factor"]) == (context, factor)


@pytest.mark.parametrize("shared", [True, False])
@torch.no_grad()
def test_llama2cs_file_computes_what_the_weights_that_it_was_made_from_do(shared, tmp_path):
    state = meta_tensors()
    if shared:
        state["output.weight"] = state["tok_embeddings.weight"]
    model = llama2c.read(write_llama2c(tmp_path / "model.bin", state, shared=shared))
    expected = meta_logits(state, tokens(), theta=10000.0)
    torch.testing.assert_close(model(tokens()), expected, rtol=0, atol=1e-4)
    assert model.spec.tie == shared
    assert model.spec.context == 64


@torch.no_grad()
def test_a_llama2c_model_stops_where_its_next_story_would_begin(llama2_tokenizer, tmp_path, capsys):
    """As run.c does: the token that begins a story delimits stories."""
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_file=str(llama2_tokenizer))
    (tmp_path / "tokenizer.bin").write_bytes(llama2c_pieces(pieces))
    state = meta_tensors(vocab=pieces.get_piece_size())
    state["output.weight"][pieces.bos_id()] = 3 * state["output.weight"][7]
    file = write_llama2c(tmp_path / "model.bin", state)
    stopped = 0
    for prompt in ("the cat", "a dog", "on the mat", "park"):
        tokens = [pieces.bos_id(), *pieces.encode(prompt)]
        expected = []
        for _ in range(12):
            logits = meta_logits(state, torch.tensor([tokens + expected]), theta=10000.0)
            token = int(logits[0, -1].argmax())
            if token == pieces.bos_id():
                stopped += 1
                break
            expected.append(token)
        command = ["generate", str(file), "--prompt", prompt, "--temperature", "0", "--json"]
        assert main([*command, "--max-tokens", "12"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["tokens"] == expected
        assert found["ended"] == ("stop token" if len(expected) < 12 else "max tokens")
    assert stopped > 0


class _Payload:
    """What a hostile file holds: unpickled carelessly, it would write a file."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (self.target, "w"))


def _pickled(folder):
    target = folder / "was_run"
    torch.save({"tok_embeddings.weight": _Payload(str(target))}, folder / "consolidated.00.pth")


def _with(name, tensor):
    """Return a function that writes a file with another tensor of a name, or without one."""

    def change(folder):
        state = meta_tensors() | {name: tensor}
        kept = {k: v for k, v in state.items() if v is not None}
        torch.save(kept, folder / "consolidated.00.pth")

    return change


def _five_heads(folder):
    (folder / "params.json").write_text(json.dumps(META_PARAMS | {"n_heads": 5}), "utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_pickled, "is damaged or holds more than tensors"),
        (lambda f: (f / "consolidated.00.pth").unlink(), "holds no consolidated.NN.pth"),
        (
            lambda f: (f / "consolidated.00.pth").rename(f / "consolidated.01.pth"),
            "has 1 shards but lacks consolidated.00.pth",
        ),
        (lambda f: torch.save([1, 2], f / "consolidated.00.pth"), "holds something else than"),
        (_with("layers.1.attention.wo.weight", None), "it lacks layers.1.attention.wo.weight"),
        (
            _with("output.weight", torch.ones(61, 31)),
            "output.weight is 61 x 31, where its configuration asks for 61 x 32",
        ),
        (_with("norm.weight", torch.ones(32, dtype=torch.int8)), "norm.weight is int8; allowed: "),
        (_five_heads, "describes no model: heads: 5 heads do not divide dim 32"),
    ],
    ids=[f"case {i}" for i in range(8)],
)
def test_metas_files_that_are_cut_foreign_or_hostile_are_refused_in_one_line(
    change, message, tmp_path
):
    write_meta(tmp_path, meta_tensors())
    change(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        open_model(tmp_path)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda data: data[:20], "too short for the header"),
        (lambda data: data[:-4], "bytes where its header asks for"),
        (lambda data: b"\xff" * 28 + data[28:], "is no llama2.c model: its header reads -1"),
        (lambda data: b"24ka" + b"\x01\0\0\0" + data[8:], "is version 1 of llama2.c's format"),
    ],
    ids=["header", "cut", "negative", "version"],
)
def test_llama2cs_files_that_are_cut_or_foreign_are_refused_in_one_line(content, message, tmp_path):
    file = write_llama2c(tmp_path / "model.bin", meta_tensors())
    file.write_bytes(content(file.read_bytes()))
    with pytest.raises(ConfigError, match=message) as refused:
        open_model(file)
    assert "\n" not in str(refused.value)
