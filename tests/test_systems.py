"""Published models: their exact sizes, worked out by hand, and the commands of the systems page."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from llama_ablate.commands.cli import main
from llama_ablate.config import experiment
from llama_ablate.data.tokenizer_files import read
from llama_ablate.design.variants import resolve_preset
from llama_ablate.interop import meta
from llama_ablate.interop.generation import Generation, Sampling
from llama_ablate.model.counts import count
from tests.in_process import run_script

from .interop.checkpoints import meta_logits, meta_tensors, write_llama3

#: dim, layers, heads, kv heads, feed-forward width, vocabulary, total, KV bytes a token (16-bit)
PUBLISHED = {
    "llama1-7b": (4096, 32, 32, 32, 11008, 32000, 6_738_415_616, 524_288),
    "llama1-65b": (8192, 80, 64, 64, 22016, 32000, 65_285_660_672, 2_621_440),
    "llama2-7b": (4096, 32, 32, 32, 11008, 32000, 6_738_415_616, 524_288),
    "llama2-34b": (8192, 48, 64, 8, 22016, 32000, 33_743_970_304, 196_608),
    "llama2-70b": (8192, 80, 64, 8, 28672, 32000, 68_976_648_192, 327_680),
    "llama3-8b": (4096, 32, 32, 8, 14336, 128256, 8_030_261_248, 131_072),
    "llama3.1-405b": (16384, 126, 128, 8, 53248, 128256, 405_853_388_800, 516_096),
    "llama3.2-1b": (2048, 16, 32, 8, 8192, 128256, 1_235_814_400, 32_768),
    "llm-foundry-small": (256, 4, 8, 4, 682, 8192, 7_078_144, 2_048),
    "llama2-demo": (256, 2, 8, 2, 704, 1000, 1_922_304, 512),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_llamas_total_is_the_published_one_and_adds_up_by_hand(name):
    dim, layers, heads, kv, width, vocab, total, kv_bytes = PUBLISHED[name]
    spec = resolve_preset(name)[0]
    head_dim = dim // heads
    block = 2 * dim * dim + 2 * dim * kv * head_dim + 3 * dim * width + 2 * dim
    by_hand = layers * block + dim + vocab * dim * (1 if spec.tie else 2)
    assert count(spec).parameters == by_hand == total
    assert count(spec).kv_bytes_per_token == 2 * layers * kv * head_dim * 2 == kv_bytes
    assert (spec.dim, spec.layers, spec.heads, spec.vocab) == (dim, layers, heads, vocab)


def test_the_total_of_gpt2_xl_is_the_published_one_and_adds_up_by_hand():
    dim, layers, total = 1600, 48, 1_557_611_200
    assert count(resolve_preset("gpt2-xl")[0]).parameters == total
    assert total == layers * (12 * dim * dim + 13 * dim) + 2 * dim + (50257 + 1024) * dim


def test_the_presets_are_listed_with_their_sources(answer):
    out = answer("summary")
    assert all(name in out for name in [*PUBLISHED, "gpt2-small", "transformer-2017"])
    for name in experiment.presets():
        assert experiment.preset(name).about.source
        assert experiment.preset(name).model.vocab is not None


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


def test_s14_the_next_token_is_that_of_metas_equations(checkpoint):
    model = meta.read(checkpoint)
    prompt = read(checkpoint / "tokenizer.model").prompt(PROMPT)
    assert len(prompt) == 17
    expected = meta_logits(meta_tensors(vocab=128_256), torch.tensor([prompt]))[0, -1]
    assert expected.shape == (128_256,)
    generation = Generation(model, [prompt], max_tokens=1, sampling=Sampling(temperature=0))
    assert list(generation) == [[int(expected.argmax())]]
