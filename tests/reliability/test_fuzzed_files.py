"""Whatever an experiment file holds, it is planned, or refused in one line that names the place."""

import os
import re
import sys
import time
import traceback
from pathlib import Path

import pytest
import torch

from llama_ablate.commands.cli import main
from llama_ablate.config import experiment
from llama_ablate.data import tokens
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.design import plan
from llama_ablate.errors import ConfigError
from llama_ablate.terminal import in_one_line
from tests.quiet import cpu_seconds, within
from tests.texts import sentences

from .fuzzing import mutant

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
LARGEST_MB = 300
PLACED = re.compile(r"(case|base)\.yaml:(\d+):(\d+): .")
BREAKS = re.compile(rb"\r\n|[\r\n]|\xc2\x85|\xe2\x80[\xa8\xa9]")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the files lie: with a text, and the base that the claims suite's experiments share."""
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text(sentences(1_400))
    Path("base.yaml").write_bytes((EXPERIMENTS / "claims" / "base.yaml").read_bytes())
    return tmp_path


@pytest.fixture
def cached_texts(folder, monkeypatch):
    """Let a small text stand for every text of its kind: what is put to the test is the file."""
    real, made = tokens.prepare, {}

    def prepare(corpus, tokenizer):
        drawn = "tokens" in dict(corpus.options)
        name, kind = corpus.name if drawn else "files", tokenizer.name.replace("file", "bytes")
        if (name, kind) not in made:
            small = {"tokens": 4000} if drawn else {"path": str(folder / "book.txt")}
            text = CORPORA.resolve({"name": name, **small})
            made[name, kind] = real(text, TOKENIZERS.resolve(kind))
        return made[name, kind]

    monkeypatch.setattr(tokens, "prepare", prepare)


@pytest.fixture(scope="module", autouse=True)
def optimizers_are_loaded():
    """Let torch import what its first optimizer needs: a second, once a process."""
    torch.optim.AdamW([torch.zeros(1)])


@pytest.fixture
def attempt(folder):
    """Plan a file of these bytes; return its plan, or the line that refuses it.

    Raises AssertionError for all that must not be: another error, a line without its place,
    something written, 300 MB, or more than a second (and five milliseconds for each variant that is
    planned, and a fifth of one for each run).
    """
    file = folder / "case.yaml"
    here = {file, *folder.iterdir()}
    least = memory_mb(afresh=True)

    def tried(data):
        file.write_bytes(data)
        allowed, began = 1.0, time.process_time()
        try:
            found = planned("case.yaml")
            found.model_dump_json()
            took = time.process_time() - began
            allowed += len(found.arms) / 200 + len(found.runs) / 5000
        except ConfigError as error:
            took = time.process_time() - began
            found = in_one_line(str(error))
            place = PLACED.match(found)
            assert place, f"no place in: {found}"
            lines = len(BREAKS.split(Path(f"{place[1]}.yaml").read_bytes()))
            assert int(place[2]) <= lines, f"no line {place[2]}: {found}"
            assert len(found) < 2000, f"too long to read: {found}"
        except BaseException:  # noqa: BLE001  SystemExit and MemoryError are none of the two either
            raise AssertionError(traceback.format_exc()) from None
        assert within(took, allowed), f"took {took:.2f} s"
        assert memory_mb() < least + LARGEST_MB, "too much memory"
        assert {*folder.iterdir()} == here, "something was written"
        return found

    return tried


def planned(file):
    """Plan a file as the command does, with counts in place of measured times."""
    source = experiment.load(file)
    made = plan.make(source)
    return plan.paced(made, lambda table: [v.flops_per_token for v in table.variants])


def memory_mb(*, afresh=False):
    """Return the most that this process took, since this was last asked `afresh`; 0 off Linux."""
    try:
        if afresh:
            Path("/proc/self/clear_refs").write_text("5")
        return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
    except OSError:
        return 0.0


