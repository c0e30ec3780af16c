"""The command line: arguments in, exit code out. `commands` does the work."""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO, TextIOWrapper
from typing import TYPE_CHECKING, NoReturn

from llama_ablate import plugins
from llama_ablate.arguments import parser
from llama_ablate.errors import ConfigError
from llama_ablate.terminal import in_one_line, visible

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; what a user can mend is one line on standard error.

    That is a ConfigError, and whatever the system refuses: a full disk, a missing permission, a
    folder where a file should be.
    """
    options = parser().parse_args(arguments)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a character
    try:
        from llama_ablate import commands

        plugins.load(options.plugin)
        answer = getattr(commands, options.command.replace("-", "_"))(options)
        with suppress(BrokenPipeError):  # the reader has gone, with what it wanted
            print(answer.json if options.json else visible(answer.text), flush=True)
    except (ConfigError, OSError) as error:
        kept = isinstance(error, OSError) and options.command in ("run", "measure")
        note = "; what is finished is kept" if kept else ""
        sys.stderr.write(f"llama-ablate: {in_one_line(str(error))}{note}\n")
        return 2
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError":
            raise  # the latter is torch's, of a GPU, known here without torch
        why = f" ({in_one_line(str(error))})" if str(error) else ""
        sys.stderr.write(f"llama-ablate: {options.command} needs more memory than there is{why}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("llama-ablate: interrupted; the same command goes on from here\n")
        return 130
    return int(answer.code)


def script() -> NoReturn:
    """Be the process of `main`: what `llama-ablate` and `python -m llama_ablate` call.

    Once `main` has answered, nothing is left to keep: a further Ctrl-C ends the process silently.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, _interrupt)
    nobody = os.open(os.devnull, os.O_RDWR)
    # None where it was closed from the start.
    sys.stdout = sys.stdout or os.fdopen(nobody, "w", closefd=False)
    person = sys.stderr or os.fdopen(nobody, "w", closefd=False)
    sys.stderr = TextIOWrapper(
        _Told(person.fileno(), "w", closefd=False),
        person.encoding,
        errors="backslashreplace",
        write_through=True,
    )
    try:
        sys.exit(main())
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        try:
            sys.stdout.flush()
        except OSError:  # the interpreter would try again at its end, and exit with 120
            os.dup2(nobody, sys.stdout.fileno())


class _Told(FileIO):
    """What people are told. Where nobody takes it, as on a closed terminal, work goes on."""

    def write(self, text: "Buffer") -> int:
        try:
            return super().write(text)
        except OSError:
            return memoryview(text).nbytes


def _interrupt(number: int, _frame: object) -> None:
    if number == signal.SIGHUP:  # of a closed terminal both the system and the shell tell
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt
