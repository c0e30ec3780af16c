"""Run processes next to a launcher that send its results, one process per tracker.

Failures of these processes do not affect the launcher.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from llama_ablate.config import plugins

#: Seconds that a finished command waits until all results are sent.
PATIENCE_S = 30.0


@contextmanager
def beside(root: Path, sinks: Sequence[str]) -> Iterator[None]:
    """Run a process for each tracker that sends the results while the `with` body runs.

    `sinks` are the names of the trackers. The processes read the results folder `root`. When their
    standard input ends, because the body has ended or because this process was killed, they send
    the remaining results and exit.
    """
    children: dict[str, subprocess.Popen[bytes]] = {}
    for name in sinks:
        words = [sys.executable, "-m", "llama_ablate", "track", str(root), "--to", name, "--beside"]
        words += plugins.list_flags()
        try:
            children[name] = subprocess.Popen(  # noqa: S603  our own command
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C does not end it; remaining results are sent
            )
        except OSError as error:
            sys.stderr.write(f"note: --track {name}: {error}\n")
    try:
        yield
    finally:
        until = time.monotonic() + PATIENCE_S
        for child in children.values():
            if child.stdin:
                with suppress(OSError):
                    child.stdin.close()
        for name, child in children.items():
            try:
                child.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                sys.stderr.write(
                    f"note: --track {name}: not all was sent within {PATIENCE_S:.0f} s; "
                    f"llama-ablate track '{root}' --to {name} sends the rest\n"
                )
