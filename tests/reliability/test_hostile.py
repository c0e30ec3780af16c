"""R10: files and names that want to run code, leave the folder, or carry secrets out of it."""

import base64
import hashlib
import html.parser
import io
import json
import os
import pickle
import re
import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from llama_ablate.commands.cli import main
from llama_ablate.errors import ConfigError
from llama_ablate.files.slugs import slug
from llama_ablate.interop.loader import open_model
from llama_ablate.results import Store
from llama_ablate.training import checkpoint
from tests.in_process import in_process, run_in_process

from .harness import grid

ROOT = Path(__file__).parents[2]
TRAIN = "{steps: 3, batch: 2, lr: 1e-3, precision: float32, kernel: math, evals: 1}"


class Call:
    """A pickle that calls a function with arguments when it is loaded."""

    def __init__(self, function, *arguments):
        self.how = function, arguments

    def __reduce__(self):
        return self.how


def gadgets(canary):
    """Return objects that would make a file when they are unpickled."""
    touch, code = f"touch {canary}", f"open({str(canary)!r}, 'w')"
    calls = [
        (os.system, touch),
        (eval, code),
        (open, str(canary), "w"),
        (__import__, "os"),
    ]
    found = [Call(*call) for call in calls]
    return [
        *found,
        {"model": found[0]},
        {"optimizer": {"state": [found[1]]}},
    ]


