"""The page of systems: its commands print what it says, and what none prints is tested here."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from llama_ablate.commands.cli import main
from llama_ablate.data.tokenizer_files import read
from llama_ablate.interop import meta
from llama_ablate.interop.generation import Generation, Sampling
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


def test_s14_the_next_token_is_that_of_metas_equations(checkpoint):
    model = meta.read(checkpoint)
    prompt = read(checkpoint / "tokenizer.model").prompt(PROMPT)
    assert len(prompt) == 17
    expected = meta_logits(meta_tensors(vocab=128_256), torch.tensor([prompt]))[0, -1]
    assert expected.shape == (128_256,)
    generation = Generation(model, [prompt], max_tokens=1, sampling=Sampling(temperature=0))
    assert list(generation) == [[int(expected.argmax())]]
