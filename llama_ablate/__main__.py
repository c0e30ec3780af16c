"""Entry point of the commands `llama-ablate` and `python -m llama_ablate`."""

import gc
import os
import signal
import sys


def script() -> None:
    """Import the command line and run it.

    A signal or a ConfigError during the imports is reported in one line, too.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _leave)
    # Imports, plans and reports create a million long-lived objects: with Python's default of a
    # garbage collection every 700 allocations, a tenth of their time would go to collections.
    gc.set_threshold(50_000)
    from llama_ablate.errors import ConfigError

    try:
        from llama_ablate.commands import cli
    except ConfigError as error:
        sys.stderr.write(f"llama-ablate: {error}\n")
        sys.exit(2)
    cli.script()


def _leave(number: int, _frame: object) -> None:
    """End the process at once: nothing has been started or written yet."""
    if sys.stderr:  # otherwise it was closed before Python started
        sys.stderr.write("llama-ablate: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    script()
