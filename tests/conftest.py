"""What all tests share: small recipes, a cache of their own, one thread."""

import gc
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from llama_ablate.commands.cli import main
from llama_ablate.config import plugins
from llama_ablate.model.components import spec_from
from llama_ablate.report import page

from . import commands
from . import tally as battery
from .in_process import draw_nothing, own_registries
from .in_process import in_process as _in_process

os.environ["HF_HUB_OFFLINE"] = "1"  # no test may reach for a network
os.environ.pop("PYTHONUNBUFFERED", None)  # commands are to meet streams that fail as users' do
# Nor are they to ignore what these tests do, where they run in the background or under nohup.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
torch.set_num_threads(1)
os.fsync = lambda _handle: None  # no test takes this machine's power away; see test_power_loss.py

TIERS = ("fast", "full", "torture")


def pytest_addoption(parser):
    group = parser.getgroup("llama_ablate")
    group.addoption(
        "--tier",
        choices=TIERS,
        default="fast",
        help="fast: what `make test` runs; full: `make test-all`; torture: `make torture`",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "full: runs with --tier full or torture only")
    config.addinivalue_line("markers", "torture: runs with --tier torture only")
    config.addinivalue_line("markers", "row(number, what): a case is a trial of the battery")


def pytest_collection_modifyitems(config, items):
    tier = TIERS.index(config.getoption("--tier"))
    left = {item for item in items if any(map(item.get_closest_marker, TIERS[tier + 1 :]))}
    if battery.FILE:
        left |= {
            item
            for item in items
            if not item.get_closest_marker("row") and "tally" not in item.fixturenames
        }
    if left:
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]


def pytest_collection_finish():
    gc.freeze()  # what is imported by now stays: to look through it for cycles takes a twentieth
    gc.set_threshold(50_000)  # as commands do


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call" and not report.skipped:
        for mark in item.iter_markers("row"):
            number, what = mark.args
            battery.write(number, what, 1, int(report.failed), call.duration, item.nodeid)
    return report


SMALL = {
    "vocab": 61,
    "dim": 32,
    "layers": 2,
    "heads": 4,
    "head_dim": 8,
    "context": 24,
    "bias": True,
    "tie": False,
    "init_std": 0.02,
    "logit_softcap": None,
}
LLAMA = {
    "norm": "rmsnorm",
    "position": "rope",
    "attention": "mha",
    "feedforward": "swiglu",
    "block": "pre",
}


def make_spec(**changes):
    """Return a small Llama with some sizes or components changed."""
    slots = {slot: changes.pop(slot, entry) for slot, entry in LLAMA.items()}
    return spec_from({**SMALL, **changes, **slots})


@pytest.fixture
def unsealed():
    """Read a document as it would be without a seal, for a test to change and write again."""

    def read(file):
        values = json.loads(file.read_text("utf-8"))
        del values["sha256"]
        return values

    return read


@pytest.fixture
def spec():
    return make_spec


@pytest.fixture(scope="session")
def token_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(token_cache, monkeypatch):
    monkeypatch.setenv("LLAMA_ABLATE_CACHE", str(token_cache))
    monkeypatch.setenv("HF_HOME", str(token_cache / "hf"))


@pytest.fixture(autouse=True)
def _on_a_cpu(request, monkeypatch):
    """Where a machine has a GPU, `--device auto` takes it: that is for test_cuda.py alone."""
    if request.path.name != "test_cuda.py":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def book(tmp_path) -> Path:
    """A small text of 40,000 characters with something to learn in it."""
    sentence = "the cat sat on the mat and the dog ran to the park where it saw a bird"
    words = sentence.split()
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(0, len(words), (12_000,), generator=generator).tolist()
    file = tmp_path / "book.txt"
    file.write_text(" ".join(words[i] for i in picks)[:40_000], "utf-8")
    return file


#: Of a run that gets past what token frequencies say of the book: about 30 milliseconds.
LEARNS = "{steps: 30, batch: 4, lr: 3e-2, precision: float32, kernel: math, evals: 2}"


