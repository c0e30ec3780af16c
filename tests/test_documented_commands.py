"""Every command that README and the pages show runs: long ones as plans, page by page."""

import itertools
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from llama_ablate.commands.cli import main, parser

from .in_process import in_process, own_registries, run_in_process

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: A grid in seconds: its runs are too short to compare, and have weights.
TINY = ["train.tokens=3k", "train.batch=4", "seeds=2", "measure=[perplexity]"]
#: Commands that need another machine, an account, or a file that only a reader has.
ELSEWHERE = ("--track wandb", "my-llama-folder", "results/NAME", "results/tasks/")

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


def shown_commands(page):
    """Return the words of the commands of a page, after `llama-ablate`."""
    text = re.sub(r"<!--.*?-->", "", page.read_text("utf-8"), flags=re.DOTALL)
    lines = re.findall(r"^    llama-ablate ((?:.*\\\n)*.*)", text, re.MULTILINE)
    commands = [line for line in lines if not any(part in line for part in ELSEWHERE)]
    return [shlex.split(line.replace("\\\n", " "), comments=True) for line in commands]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return results of the two experiments that the pages speak of."""
    folder = tmp_path_factory.mktemp("finished")
    page = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
    (folder / "tutorial.yaml").write_text(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0])
    words = [word for change in TINY for word in ("--set", change)]
    for file, only in {
        ROOT / "experiments" / "first.yaml": ["--only", "rope", "--only", "baseline"],
        folder / "tutorial.yaml": [],
    }.items():
        assert run_in_process(file, folder / "results", *words, *only) in (0, 1)
    return folder / "results"


@pytest.fixture
def desk(finished, tmp_path, monkeypatch):
    """Lay out a checkout, finished results, and the texts that readers bring."""
    for name in ("experiments", "results"):
        (tmp_path / name).mkdir()
    shutil.copytree(ROOT / "experiments", tmp_path / "experiments", dirs_exist_ok=True)
    shutil.copytree(finished, tmp_path / "results", dirs_exist_ok=True)
    text = "\n\n".join(f"Line {i}: the cat sat on the mat." for i in range(3000))
    rows = "".join(json.dumps({"text": f"{text[i : i + 400]} {i}"}) + "\n" for i in range(300))
    for name in ("books", "essays"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").write_text(f"{name} {text}")
    for name in ("articles", "stories", "train", "valid", "test"):
        (tmp_path / f"{name}.jsonl").write_text(rows.replace("Line", f"{name} line"))
    (tmp_path / "input.txt").write_text(text)
    (tmp_path / "experiment.yaml").write_text("base: llama2-tiny\ntrain: {tokens: 3k}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_files(page, desk):
    """Write the files of a page: blocks that begin with a name, and the items of its task."""
    text = page.read_text("utf-8")
    for name, block in re.findall(r"```(?:yaml|python)\n(# ([\w.-]+)\b.*?)```", text, re.DOTALL):
        (desk / block).write_text(name, "utf-8")
    for items in re.findall(r"```json\n(.*?)```", text, re.DOTALL):
        (desk / "brackets.jsonl").write_text(items)


def harmless(words):
    """Return a command that trains nothing in place of one that does."""
    if words[0] == "run":
        plan_parser = parser().parse_args(["plan", "FILE"]).parser
        kept, options = ["plan"], set(plan_parser.known())
        for before, word in itertools.pairwise(words):
            flags = [at.partition("=")[0] for at in (before, word) if at.startswith("--")]
            kept += [word] * ({*flags} <= options)
        return kept
    return [word for word in words if word != "--watch"]


@pytest.mark.parametrize(
    "page", [p for p in PAGES if shown_commands(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_every_command_of_a_page_runs(page, desk, capsys):
    write_files(page, desk)
    for words in shown_commands(page):
        with own_registries(), in_process():
            code = main(harmless(words))
        assert code in (0, 1), f"{shlex.join(words)}: {capsys.readouterr().err}"
