"""What a terminal shows: tables that fit it, colours, what is being done, and the live table."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from contextlib import suppress

import pandas as pd
import pytest

from llama_ablate.commands import status
from llama_ablate.commands.cli import main
from llama_ablate.launch import worker
from llama_ablate.report import tables
from llama_ablate.results import Results, Store, live
from llama_ablate.results.live import LiveNote
from tests.in_process import run_in_process
from tests.plans import of_runs

#: A label, what is decided, and more than most terminals hold.
CELLS = pd.DataFrame(
    {
        "variant": [f"rmsnorm rope gqa-kv_heads=2 {name} pre" for name in ("relu", "silu")],
        "difference [95%]": ["-0.1234 [-0.1345, -0.1123]"] * 2,
        "verdict": ["baseline", "inconclusive"],
        **{f"column {n}": ["0.1234"] * 2 for n in range(3)},
    }
)
SGR = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


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


@pytest.fixture
def store(tmp_path):
    """Three runs, of which two are being trained: of one there is a note."""
    store = Store(tmp_path / "x")
    store.prepare()
    store.create(of_runs("r1", "r2", "r3"), "")
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
    assert re.search(r"v1 s0 +running +12% +2.500 +[\d,]+ +0:\d\d", out)
    runs = answer("status", store.root, "--json")["runs"]
    now = runs[0]["live"]
    assert (now["step"], now["train_loss"]) == (1, 2.5)
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


def test_a_worker_notes_the_curve_of_the_run_that_it_trains(experiment_file, tmp_path, monkeypatch):
    monkeypatch.setattr(live, "EVERY_S", 0.0)  # every step is noted
    seen, finish = [], worker.METRICS.measure_all

    def look(choices, subject, readings):
        runs = Results.open(tmp_path / "tiny").statuses
        seen.extend(run.live for run in runs if run.live)
        return finish(choices, subject, readings)

    monkeypatch.setattr(worker.METRICS, "measure_all", look)
    file = experiment_file(train="{steps: 3, batch: 2}", measure="[perplexity]", variants="{}")
    assert run_in_process(file, tmp_path) == 0
    assert [(note.step, note.steps) for note in seen] == [(3, 3)] * len(seen)
    results = Results.open(tmp_path / "tiny")
    assert [note.run for note in seen] == list(results.finished)
    for note in seen:
        assert [p["train_loss_nats"] for p in note.curve] == pytest.approx(
            [p["train_loss_nats"] for p in results.curve(note.run)]
        )
    assert not list((tmp_path / "tiny" / "working").iterdir())
