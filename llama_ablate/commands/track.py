"""The command `track`: send an experiment's runs to a tracker, such as TensorBoard."""

import os
import select
import sys
import time
from argparse import SUPPRESS
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import ResultsOptions, option
from llama_ablate.errors import ConfigError
from llama_ablate.terminal import in_one_line

if TYPE_CHECKING:
    from llama_ablate.track.follower import Follower

HELP = "send curves, metrics and recipes of runs to TensorBoard, W&B or MLflow"
EXAMPLE = "track results/first --to tensorboard"
_LONGEST = 200  # most characters of an error message from a tracker


@dataclass(frozen=True, kw_only=True)
class TrackOptions(ResultsOptions):
    """Options of `track`: results, trackers ("sinks"), and whether to follow running runs."""

    sinks: tuple[str, ...] = option(
        ..., "tensorboard, wandb, mlflow, or a plugin's; may be repeated", "SINK", flag="--to"
    )
    follow: bool = option(False, "go on until all runs have ended (or Ctrl-C)")
    beside: bool = option(False, SUPPRESS)


def run(options: TrackOptions) -> Answer:
    """Send finished and running runs to trackers; with `--follow`, until all have ended."""
    from llama_ablate.results import Results
    from llama_ablate.track.follower import Follower, alone
    from llama_ablate.track.sinks import SINKS, checked

    sinks = checked(options.sinks, "--to")
    sent = {}
    for name in sinks:
        if options.beside:
            _start_follower(options.folder, name)
            continue
        results = Results.open(options.folder)
        follower = Follower(results, name)
        with alone(results, name) as log, redirect_stdout(log):
            if options.follow:
                _follow(follower, name)
            else:
                _send(follower, name)
        sent[name] = follower.sent
    lines = []
    for name, count in sent.items():
        viewer = getattr(SINKS.get(name), "viewer", "")
        lines.append(f"{options.folder}: {count} runs sent to {name}")
        if viewer:
            folder = Results.open(options.folder).track
            lines.append(f"to look at them: {viewer.format(folder=folder)}")
    return Answer("\n".join(lines), {"sent": sent})


def _send(follower: "Follower", name: str) -> None:
    try:
        follower.send_new(last=True)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  whatever a tracker's package raises
        sent = f"; {follower.sent} runs were sent"
        raise ConfigError(f"--to {name}: {_reason(error)}{sent}") from None


def _follow(follower: "Follower", name: str) -> None:
    """Send records until every run has ended, or until the user interrupts."""
    from llama_ablate.track.follower import follow

    def ended(seconds: float) -> bool:
        if follower.done:
            return True
        with suppress(KeyboardInterrupt):
            time.sleep(seconds)
            return False
        return True

    follow(follower, ended, _teller("--to", name, sys.stderr.write))


def _start_follower(root: Path, name: str) -> None:
    """Send records until standard input ends; report failures on the launcher's terminal.

    If another process already sends these results to the tracker, wait until it has ended.
    """
    from llama_ablate.results import Results
    from llama_ablate.results.live import EVERY_S
    from llama_ablate.track.follower import Follower, alone, follow

    os.nice(10)
    terminal = os.dup(2)  # the launcher's terminal; this process's stderr becomes the log
    tell = _teller("--track", name, lambda text: os.write(terminal, text.encode()))
    results = Results.open(root)
    while True:
        try:
            with alone(results, name) as log:
                for stream in (1, 2):  # output of a tracker's package goes to the log
                    os.dup2(log.fileno(), stream)
                return follow(Follower(results, name), _input_ended, tell)
        except ConfigError:  # another process sends
            if _input_ended(EVERY_S):
                return None


def _input_ended(seconds: float) -> bool:
    """Wait at most `seconds`; return whether standard input has ended."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready)


def _teller(flag: str, name: str, write: Callable[[str], object]) -> Callable[[Exception], None]:
    """Return a function that reports a tracker's error in one line."""

    def tell(error: Exception) -> None:
        with suppress(OSError):  # a terminal may be gone
            write(f"note: {flag} {name}: {_reason(error)}; the runs go on, and it is tried again\n")

    return tell


def _reason(error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    kind = type(error).__name__
    text = in_one_line(f"{kind}: {first}" if first else kind)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