@pytest.fixture
def experiment_file(tmp_path, book):
    """Write an experiment of seconds: a function from YAML sections to the file's path.

    Without the repeated baseline, unless `controls` are given: no run more than a test asks for.
    """

    def write(variants="{design: one-at-a-time, axes: {norm: [layernorm]}}", **sections):
        values = {
            "name": "tiny",
            "model": "{dim: 16, layers: 1, heads: 2, context: 16}",
            "data": f"{{corpus: {{name: files, path: '{book}'}}, tokenizer: bytes}}",
            "train": "{steps: 6, batch: 4, lr: 1e-3, precision: float32, kernel: math, evals: 2}",
            "seeds": "2",
            "measure": "[perplexity, kv_cache]",
            "controls": "{aa: []}",
            "variants": variants,
            **sections,
        }
        if "texts" in sections:
            del values["data"]  # they stand in its place
        file = tmp_path / "tiny.yaml"
        file.write_text("".join(f"{key}: {value}\n" for key, value in values.items()), "utf-8")
        return file

    return write


@pytest.fixture
def volume(pytestconfig):
    """Choose how often something is tried, of one number for each tier."""
    tier = TIERS.index(pytestconfig.getoption("--tier"))

    def choose(fast, full, torture):
        return (fast, full, torture)[tier]

    return choose


@pytest.fixture
def tally(request):
    """Report what a row of the battery found; a failure fails the test."""
    began = time.monotonic()

    def report(row, what, trials, failures=0):
        took = time.monotonic() - began
        battery.write(row, what, trials, failures, took, request.node.nodeid)
        assert failures == 0, f"{row}: {failures} of {trials} failed: {what}"

    return report


@pytest.fixture
def answer(capsys):
    """Give a command; return what it prints, read where that is JSON, or the line of its error."""

    def command(*words, code=0):
        capsys.readouterr()
        assert main([*map(str, words)]) == code
        out, error = capsys.readouterr()
        if code == 2:
            *notes, line = error.splitlines()
            assert all(note.startswith("note: ") for note in notes), error
            assert line.startswith("llama-ablate: "), error
            return line
        return json.loads(out) if "--json" in words else out

    return command


@pytest.fixture
def in_process():
    """Let a test's commands do all they do in this process, and draw no pictures."""
    with _in_process():
        yield


@pytest.fixture
def without_pictures(monkeypatch):
    """Draw no figures: ten of them take seconds."""
    monkeypatch.setattr(page, "_draw", draw_nothing)


@pytest.fixture
def launch():
    """Start a command as `started` does; what is left of it at the end of the test is killed."""
    processes = []

    def start(words, **more):
        processes.append(commands.started(words, **more))
        return processes[-1]

    yield start
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="session")
def llama3_tokenizer(tmp_path_factory) -> Path:
    """A tokenizer.model in Llama 3's format, with the entries that its walk-through names."""
    from .interop.checkpoints import llama3_ranks

    file = tmp_path_factory.mktemp("llama3") / "tokenizer.model"
    file.write_bytes(llama3_ranks())
    return file


@pytest.fixture(scope="session")
def llama2_tokenizer(tmp_path_factory) -> Path:
    """A small tokenizer.model of SentencePiece, trained as Llama 2's was: BPE with bytes."""
    from .tokenizer_kinds import LLAMA2, sentencepiece_file

    text = ["the cat sat on the mat", "the dog ran to the park", "a bird saw the cat"] * 20
    return sentencepiece_file(tmp_path_factory.mktemp("llama2"), text, vocab_size=320, **LLAMA2)


@pytest.fixture
def words_tokenizer(tmp_path) -> Path:
    """A tokenizer.json of whole words that lacks some of the book's."""
    import tokenizers

    vocab = {word: i for i, word in enumerate(["<unk>", "the", "cat", "sat", "on", "a"])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, "<unk>"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model.save(str(tmp_path / "words.json"))
    return tmp_path / "words.json"


PLUGINS = Path(__file__).parents[1] / "experiments" / "plugins"


@pytest.fixture
def plugin():
    """Return a function that loads a plug-in of the repository by name; forget it afterwards."""

    def load(name):
        file = PLUGINS / f"{name}.py"
        plugins.load([file])
        known = [module for key, module in sys.modules.items() if key.startswith(plugins._FILE)]
        return next(module for module in known if module.__file__ == str(file))

    with own_registries():
        yield load
