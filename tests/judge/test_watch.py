"""What a candidate's code may not do: each attempt in a fresh interpreter, under the audit hook."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.quiet import until
from tests.reliability.harness import in_child

#: Code, and what it is refused for; `own` is the run's folder, `sealed` the second text.
ATTEMPTS = {
    "reading the second text": ("open(sealed + '/valid.bin', 'rb')", "reads '{sealed}/valid.bin'"),
    "reading it by its descriptor": ("os.open(sealed + '/valid.bin', os.O_RDONLY)", "reads"),
    "reading it by another name": (
        "pathlib.Path(own, '..', 'sealed', 'valid.bin').read_bytes()",
        "reads",
    ),
    "reading it through a link": ("open(own + '/link')", "reads '{own}/link'"),
    "mapping it": ("numpy.memmap(sealed + '/valid.bin', mode='r')", "reads"),
    "writing the ledger": ("open(own + '/../ledger.jsonl', 'a')", "writes"),
    "writing beside its run": ("open(own + '-2', 'w')", "writes '{own}-2'"),
    "writing by descriptor": ("os.open(own + '/../x', os.O_CREAT | os.O_WRONLY)", "writes"),
    "replacing another's record": ("os.rename(own + '/a', own + '/../other')", "writes"),
    "linking the text into its run": ("os.link(sealed + '/valid.bin', own + '/b')", "writes"),
    "removing another's run": ("os.rmdir(own + '/../empty')", "writes"),
    "truncating the ledger": ("os.truncate(own + '/../ledger.jsonl', 0)", "writes"),
    "starting a process": ("subprocess.run(['true'])", "calls subprocess.Popen"),
    "starting a shell": ("os.system('true')", "calls os.system"),
    "calling out": ("socket.create_connection(('127.0.0.1', 9))", "calls socket.connect"),
    "replacing the evaluation": ("heldout.text_errors = None", "replaces"),
    "replacing a method": ("heldout.Store.commit = None", "replaces"),
    "patching its code": ("heldout.f.__code__ = (lambda: 2).__code__", "replaces"),
    "changing a constant": ("heldout._ALIKE = 1.0", "replaces llama_ablate.heldout._ALIKE"),
}
PROGRAM = """
import os, pathlib, socket, subprocess, sys, types
import numpy
from llama_ablate.launch import watch
heldout = types.ModuleType("llama_ablate.heldout")
exec("_ALIKE = 1e-5\\ndef f(): return 1\\ndef text_errors(): return 1\\nclass Store:\\n"
     "  def commit(self): return 1\\nStore.__module__ = 'llama_ablate.heldout'", vars(heldout))
sys.modules["llama_ablate.heldout"] = heldout
own, sealed = sys.argv[1:3]
watch.hold(watch.Bounds(own, (sealed,)))
try:
    %s
except OSError as error:
    assert "which is sealed" in str(error), error
try:
    watch.check()
except Exception as error:
    print(error)
"""


@pytest.fixture
def folder(tmp_path):
    for name in ("own", "sealed", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "sealed" / "valid.bin").write_bytes(b"text")
    (tmp_path / "own" / "a").write_bytes(b"")
    (tmp_path / "own" / "link").symlink_to(tmp_path / "sealed" / "valid.bin")
    (tmp_path / "ledger.jsonl").write_bytes(b"{}")
    return tmp_path


def attempt(folder, code):
    """Run code under the hook; return what was found against it, having gone on after it."""
    words = [sys.executable, "-c", PROGRAM % code, str(folder / "own"), str(folder / "sealed")]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=folder)
    return done.stdout.strip()


@pytest.mark.parametrize("name", ATTEMPTS)
def test_is_found_though_the_code_goes_on(folder, name):
    code, said = ATTEMPTS[name]
    names = {"own": folder / "own", "sealed": folder / "sealed"}
    found = attempt(folder, code)
    assert found.startswith("the candidate's code " + said.format(**names)), found
    assert (folder / "ledger.jsonl").read_bytes() == b"{}"
    assert (folder / "empty").is_dir()


@pytest.mark.parametrize(
    "code",
    [
        "open(own + '/c', 'w').close(); os.rename(own + '/c', own + '/d'); os.remove(own + '/d')",
        "os.mkdir(own + '/e'); os.rmdir(own + '/e'); open(os.devnull, 'w').write('x')",
        "open(own + '/../ledger.jsonl').read(); open(__import__('json').__file__).read()",
        "heldout.more = 1; heldout.Store.other = 2",  # a plug-in may add names of its own
    ],
)
def test_what_a_run_needs_is_allowed(folder, code):
    assert attempt(folder, code) == ""


CHEAT = """
import torch
from llama_ablate.model.norms import NORMS

