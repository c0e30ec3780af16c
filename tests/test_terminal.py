"""What a terminal shows: tables that fit it, colours, what is being done, and the live table."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress

import pandas as pd
import pytest

from llama_ablate import terminal
from llama_ablate.commands import status
from llama_ablate.commands.cli import main
from llama_ablate.commands.shared import progress
from llama_ablate.launch.queue import how_far
from llama_ablate.report import tables
from llama_ablate.results import Store, live
from llama_ablate.results.live import LiveNote
from llama_ablate.results.snapshot import RunStatus
from tests.plans import of_runs

LABELS = [f"rmsnorm {p} gqa-kv_heads=2 {f} pre" for p in ("rope", "nope") for f in ("relu", "silu")]
#: As the comparison: a label, what is decided, and more than most terminals hold.
CELLS = pd.DataFrame(
    {
        "variant": LABELS,
        "n": ["3"] * 4,
        "loss (nats)": ["4.7468"] * 4,
        "difference [95%]": ["-0.1234 [-0.1345, -0.1123]"] * 4,
        "verdict": ["baseline", "better", "worse", "inconclusive"],
        "parameters": ["940,800"] * 4,
        "train speed": ["0.92x"] * 4,
        "over the floor (nats)": ["+0.1234"] * 4,
    }
)
SGR = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


@contextmanager
def on_terminal(**environment):
    """Let standard output and error be a terminal with colours; yield what is written there."""
    stream = Terminal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.delenv("NO_COLOR", raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        with redirect_stdout(stream), redirect_stderr(stream):
            yield stream


def in_pty(words, *, columns=80, lines=24, send=None, look=lambda _text: True):
    """Run a command in a forked process on a terminal of its own.

    Once `look` holds of what it shows, `send` is typed there. Returns all that it showed, and its
    exit code.
    """
    pid, handle = pty.fork()
    if pid == 0:
        code = 99
        with suppress(BaseException):
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, "rw"[n > 0]) for n in range(3))
            sys.__stdout__ = sys.stdout
            os.environ["TERM"] = "xterm"
            for name in ("COLUMNS", "LINES", "NO_COLOR"):
                os.environ.pop(name, None)
            time.sleep(0.05)
            code = main(words)
            sys.stdout.flush()
        os._exit(code)
    fcntl.ioctl(handle, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    seen = b""
    with suppress(OSError):  # the process has ended
        while found := os.read(handle, 65536):
            seen += found
            if send and look(seen.decode("utf-8", "replace")):
                os.write(handle, send)
                send = None
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(handle)
    return seen.decode(), code


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_table_fits_its_width_and_says_how_many_columns_it_leaves_out(width):
    lines = tables.text(CELLS, width).split("\n")
    assert max(map(len, lines)) <= width
    left = re.fullmatch(r"(\d+) columns? left out: --wide shows all", lines[-1])
    rule = next(line for line in lines if set(line) <= {"-", " "})
    assert len(rule.split()) + (int(left[1]) if left else 0) == len(CELLS.columns)
    assert (left is None) == (width >= 120)


def test_a_narrow_table_keeps_the_columns_up_to_the_verdict_and_shortens_labels_for_them():
    text = tables.text(CELLS, 80)
    assert "inconclusive" in text
    assert "…" in text
    rows = text.split("\n")[-5:-1]
    assert len({row[:20] for row in rows}) == len(LABELS)  # different ones stay different
    assert "…" not in tables.text(CELLS, 110)  # to leave columns out is enough


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("http://user:secret@host/x failed", "http://host/x failed"),
        ("'http://user:sec ret@host'", "'http://host'"),
        ("sqlite:////home/me/x.db", "sqlite:////home/me/x.db"),
    ],
)
def test_addresses_are_printed_without_user_and_password(said, shown):
    assert terminal.in_one_line(said) == shown


def test_a_text_is_shortened_in_the_middle_to_the_columns_that_it_takes():
    assert terminal.shortened("abcdefghij", 10) == "abcdefghij"
    assert terminal.shortened("abcdefghij", 5) in ("ab…ij", "abc…j")
    assert terminal.columns("模型 a") == 6
    for most in range(2, 8):
        assert terminal.columns(terminal.shortened("模型模型模型", most)) <= most


def test_a_small_curve_goes_from_low_to_high_and_is_ascii_where_the_terminal_is(monkeypatch):
    with on_terminal():
        assert terminal.small_curve([1.0, 2.0, 3.0, 8.0]) == "▁▂▃█"
        assert terminal.small_curve([1.0, float("nan"), 2.0]) == "▁ █"
    monkeypatch.setattr(Terminal, "encoding", "ascii")
    with on_terminal():
        assert terminal.small_curve([1.0, 2.0]) == "_#"


def test_verdicts_are_coloured_as_cells_and_words_are_kept():
    text = tables.text(CELLS.assign(variant=["better", "a better one", "x", "ok"]))
    with on_terminal():
        coloured = terminal.coloured(text)
    assert SGR.sub("", coloured) == text
    assert re.findall(r"\x1b\[\d+m(\w+)\x1b\[0m", coloured) == ["better", "worse", "inconclusive"]
    for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        with on_terminal(**plain):
            assert terminal.coloured(text) == text
    assert terminal.coloured(text) == text  # no terminal


def test_a_missing_text_is_told_before_torch_is_imported(experiment_file):
    """And the first line stands there before anything is read."""
    file = experiment_file(data="{corpus: {name: files, path: nowhere.txt}, tokenizer: bytes}")
    code = (
        "import sys; from llama_ablate.commands.cli import main; code = main(sys.argv[1:]); "
        "sys.exit('torch' in sys.modules or code)"
    )
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", code, "run", str(file)]
    assert subprocess.run(words, stderr=theirs, check=False, cwd=file.parent).returncode == 2
    said = os.read(ours, 65536).decode().splitlines()
    os.close(ours)
    os.close(theirs)
    assert said[0] == f"reading {file}"
    assert re.fullmatch(r".*:\d+:\d+: data.corpus: there is no file 'nowhere.txt'", said[1])
    assert len(said) == 2


@pytest.fixture
def planned(tmp_path):
    """Return a function from ids to the results of a plan of these runs."""

    def made(*runs):
        store = Store(tmp_path / "x")
        store.prepare()
        store.create(of_runs(*runs), "")
        return store

    return made


@pytest.fixture
def store(planned):
    """Three runs, of which two are being trained: of one there is a note."""
    store = planned("r1", "r2", "r3")
    leases = [store.lease(run) for run in ("r1", "r2")]
    note(store, 1)
    yield store
    for lease in leases:
        lease.release()


def note(store, step):
    """Note that the first run is at a step of 8."""
    curve = [{"step": n, "train_loss_nats": 4.0 - n} for n in range(step)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "EVERY_S", 0.0)
        writer = LiveNote(store.working("r1"), "r1", steps=8, tokens_per_step=32)
        writer(step - 1, 3.0, curve)
        time.sleep(0.01)
        writer(step, 2.5, curve)


def test_status_lists_what_is_running_and_how_far_it_is(store, answer):
    out = answer("status", store.root)
    assert "3 runs: 1 pending, 2 running" in out
    assert re.search(r"v1 s0 +running +12% +2.500 +[\d,]+ +0:\d\d", out)
    runs = answer("status", store.root, "--json")["runs"]
    now = runs[0]["live"]
    assert (now["step"], now["train_loss"]) == (1, 2.5)
    assert now["curve"]
    assert now["seconds_left"] > 0
    assert runs[1]["outcome"] == "running"
    assert runs[1]["live"] is runs[2]["live"] is None


def test_the_watch_draws_in_place_until_ctrl_c_and_leaves_the_terminal_as_it_was(
    store, monkeypatch
):
    monkeypatch.setattr(status, "_EVERY_S", 0.05)

    def seen_twice(text):
        if text.count("\x1b[H") == 2:
            note(store, 4)
        return "50%" in text

    words = ["status", str(store.root), "--watch"]
    text, code = in_pty(words, columns=60, send=b"\x03", look=seen_twice)
    assert code == 0
    assert text.startswith("\x1b[?1049h")
    on_screen, _, after = text.partition("\x1b[?1049l")
    assert max(len(SGR.sub("", line)) for line in on_screen.split("\r\n")) <= 60
    assert re.search(r"v1 s0 .*running.* 12% ", on_screen)
    assert re.search(r"v1 s0 .*running.* 50% ", on_screen)
    assert "Ctrl-C leaves" in on_screen
    assert "3 runs: 1 pending, 2 running" in after  # the last look stays


def test_a_screen_of_few_lines_shows_what_runs_first_and_what_waits_next():
    runs = [RunStatus(f"e{n}", "a", n, "ok") for n in range(5)]
    runs += [RunStatus(f"r{n}", "a", n, "running") for n in range(2)]
    runs += [RunStatus(f"w{n}", "a", n) for n in range(9)]
    ids = [run.id for run in progress.fitting(runs, 7)]
    assert ids == ["r0", "r1", "w0", "w1", "w2", "e3", "e4"]
    assert [run.id for run in progress.fitting(runs, 1)] == ["r0"]
    assert len(progress.fitting(runs, 12)) == 12


def test_a_launcher_elsewhere_learns_how_far_a_run_is_from_its_note_or_its_checkpoint(store):
    assert how_far(store, "r1") == 1
    assert how_far(store, "r2") == 0
    (store.working("r2") / f"checkpoint-7-{'0' * 32}.pt").touch()
    assert how_far(store, "r2") == 7


def test_without_a_terminal_a_bar_is_a_line_a_minute_with_the_time_left(capsys, monkeypatch):
    clock = iter(range(0, 200, 20))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with terminal.Bar("tokenising", "B") as bar:
        for done in range(8):
            bar.update(done * 1000, 7000)
    lines = ["3,000 of 7,000 B, about 80 s left", "7,000 of 7,000 B"]
    assert capsys.readouterr().err == "".join(f"tokenising: {line}\n" for line in lines)
