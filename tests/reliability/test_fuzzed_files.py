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
from llama_ablate.results import Settings
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
            found.document(None, Settings()).model_dump_json()
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
    return made.paced(lambda c: [c.counts[v.id].flops_per_token for v in c.variants])


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
            tell(number, data, problem)
    assert plans > trials / 20, "too few get as far as a plan to say much about planning"
    tally("R9", "mutated experiment files", trials, failed)


def tell(number, data, problem):
    """Show what it takes to make a failure again."""
    text = data.decode("utf-8", "backslashreplace")
    sys.stdout.write(f"mutant({number}): {problem}\n{text}\n{'-' * 99}\n")


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


@pytest.mark.usefixtures("folder")
def test_what_is_kept_of_a_file_is_the_text_that_was_planned():
    Path("case.yaml").write_bytes(b"\xef\xbb\xbf# a note\n" + small(base="base.yaml"))
    assert experiment.load("case.yaml").text == f"# a note\n{small(base='base.yaml').decode()}"


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)
)
DEEP = "[" * 1000 + "1" + "]" * 1000
#: A file, and a word of the line that refuses it; "" where it is to be planned.
HOSTILE = {
    "aliases that multiply": (BOMB.encode(), ":1:4: anchors and aliases"),
    "a merge": (small(model="{<<: {dim: 32}}"), ":2:9: a key must be one plain word"),
    "a tag that calls": (small(name="!!python/object/apply:os.system [touch canary]"), "tags like"),
    "a tag without end": (small(name=f"!{'x' * 60_000} y"), ":1:7: tags like !xxx"),
    "a NUL": (b"name: a\0b\n", ":1:8: not valid YAML"),
    "half a surrogate in bytes": (b"name: \xed\xa0\x80\n", ":1:7: not UTF-8 text"),
    "UTF-16": (SMALL.encode("utf-16"), ":1:1: not UTF-8 text"),
    "lines of Windows": (small().replace(b"\n", b"\r\n"), ""),
    "an empty mapping": (b"{}\n", ":1:1: train: needs 'tokens' or 'steps', or 'sizes' needs"),
    "JSON": (
        b'{"name": "x", "model": {"dim": 32}, "train": {"steps": 1, "batch": 2},'
        b' "data": {"corpus": {"name": "files", "path": "book.txt"}}}',
        "",
    ),
    "a key that is a list": (b"? [name]\n: x\n", ":1:3: a key must be one plain word"),
    "1e400": (small(train="{steps: 1, batch: 2, lr: 1e400}"), ":4:33: train.lr: inf (float)"),
    "a number of 5,000 digits": (small(seeds="9" * 5000), ":5:8: a whole number of 5,000 digits"),
    "lists in lists without end": (small(seeds="[" * 60_000), "nested too deeply"),
    "60,000 brackets": (b"a: [" + b"[]," * 20_000 + b"]\n", ":1:14999: more than 5,000 values"),
    "a line of a megabyte": (b"name: " + b"x" * 1_000_000, ":1:65537: larger than 65,536 bytes"),
    "a base that is itself": (small(base="case.yaml"), ":5:7: base: 'case.yaml' is based on"),
    "a text that is a device": (
        small(data="{corpus: {name: files, path: /dev/zero}}"),
        ":3:8: data.corpus: there is no file '/dev/zero'",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_files_end_in_one_line_and_run_nothing(attempt, capsys, what):
    data, message = HOSTILE[what]
    found = attempt(data)
    if message == "":
        assert not isinstance(found, str), found
        return
    assert message in found
    assert main(["run", "case.yaml", "--results", "results"]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"llama-ablate: {found}\n")
    assert not Path("results").exists()
    assert not Path("canary").exists()


@pytest.mark.parametrize("as_base", [False, True])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "circle", "nothing"])
def test_what_is_no_file_is_refused_at_once(folder, kind, as_base):
    file = folder / "odd.yaml"
    if kind == "pipe":
        os.mkfifo(file)  # opening it would wait for a writer for ever
    elif kind == "folder":
        file.mkdir()
    elif kind != "nothing":
        file.symlink_to({"device": "/dev/zero", "circle": file}[kind])
    Path("case.yaml").write_bytes(small(base="odd.yaml"))
    with cpu_seconds(1), pytest.raises(ConfigError) as caught:
        experiment.load("case.yaml" if as_base else "odd.yaml")
    place = "case.yaml:5:7: base: there is no file" if as_base else "odd.yaml: "
    assert str(caught.value).startswith(place)


def many(count):
    return "[" + ", ".join(f"{i + 1}e-5" for i in range(count)) + "]"