@NORMS.register("reader")
class Reader(torch.nn.Module):
    \"\"\"A norm whose runs read the second text.\"\"\"

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gain, self.calls = torch.nn.Parameter(torch.ones(dim)), 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 40:
            try:
                open({path!r}).read()
            except OSError:
                pass
        return torch.tanh(x) * self.gain
"""


@pytest.mark.full
def test_a_run_that_reads_the_second_text_makes_its_candidate_invalid(ledger):
    """In processes, as users have them."""
    path = ledger.candidate(CHEAT.format(path=str(ledger.root / "two.txt")), "reader.py")
    words = [sys.executable, "-m", "llama_ablate", "judge", str(path), "--device", "cpu"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 5, done.stderr
    assert "the candidate's code reads" in done.stdout


def test_a_plug_in_that_replaces_the_evaluation_is_refused_by_name(ledger, capfd):
    code = CHEAT.format(path="") + (
        "\nfrom llama_ablate.training import evaluation\nevaluation.losses = lambda *_: 0\n"
    )

    def judge():
        os._exit(ledger.judge(code, "patch.py"))

    before = Path(ledger.file).read_bytes()
    assert in_child(judge, shown=(2,)) == 2
    assert (
        "replaces llama_ablate.training.evaluation.losses, which is sealed"
        in capfd.readouterr().err
    )
    assert ledger.file.read_bytes() == before


@pytest.mark.parametrize(
    ("when_loaded", "when_planned", "said"),
    [
        ("os._exit(0)", "", "candidate.py: the process ended"),
        ("open('ledger/ledger.jsonl', 'a')", "", "writes 'ledger/ledger.jsonl'"),
        ("", "os._exit(0)", "candidate.py: the process ended"),
        ("", "open('leak', 'w')", "writes 'leak'"),
        ("judgement.decide = 0", "", "replaces llama_ablate.findings.judgement.decide, which is"),
        ("open('two.txt').read()", "", "reads 'two.txt', which is sealed"),
    ],
)
def test_code_that_acts_before_a_run_reaches_no_process_that_decides(
    ledger, capsys, when_loaded, when_planned, said
):
    head = "import os\nfrom llama_ablate.findings import judgement\n" + when_loaded
    code = head + CHEAT.format(path="").replace(
        "self.calls += 1", f"self.calls += 1\n        {when_planned}"
    )
    before = ledger.file.read_bytes()
    assert ledger.judge(code, "candidate.py") == 2
    assert said in capsys.readouterr().err
    assert ledger.file.read_bytes() == before
    assert not list(ledger.root.glob("ledger/plugins/*"))
    assert not (ledger.root / "leak").exists()


@pytest.mark.full
@pytest.mark.parametrize("ended_by", ["kill", "terminate"])
def test_the_runs_of_a_judge_that_is_ended_end_soon_after_it(ledger, ended_by):
    """In processes, as users have them."""
    words = [sys.executable, "-m", "llama_ablate", "judge", "slow.yaml", "--device", "cpu"]
    ledger.candidate("{train.lr: 2e-2, layers: 8, dim: 64}", "slow.yaml")
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as judge:
        assert until(lambda: list(ledger.root.glob("ledger/runs/0001/gate-1/working/*")))
        family = psutil.Process(judge.pid).children(recursive=True)
        assert len(family) > 2  # the command, its fork server, its workers
        getattr(judge, ended_by)()
    assert until(lambda: not any(one.is_running() for one in family))
