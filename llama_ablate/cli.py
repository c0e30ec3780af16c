"""The command line: arguments in, exit code out. `commands` does the work."""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from typing import NoReturn

from llama_ablate import plugins
from llama_ablate.arguments import parser
from llama_ablate.errors import ConfigError

#: Signals that end a command as Ctrl-C does: what was done is kept.
_ENDS = (signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; what a user can mend is one line on standard error.

    That is a ConfigError, and whatever the system refuses: a full disk, a missing permission, a
    folder where a file should be.
    """
    options = parser().parse_args(arguments)
    from llama_ablate import commands

    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a character
    ends = {number: signal.signal(number, _interrupt) for number in _ENDS if _is_main_thread()}
    try:
        plugins.load(options.plugin)
        answer = getattr(commands, options.command.replace("-", "_"))(options)
        print(answer.json if options.json else answer.text, flush=True)
    except BrokenPipeError:
        # The reader of our output has gone: nothing is left to say, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (ConfigError, OSError) as error:
        kept = isinstance(error, OSError) and options.command in ("run", "measure")
        note = "; what is finished is kept" if kept else ""
        sys.stderr.write(f"llama-ablate: {_in_one_line(str(error))}{note}\n")
        return 2
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be what went away
            sys.stderr.write("llama-ablate: interrupted; the same command goes on from here\n")
        return 130
    finally:
        for number, handler in ends.items():
            signal.signal(number, handler)
    return int(answer.code)


def script() -> NoReturn:
    """Be the process of `main`: what `llama-ablate` and `python -m llama_ablate` call.

    Once `main` has answered, nothing is left to keep: a further Ctrl-C ends the process silently.
    """
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _in_one_line(text: str) -> str:
    """Show line feeds and control characters, which names in a file may hold, as what they are."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
