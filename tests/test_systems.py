"""The page of systems: its commands print what it says, and what none prints is tested here."""

import math
import re
import shlex
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from llama_ablate.commands.cli import main
from llama_ablate.data.tokenizer_files import read
from llama_ablate.design.variants import resolve_preset
from llama_ablate.interop import meta
from llama_ablate.interop.generation import Generation, Sampling
from llama_ablate.model.context import Context
from llama_ablate.model.decoder import build, new_model
from llama_ablate.model.kernels import attend
from llama_ablate.model.positions import Position
from llama_ablate.model.rope import RoPE
from tests.in_process import run_script

from .interop.checkpoints import meta_logits, meta_tensors, write_llama3

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "results" / "reference" / "systems.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if re.match(r"\| S\d", line)
]
PROMPT = "the answer to the ultimate question of life, the universe, and everything is "


def quoted(cell):
    return re.findall(r"`([^`]+)`", cell)


COMMANDS = [
    (row[0], command, quoted(row[4]))
    for row in ROWS
    for command in quoted(row[2])
    if re.match(r"llama-ablate (?!run)|python analysis/", command)
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_llama3(tmp_path_factory.mktemp("systems") / "checkpoint")


@pytest.mark.parametrize(
    ("command", "fragments"),
    [c[1:] for c in COMMANDS],
    ids=[f"{c[0]}-{i}" for i, c in enumerate(COMMANDS)],
)
def test_a_command_of_the_page_prints_what_the_page_says(
    command, fragments, checkpoint, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoint").symlink_to(checkpoint)
    program, *words = shlex.split(command)
    if program == "python":
        printed = run_script(ROOT / words[0], *words[1:]).stdout
    else:
        assert main(words) == 0
        printed = capsys.readouterr().out
    out = "".join(printed.split())  # however wide the lines are
    assert fragments
    for fragment in fragments:
        assert "".join(fragment.split()) in out, fragment


def test_every_test_that_the_page_names_is_there():
    for file, keyword in re.findall(r"`pytest (\S+?)(?: -k (\w+))?`", PAGE):
        text = (ROOT / file).read_text("utf-8")
        assert re.search(rf"def test_\w*{keyword}", text), (file, keyword)


@torch.no_grad()
def test_s1_llama_2_by_hand_gives_its_logits_shape_with_and_without_cache():
    model = new_model(resolve_preset("llama2-demo")[0], 0)
    tokens = torch.randint(0, 1000, (2, 16), generator=torch.Generator().manual_seed(0))
    full = model(tokens)
    assert full.shape == (2, 16, 1000)
    cache = model.new_state(4, 64)
    assert cache.nbytes == 262_144
    cache = model.new_state(2, 64)
    pieces = [model(tokens[:, t : t + 1], cache) for t in range(16)]
    torch.testing.assert_close(torch.cat(pieces, 1), full, rtol=0, atol=1e-6)


@torch.no_grad()
def test_s2_the_block_with_a_cache_gives_the_shapes_of_its_six_steps():
    model = new_model(resolve_preset("gpt-block-demo")[0], 0)
    shapes = []
    model.blocks[0].register_forward_hook(lambda _m, _x, y: shapes.append(tuple(y.shape)))
    cache = model.new_state(1, 2048)
    tokens = torch.arange(7)[None]
    kept = []
    for start, end in [(0, 2), *((t, t + 1) for t in range(2, 7))]:
        model(tokens[:, start:end], cache)
        kept.append(tuple(cache.layers[0].tensors[0][:, :, : cache.length].shape))
    assert shapes == [(1, 2, 512), *[(1, 1, 512)] * 5]
    assert kept == [(1, 8, n, 64) for n in range(2, 8)]


@torch.no_grad()
def test_s3_the_first_cache_fails_at_its_second_step_and_ours_at_its_end():
    """Keys kept as (B, S, H, E) and joined to (B, 1, D): a shape error, repaired by one layout."""
    kept, new = torch.zeros(1, 2, 8, 64), torch.zeros(1, 1, 512)
    with pytest.raises(RuntimeError, match="same number of dimensions: got 4 and 3"):
        torch.cat([kept, new], dim=1)
    model = new_model(resolve_preset("llama2-demo")[0], 0)
    cache = model.new_state(1, 4)
    for step in range(4):
        assert model(torch.tensor([[step]]), cache).shape == (1, 1, 1000)
    with pytest.raises(ValueError, match="5 tokens do not fit"):
        model(torch.tensor([[4]]), cache)


@torch.no_grad()
def test_s8_the_cache_holds_kv_heads_alone_and_is_seen_up_to_the_newest_token():
    model = new_model(resolve_preset("llama2-demo")[0], 0)
    cache = model.new_state(batch=3, capacity=64)
    keys, values = cache.layers[0].tensors
    assert keys.shape == values.shape == (3, 2, 64, 32)  # batch, n_kv of 8 heads, max_seq, head_dim
    model(torch.zeros(3, 5, dtype=torch.long), cache)
    assert keys[:, :, :5].abs().amax((0, 1, 3)).min() > 0
    assert keys[:, :, 5:].abs().max() == 0
    new = torch.ones(3, 2, 2, 32)
    seen = cache.layers[0].update(keys=new, values=new)["keys"]
    assert seen.shape == (3, 2, 7, 32)
    assert seen.data_ptr() == keys.data_ptr()  # a view: nothing is copied


def test_s12_the_shapes_of_the_walk_through_layer_0():
    """Llama 3 8B on the meta device: 17 tokens, 32 heads of 128."""
    model = build(resolve_preset("llama3-8b")[0], "meta")
    attn = model.blocks[0].attn
    assert attn.q.weight.view(32, 128, 4096).shape == (32, 128, 4096)
    q, k, v = attn._project(torch.empty(1, 17, 4096, device="meta"), None)
    assert (q.shape, k.shape, v.shape) == ((1, 32, 17, 128), (1, 8, 17, 128), (1, 8, 17, 128))
    rope = RoPE(128, theta=500000.0)
    rope.prepare(17)
    assert rope.frequencies().shape == (64,)
    maps = []
    ctx = Context(0, 17, rope, kernel="math", maps=maps)
    mixed = attend(
        torch.randn(1, 32, 17, 128), torch.randn(1, 8, 17, 128), torch.randn(1, 8, 17, 128), ctx
    )
    assert mixed.shape == (1, 17, 4096)
    assert maps[0].weights.shape == (1, 32, 17, 17)


def test_s14_the_next_token_is_that_of_metas_equations(checkpoint):
    model = meta.read(checkpoint)
    prompt = read(checkpoint / "tokenizer.model").prompt(PROMPT)
    assert len(prompt) == 17
    expected = meta_logits(meta_tensors(vocab=128_256), torch.tensor([prompt]))[0, -1]
    assert expected.shape == (128_256,)
    generation = Generation(model, [prompt], max_tokens=1, sampling=Sampling(temperature=0))
    assert list(generation) == [[int(expected.argmax())]]


def test_s15_the_embedding_is_normal_002_and_fused_attention_is_the_manual_one():
    spec = resolve_preset("llm-foundry-small")[0]
    model = new_model(spec, 0)
    weight = model.embedding.weight
    # 2,097,152 draws: the standard errors are 1.4e-5 and 1e-5.
    assert abs(weight.mean().item()) < 6e-5
    assert weight.std().item() == pytest.approx(0.02, abs=5e-5)
    q, k, v = (torch.randn(2, 8, 12, 32) for _ in range(3))
    scores = q @ k.transpose(-1, -2) / math.sqrt(32)
    manual = (scores + torch.triu(torch.ones(12, 12) * -math.inf, 1)).softmax(-1) @ v
    fused = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(fused, manual, rtol=1e-5, atol=1e-5)
    for kernel in ("math", "fused"):
        ctx = Context(0, 12, Position(), kernel=kernel)
        ours = attend(q, k, v, ctx)
        torch.testing.assert_close(ours, manual.transpose(1, 2).flatten(2), rtol=1e-5, atol=1e-5)