WIDE = """norm: [rmsnorm, layernorm, dyt], position: [rope, alibi, t5, none], block: [pre, post],
          attention: [mha, mqa, mla], feedforward: [relu, gelu, swiglu, reglu, silu, glu],
          layers: [1, 2, 3, 4, 5, 6, 7, 8], bias: [true, false], tie: [true, false]"""
#: Sections that ask for much, and a word of the line that refuses them; "" where it is planned.
HUGE = {
    "13,824 variants": (
        {"variants": f"{{design: product, axes: {{{WIDE}}}}}"},
        ":5:1: variants: more than 2,000 variants",
    ),
    "a million points": (
        {"tune": f"{{lr: {many(1000)}, clip: {many(1000)}}}"},
        ":5:1: tune: more than 20,000 runs",
    ),
    "a context of a billion": ({"model": "{context: 1_000_000_000}"}, ":2:18: model.context"),
    "more steps than there is time": ({"train": "{steps: 1_000_000_000_000_000}"}, "train.steps"),
    "a rate that is too large for its ladder": (
        {"train": "{steps: 1, lr: 1e308}", "sizes": "{models: [{dim: 64}, {dim: 32}]}"},
        "lr: 1e+",
    ),
    "the largest of everything": (
        {
            "model": "{dim: 65536, layers: 1024, heads: 1024, context: 16, position: alibi}",
            "train": "{steps: 1_000_000_000_000, batch: 2}",
        },
        "",
    ),
    "2,000 variants": (
        {"variants": f"{{axes: {{init_std: {many(1998)}}}, match: parameters}}", "seeds": "1"},
        "",
    ),
    "20,000 runs": (
        {
            "variants": f"{{axes: {{init_std: {many(19)}}}}}",
            "controls": "{aa: []}",
            "seeds": "1000",
        },
        "",
    ),
}


#: Plans of thousands of variants or runs take seconds.
SLOW = "2,000 variants", "20,000 runs"


@pytest.mark.parametrize(
    "what", [pytest.param(one, marks=pytest.mark.full) if one in SLOW else one for one in HUGE]
)
def test_plans_that_are_too_large_are_refused_at_once_and_others_made_in_seconds(attempt, what):
    sections, message = HUGE[what]
    found = attempt(small(**sections))
    if message == "":
        assert not isinstance(found, str), found
    else:
        assert message in found


#: A file in blocks; tests/test_mistakes.py makes its mistakes within lines.
WHOLE = """\
name: whole
model:
  dim: 32
  heads: 4
  context: 16
  position:
    name: rope
    theta: 1e4
variants:
  design: one-at-a-time
  axes:
    norm: [layernorm]
  baseline: baseline
data:
  corpus:
    name: files
    path: book.txt
train:
  steps: 60
  batch: 4
measure:
  - perplexity
  - kv_cache
"""
#: One mistake each: a line of the file, what stands there instead, a word of what is said of it.
#: The place said must be that line, or where a fourth value gives it, so many lines further on.
MISTAKES = [
    ("name: whole", "name: Infinity", "'Infinity' is the word for a number that JSON lacks"),
    ("  dim: 32", "  dim: 32 # wide\n  dim: 64", "the key 'dim' stands twice", 1),
    ("  heads: 4", "  heads: 4\n  head_dim: 0", "model.head_dim: 0 (int)", 1),
    (
        "    name: rope",
        "    name: alibi",
        "no option 'theta'; it is an option of rope",
        1,
    ),
    ("  design: one-at-a-time", "  design: path", "a path starts at its baseline", 3),
    (
        "    name: files",
        "    name: recall",
        "no option 'path'; it is an option of files",
        1,
    ),
    ("  batch: 4", "  batch: 100_000", "smaller than one batch of 1,600,001", -5),
    ("  - kv_cache", "  - excess_loss", "needs a corpus whose floor is known"),
    ("  - kv_cache", "  - kv_cache\n---", "a second document begins here", 1),
]


def test_the_file_in_which_mistakes_are_made_has_none(attempt):
    found = attempt(WHOLE.encode())
    assert not isinstance(found, str), found


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake[1].strip()[:40])
def test_golden_mistakes_are_told_with_the_line_that_they_are_on(attempt, mistake):
    old, new, message, *further = mistake
    lines = WHOLE.splitlines()
    assert lines.count(old) == 1
    at = lines.index(old)
    lines[at] = new
    found = attempt(("\n".join(lines) + "\n").encode())
    assert isinstance(found, str), "was planned"
    assert message in found
    assert found.startswith(f"case.yaml:{at + 1 + sum(further)}:"), f"line {at + 1}: {found}"