def test_no_pickle_in_a_checkpoint_or_in_weights_is_ever_run(
    experiment_file, tmp_path, tally, capsys
):
    canary, trials = tmp_path / "ran", 0
    file = experiment_file(train=TRAIN, measure="[perplexity]", seeds="1", variants="{}")
    reference = grid(file, tmp_path / "reference")
    store = grid(file, tmp_path)
    (run,) = store.folders()
    ran = []
    for gadget in gadgets(canary):
        plain = pickle.dumps(gadget)
        saved = io.BytesIO()
        torch.save(gadget, saved)
        for content in (plain, saved.getvalue(), b"PK\x03\x04" + plain, plain[: len(plain) // 2]):
            trials += 2
            digest = hashlib.sha256(content).hexdigest()
            working = store.working(run)
            working.mkdir(exist_ok=True)
            (working / f"checkpoint-2-{digest[:32]}.pt").write_bytes(content)
            assert checkpoint.load(working) is None
            weights = store.folder(run) / "weights.safetensors"
            whole = weights.read_bytes()
            weights.write_bytes(content)
            with pytest.raises(ConfigError):
                open_model(store.root / "baseline")
            weights.write_bytes(whole)
            ran += [gadget] * canary.exists()
    capsys.readouterr()
    assert open_model(reference.root / "baseline")
    tally("R10", "pickles in the place of checkpoints and weights", trials, len(ran))


def headers():
    """Return safetensors files whose headers lie."""
    for text in (
        b"",
        b'{"a": {}}',
        b"[" * 5000,
        b'{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4000000000]}}',
        b'{"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        b'{"w": {"dtype": "X9", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"w": {"dtype": "F32", "shape": [99999999999999], "data_offsets": [0, 4]}}',
    ):
        yield struct.pack("<Q", len(text)) + text + bytes(4)
    yield struct.pack("<Q", 1 << 62)
    yield b"\0" * 7


def test_weights_with_a_header_that_lies_are_one_line(experiment_file, tmp_path, tally):
    file = experiment_file(train=TRAIN, measure="[perplexity]", seeds="1", variants="{}")
    store = grid(file, tmp_path)
    (record,) = store.records()
    trials, wrong = 0, []
    for number, content in enumerate(headers()):
        trials += 1
        fake = replace(record, id=f"{number:08x}", label=f"fake {number}")
        store.commit(fake, [], lambda out, content=content: out.write(content))
        try:
            open_model(store.folder(fake.id))
            wrong.append(content)
        except ConfigError as error:
            wrong += [content] * ("\n" in str(error))
    print(wrong)
    tally("R10", "safetensors whose headers lie, committed as weights", trials, len(wrong))


NAMES = [
    "../../../etc/x",
    "/etc/passwd",
    ".",
    "$HOME",
    "x" * 80,
    "\u202eevil",
    "-rf",
    "é",
    " ",
    "'",
    "x--s0--00",
]


def test_no_name_leaves_the_results_folder(experiment_file, tmp_path, tally, capsys):
    trials, wrong = 0, []
    for name in NAMES:
        made = slug(name)
        trials += 1
        if not re.fullmatch(r"[^\W_]([^\W_]|-){0,46}", made) or "--" in made:
            wrong.append((name, made))
        if name.strip():
            place = tmp_path / "in" / "results"
            quoted = json.dumps(name)
            file = experiment_file(
                f"{{design: list, entries: [{{label: {quoted}}}]}}",
                name=quoted,
                train=TRAIN,
                seeds="1",
                measure="[perplexity]",
            )
            before = {p for p in tmp_path.rglob("*") if place not in p.parents and p != place}
            with suppress(ConfigError):  # a name that is refused leads nowhere either
                grid(file, place)
            after = {p for p in tmp_path.rglob("*") if place not in p.parents and p != place}
            wrong += sorted(after - before - {place.parent})
    capsys.readouterr()
    print(wrong)
    tally("R10", "names of experiments and variants that point elsewhere", trials, len(wrong))


PAYLOADS = [
    "<script>{}</script>",
    "<img src=x onerror={}>",
    "<svg onload={}>",
    '"><script>{}</script>',
    "<iframe src=javascript:{}>",
    "<a href=javascript:{}>x</a>",
    "{{{{ {} }}}}",
    "<!--><script>{}-->",
    "<style>@import '{}'</style>",
    "<meta http-equiv=refresh content='0;url={}'>",
    "<base href='{}'>",
    "<math><mtext><script>{}</script>",
]


LIVE = ("script", "iframe", "object", "embed", "base", "form", "link", "svg", "math")
HARMLESS = r"data:image/|#|figures/|tables/|\.\./(runs|failed)/"
DATA = [{"type": "application/gzip", "id": "data"}]
#: What the report's own drawings have: pictures, their letters, and the dashes beside names.
DRAWN = {"role", "hidden", "aria-hidden"}


class Live(html.parser.HTMLParser):
    """Finds what a browser would run or fetch."""

    def __init__(self):
        super().__init__()
        self.found, self.policies, self.script, self.code = [], [], "", ""

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "meta" and values.get("http-equiv", "").lower() == "content-security-policy":
            self.policies.append(values["content"])
        elif tag == "script" and values in ({}, *DATA):
            self.script = "data" if values else "code"
        elif tag == "svg" and DRAWN & values.keys():
            pass
        elif tag in LIVE or (tag == "meta" and values.get("http-equiv")):
            self.found.append((tag, values))
        for name, value in attributes:
            if name.startswith("on") or (
                name in ("href", "src") and not re.match(HARMLESS, value or "")
            ):
                self.found.append((tag, name, value))

    def handle_data(self, data):
        self.code += data if self.script == "code" else ""

    def handle_endtag(self, _tag):
        digest = base64.b64encode(hashlib.sha256(self.code.encode()).digest()).decode()
        allowed = any(f"'sha256-{digest}'" in policy for policy in self.policies)
        if self.script == "code" and not allowed:
            self.found.append(("script", self.code))
        self.script = self.code = ""


def test_no_text_of_a_file_lives_in_the_report(experiment_file, tmp_path, tally, capsys):
    texts = [payload.format(f"alert({i})") for i, payload in enumerate(PAYLOADS)]
    entries = ", ".join(
        f"{{label: {json.dumps(text)}, train.lr: {i + 1}e-3}}" for i, text in enumerate(texts)
    )
    hypothesis = {
        "variant": texts[1],
        "direction": "better",
        "source": texts[2],
        "said": texts[3],
    }
    file = experiment_file(
        f"{{design: list, entries: [{entries}]}}",
        name=json.dumps(texts[0]),
        question=json.dumps(" ".join(texts)),
        train=TRAIN,
        measure="[perplexity]",
        hypotheses=json.dumps([hypothesis]),
    )
    file.write_text("# " + " ".join(texts) + "\n" + file.read_text())
    store = grid(file, tmp_path)
    with in_process(figures=True):
        code = main(["report", str(store.root)])
    assert code == 0, capsys.readouterr().err
    page = (store.root / "report" / "report.html").read_text()
    found = Live()
    found.feed(page)
    (policy,) = found.policies
    assert "default-src 'none'" in policy
    assert all(text.split("<")[0][:4] in html.unescape(page) for text in texts)
    print(found.found)
    what = "payloads of HTML in name, question, label, hypothesis, comment: none lives"
    tally("R10", what, 5 * len(texts), len(found.found))


def test_no_secret_of_the_environment_is_written_anywhere(
    experiment_file, tmp_path, tally, capsys, monkeypatch
):
    canary = "CANARY7f3a91"
    file = experiment_file(train=TRAIN, measure="[perplexity, kv_cache]", seeds="1")
    names = ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "PASSWORD", "SLURM_JWT"]
    for name in names:
        monkeypatch.setenv(name, f"{canary}-{name}")
    assert run_in_process(file, tmp_path / "r", figures=True) == 0
    shown = capsys.readouterr()
    written = [p for p in (tmp_path / "r").rglob("*") if p.is_file()]
    assert len(written) > 30
    leaks = [p for p in written if canary.encode() in p.read_bytes()]
    leaks += [s for s in shown if canary in s]
    text = b" ".join(p.read_bytes() for p in written if p.suffix == ".json").decode()
    assert os.uname().nodename not in text
    assert str(Path.home()) + "/" not in text.replace(str(tmp_path), "")
    print(leaks)
    tally("R10", "secrets in the environment: in no file and no output", len(names), len(leaks))


def test_no_name_in_a_file_reaches_beyond_the_registry(
    experiment_file, tmp_path, volume, tally, capsys
):
    canary = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(canary)!r}, 'w')")
    names = [
        "evil.Norm",
        "llama_ablate.model.norms.RMSNorm",
        "./evil.py",
        "rmsnorm\n",
        "!!python/name:os.system",
    ]
    wrong, tried = [], 0
    slots = ["norm", "position", "attention", "feedforward", "block"]
    for slot in volume(slots[:1], slots, slots):
        for name in names:
            for entry in (repr(name), f"{{name: {name!r}}}", f"{{_target_: {name!r}}}"):
                tried += 1
                file = experiment_file(f"{{axes: {{{slot}: [{entry}]}}}}")
                if main(["plan", str(file)]) != 2:
                    wrong.append((slot, entry))
    capsys.readouterr()
    print(wrong)
    assert not canary.exists()
    assert not Store(tmp_path / "results").root.exists()
    tally("R10", "dotted paths, files and targets in the place of a component", tried, len(wrong))


def test_the_sources_load_no_pickle_and_listen_nowhere():
    forbidden = re.compile(
        r"pickle\.loads?\(|yaml\.(unsafe_)?load\(|weights_only=False|trust_remote_code|"
        r"\.listen\(|HTTPServer|(?<!\.)\beval\(|\bexec\(|shell=True"
    )
    for file in (ROOT / "llama_ablate").rglob("*.py"):
        found = forbidden.search(file.read_text("utf-8"))
        assert found is None, (file, found)
