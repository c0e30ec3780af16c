"""R10: files and names that want to run code, leave the folder, or carry secrets out of it."""

import hashlib
import io
import json
import os
import pickle
import re
import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch

from llama_ablate.errors import ConfigError
from llama_ablate.interop.loader import open_model
from llama_ablate.training import checkpoint
from tests.in_process import run_in_process

from .conftest import TRAIN
from .harness import grid

ROOT = Path(__file__).parents[2]


class Call:
    """A pickle that calls a function with arguments when it is loaded."""

    def __init__(self, function, *arguments):
        self.how = function, arguments

    def __reduce__(self):
        return self.how


def pickles(canary):
    """Yield files that would make a file when they are unpickled."""
    system = Call(os.system, f"touch {canary}")
    evaluated = Call(eval, f"open({str(canary)!r}, 'w')")
    for gadget in (
        *(system, evaluated, Call(open, str(canary), "w"), Call(__import__, "os")),
        *({"model": system}, {"optimizer": {"state": [evaluated]}}),
    ):
        plain, saved = pickle.dumps(gadget), io.BytesIO()
        torch.save(gadget, saved)
        yield from (plain, saved.getvalue(), b"PK\x03\x04" + plain, plain[: len(plain) // 2])


def lying_headers():
    """Yield safetensors files whose headers lie."""
    for text in (
        b"",
        b"[" * 5000,
        b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4000000000]}}',
        b'{"w": {"dtype": "F32", "shape": [99999999999999], "data_offsets": [0, 4]}}',
    ):
        yield struct.pack("<Q", len(text)) + text + bytes(4)
    yield struct.pack("<Q", 1 << 62)
    yield b"\0" * 7


def test_no_pickle_in_a_checkpoint_or_in_weights_is_ever_run(one, tmp_path, tally):
    """Weights are committed with sums that hold: it is their format that is looked at."""
    canary = tmp_path / "ran"
    store = grid(one, tmp_path)
    (record,) = store.records()
    hostile, wrong = {"pickles": [*pickles(canary)], "headers": [*lying_headers()]}, []
    for number, content in enumerate(content for kind in hostile.values() for content in kind):
        fake = replace(record, id=f"{number:08x}", label=f"fake {number}")
        working = store.working(fake.id)
        working.mkdir()
        digest = hashlib.sha256(content).hexdigest()
        (working / f"checkpoint-2-{digest[:32]}.pt").write_bytes(content)
        wrong += [content] * (checkpoint.load(working) is not None)
        store.commit(fake, [], lambda out, content=content: out.write(content))
        try:
            open_model(store.folder(fake.id))
            wrong.append(content)
        except ConfigError as error:
            wrong += [content] * ("\n" in str(error))
        wrong += [content] * canary.exists()
    print(wrong)
    assert open_model(store.folder(record.id))
    what = "pickles, and safetensors whose headers lie, as checkpoints and committed weights"
    tally("R10", what, 2 * sum(map(len, hostile.values())), len(wrong))


NAMES = ["../../../etc/x", "/etc/passwd", ".", "$HOME", "x" * 80, "\u202eevil", "-rf", "é", "'"]


def test_no_name_leaves_the_results_folder(experiment_file, tmp_path, tally):
    place = tmp_path / "in" / "results"

    def elsewhere():
        return {p for p in tmp_path.rglob("*") if p != place and place not in p.parents}

    place.mkdir(parents=True)
    wrong = []
    for name in NAMES:
        quoted = json.dumps(name)
        entries = f"{{design: list, entries: [{{label: {quoted}}}]}}"
        file = experiment_file(entries, name=quoted, train=TRAIN, seeds="1")
        before = elsewhere()
        with suppress(ConfigError):  # a name that is refused leads nowhere either
            grid(file, place)
        wrong += elsewhere() - before
        wrong += [p for p in place.iterdir() if not re.fullmatch(r"\w[\w-]{0,46}", p.name)]
    print(wrong)
    what = "names of experiments and variants that point elsewhere"
    tally("R10", what, len(NAMES), len(wrong))


def test_no_secret_of_the_environment_is_written_anywhere(
    experiment_file, tmp_path, tally, capsys, monkeypatch
):
    canary = "CANARY7f3a91"
    file = experiment_file(train=TRAIN, measure="[perplexity, kv_cache]", seeds="1")
    names = ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PASSWORD", "SLURM_JWT"]
    for name in names:
        monkeypatch.setenv(name, f"{canary}-{name}")
    assert run_in_process(file, tmp_path / "r", figures=True) == 0
    written = [p for p in (tmp_path / "r").rglob("*") if p.is_file()]
    assert len(written) > 30
    leaks = [p for p in written if canary.encode() in p.read_bytes()]
    leaks += [said for said in capsys.readouterr() if canary in said]
    text = b" ".join(p.read_bytes() for p in written if p.suffix == ".json").decode()
    assert os.uname().nodename not in text
    assert str(Path.home()) + "/" not in text.replace(str(tmp_path), "")
    print(leaks)
    tally("R10", "secrets in the environment: in no file and no output", len(names), len(leaks))


def test_the_sources_load_no_pickle_and_listen_nowhere():
    forbidden = re.compile(
        r"pickle\.loads?\(|yaml\.(unsafe_)?load\(|weights_only=False|trust_remote_code|"
        r"\.listen\(|HTTPServer|(?<!\.)\beval\(|\bexec\(|shell=True"
    )
    for file in (ROOT / "llama_ablate").rglob("*.py"):
        found = forbidden.search(file.read_text("utf-8"))
        assert found is None, (file, found)