@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("cached_texts")
def test_any_bytes_are_planned_or_refused_in_one_line_with_its_place(attempt, volume, tally):
    files = [f.read_text("utf-8") for f in sorted(EXPERIMENTS.rglob("*.yaml"))]
    files = [text for text in files if "base: .." not in text]  # which is not there
    trials, plans, failed = volume(120, 2_000, 10_000), 0, 0
    for number in range(trials):
        data = mutant(number, files)
        try:
            plans += not isinstance(attempt(data), str)
        except AssertionError as problem:
            failed += 1
            text = data.decode("utf-8", "backslashreplace")
            sys.stdout.write(f"mutant({number}): {problem}\n{text}\n{'-' * 99}\n")
    assert plans > trials / 20, "too few get as far as a plan to say much about planning"
    tally("R9", "mutated experiment files", trials, failed)


SMALL = """\
name: small
model: {dim: 32, layers: 1, heads: 4, context: 16}
data: {corpus: {name: files, path: book.txt}}
train: {steps: 4, batch: 2}
"""


def small(**sections):
    """Return a small valid file with other sections, or more."""
    lines = dict(line.split(": ", 1) for line in SMALL.splitlines())
    return "".join(f"{key}: {value}\n" for key, value in {**lines, **sections}.items()).encode()


def many(count):
    return "[" + ", ".join(f"{i + 1}e-5" for i in range(count)) + "]"


def axes(values):
    return f"{{design: product, axes: {{{values}}}}}"


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)
)
WIDE = """norm: [rmsnorm, layernorm, dyt], position: [rope, alibi, t5, none], block: [pre, post],
          attention: [mha, mqa, mla], feedforward: [relu, gelu, swiglu, reglu, silu, glu],
          layers: [1, 2, 3, 4, 5, 6, 7, 8], bias: [true, false], tie: [true, false]"""
#: Files that are refused at their line.
HOSTILE = {
    "aliases that multiply": (1, BOMB.encode()),
    "a tag that calls": (1, small(name="!!python/object/apply:os.system [touch canary]")),
    "a NUL": (1, b"name: a\0b\n"),
    "a rate that is infinite": (4, small(train="{steps: 1, batch: 2, lr: 1e400}")),
    "lists in lists without end": (5, small(seeds="[" * 60_000)),
    "a line of a megabyte": (1, b"name: " + b"x" * 1_000_000),
    "a base that is itself": (5, small(base="case.yaml")),
    "a text that is a device": (3, small(data="{corpus: {name: files, path: /dev/zero}}")),
    "two documents": (5, small() + b"---\nname: other\n"),
    "13,824 variants": (5, small(variants=axes(WIDE))),
    "a million points": (5, small(tune=f"{{lr: {many(1000)}, clip: {many(1000)}}}")),
    "a context of a billion": (2, small(model="{context: 1_000_000_000}")),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_end_in_one_line_and_run_nothing(attempt, capsys, what):
    line, data = HOSTILE[what]
    found = attempt(data)
    assert str(found).startswith(f"case.yaml:{line}:")
    assert main(["run", "case.yaml", "--results", "results"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"llama-ablate: {found}\n")
    assert not Path("results").exists()
    assert not Path("canary").exists()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "circle", "nothing"])
def test_what_is_no_file_is_refused_at_once(folder, kind):
    file = folder / "odd.yaml"
    if kind == "pipe":
        os.mkfifo(file)  # opening it would wait for a writer for ever
    elif kind == "folder":
        file.mkdir()
    elif kind != "nothing":
        file.symlink_to({"device": "/dev/zero", "circle": file}[kind])
    Path("case.yaml").write_bytes(small(base="odd.yaml"))
    for name, place in (("odd.yaml", "odd.yaml: "), ("case.yaml", "case.yaml:5:7: base: ")):
        with cpu_seconds(1), pytest.raises(ConfigError) as caught:
            experiment.load(name)
        assert str(caught.value).startswith(place)
