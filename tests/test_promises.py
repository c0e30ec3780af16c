"""Launchers that share a machine's memory: each counts what the others' workers may still take."""

import os
import subprocess
import sys

import pytest

from llama_ablate.commands import run as command
from llama_ablate.commands.cli import main
from llama_ablate.errors import ConfigError
from llama_ablate.launch import promises
from llama_ablate.launch.promises import promised

MIB = 1 << 20
#: A launcher with a promise of 300 MiB, and a worker below its fork server that holds 100 of them.
OTHER = f"""
import subprocess, sys
from llama_ablate.launch.promises import promised
worker = "held = bytearray(b'x') * {100 * MIB}; print(flush=True); input()"
server = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
with promised({300 * MIB}, lambda _others: 1):
    below = subprocess.Popen([sys.executable, "-c", server, worker])
    below.wait()
"""


@pytest.fixture(autouse=True)
def _own_promises(tmp_path, monkeypatch):
    monkeypatch.setattr(promises, "cache_folder", lambda: tmp_path)


def left():
    """What a launcher that starts now is told of the others."""
    told = []
    with promised(0, lambda others: told.append(others) or 1):
        return told[0]


@pytest.mark.row("R28", "race: two launchers promise memory")
def test_a_launcher_is_told_what_another_promised_until_that_has_ended():
    assert left() == 0
    with (
        promised(300 * MIB, lambda others: 2 - others),
        promised(MIB, lambda others: others // MIB),
    ):
        assert left() == 600 * MIB + 600 * MIB
    assert left() == 0


@pytest.mark.row("R28", "kill: a launcher that had promised memory")
def test_what_a_worker_has_taken_already_is_not_counted_twice(tmp_path):
    env = os.environ | {"LLAMA_ABLATE_CACHE": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    other = subprocess.Popen([sys.executable, "-c", OTHER], env=env, **pipes)
    assert other.stdout.readline()  # the worker holds its memory
    assert 150 * MIB < left() < 200 * MIB
    other.kill()
    other.wait()
    assert left() == 0  # and its promise is forgotten
    assert list((tmp_path / "promises").iterdir()) == []
    other.communicate()


@pytest.mark.row("R28", "race: two launchers start workers")
@pytest.mark.usefixtures("in_process")
def test_a_second_launcher_starts_no_more_workers_than_the_first_has_left_room_for(
    experiment_file, tmp_path, monkeypatch, capsys
):
    def launched(_options, _store, _device, _ranks, workers, _plan):
        raise ConfigError(f"{workers} workers")

    monkeypatch.setattr(command, "_launcher", launched)
    monkeypatch.setattr("llama_ablate.training.compute.free_bytes", lambda _device: 500 * MIB)
    words = ["run", str(experiment_file()), "--results", str(tmp_path / "r"), "--workers", "4"]
    assert main(words) == 2
    assert capsys.readouterr().err == "llama-ablate: 4 workers\n"
    with promised(400 * MIB, lambda _others: 1):
        assert main(words) == 2
    said, launch = capsys.readouterr().err.splitlines()
    assert launch == "llama-ablate: 1 workers"
    assert said.startswith("note: 1 worker(s) instead of 4: each needs up to")
    assert "100 MiB are free beside 400 MiB that other launchers' workers may still take" in said
    assert left() == 0


@pytest.mark.row("R28", "damage: a promise of memory that is none")
@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{}", '{"launcher": "x"}', '{"launcher": 5, "pid": 1, "bytes": 1}'),
        *('{"launcher": "x", "pid": "1", "bytes": 1}', '{"launcher": "x", "pid": -1, "bytes": 1}'),
        *(
            '{"launcher": "x", "pid": 1, "bytes": null}',
            '{"launcher": "x", "pid": 1.5, "bytes": 1}',
        ),
    ],
)
def test_a_promise_that_cannot_be_read_tells_nothing(tmp_path, content):
    (tmp_path / "promises").mkdir()
    (tmp_path / "promises" / "0").write_text(content)
    assert left() == 0


@pytest.mark.row("R28", "damage: a cache that cannot be written")
def test_a_cache_that_cannot_be_written_keeps_no_launcher_from_starting(monkeypatch):
    def refused(_folder):
        raise PermissionError

    monkeypatch.setattr(promises, "alone", refused)
    with promised(MIB, lambda others: 3 - others) as workers:
        assert workers == 3
