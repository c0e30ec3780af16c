"""Command line: argument parser, dispatch to commands, error messages, and exit codes."""

import atexit
import errno
import gc
import os
import signal
import sys
from argparse import Action, ArgumentError, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from contextlib import suppress
from io import FileIO, TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from llama_ablate.commands import help  # noqa: A004  the command's name
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import Options, add_to, create_options
from llama_ablate.config import plugins
from llama_ablate.errors import ConfigError, nearest
from llama_ablate.files import disk
from llama_ablate.terminal import coloured, in_one_line, visible, width

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


COMMANDS: dict[str, Any] = {**help.COMMANDS, "help": help}
#: Dataclass of options of each command's `run`.
OPTIONS: dict[str, type[Options]] = {
    name: command.run.__annotations__["options"] for name, command in COMMANDS.items()
}
#: Allocations between collections of garbage, which take half a second of importing torch at 700.
_COLLECTED_AFTER = 100_000
#: Name of the file of Python's import system in a stack.
_IMPORT = "<frozen importlib._bootstrap>"
_INTERRUPTED = "llama-ablate: interrupted; the same command goes on from here\n"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIGNALLED = 128  # exit code of an interrupted command, less the number of the signal


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print the error in one line, and exit with code 2."""
        self.exit(2, f"{self.prog}: {in_one_line(message)} (see {self.prog} --help)\n")

    def _check_value(self, action: Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            hint = nearest(value, map(str, action.choices))
            raise ArgumentError(action, f"there is no '{value}'{hint}")

    def known(self) -> list[str]:
        """Return the option names of this parser, such as `--set`."""
        return [name for name in self._option_string_actions if name.startswith("--")]


def parser() -> _Parser:
    """Return the parser of all commands."""
    from llama_ablate import __version__

    top = _Parser(prog="llama-ablate", add_help=False)
    top.add_argument("-h", "--help", action="store_true")
    top.add_argument("--version", action="version", version=f"llama-ablate {__version__}")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            description=command.HELP,
            epilog=f"example:\n  llama-ablate {command.EXAMPLE}",
            formatter_class=RawDescriptionHelpFormatter,
        )
        add_to(subparser, OPTIONS[name])
        subparser.set_defaults(parser=subparser)
    return top


def _parsed(arguments: Sequence[str] | None) -> Namespace:
    """Parse a command line.

    Exits with code 2 for an unknown option, whose message names the nearest match.
    """
    top = parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        import argcomplete

        argcomplete.autocomplete(top)
    options, unknown = top.parse_known_args(arguments)
    if not (options.command or unknown):
        options.command, options.topic = "help", None
    if unknown:
        chosen_parser: _Parser = options.parser if options.command else top
        name = unknown[0].partition("=")[0]
        option = name.startswith("-")
        hint = nearest(name, chosen_parser.known()) if option else ""
        chosen_parser.error(
            f"{'there is no option' if option else 'one argument too many:'} {name}{hint}"
        )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code.

    Errors that a user can correct exit with code 2 and one line on standard error: a ConfigError,
    or an error of the operating system, such as a full disk or a missing permission.
    """
    try:
        parsed = _parsed(arguments)
        return _done(parsed.command, create_options(OPTIONS[parsed.command], vars(parsed)))
    except KeyboardInterrupt as stop:
        sys.stderr.write(_INTERRUPTED)
        return _SIGNALLED + (stop.args[0] if stop.args else signal.SIGINT)


def _done(command: str, options: Options) -> int:
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals that lack a character
    try:
        if command != "help":  # help needs no plug-ins, and stays quick
            plugins.load(options.plugins)
        answer: Answer = COMMANDS[command].run(options)
        with suppress(BrokenPipeError):  # the reader closed the pipe early
            fitted = answer.fitted(None if getattr(options, "wide", False) else width())
            print(answer.json if options.json else coloured(visible(fitted)), flush=True)
    except (ConfigError, OSError) as error:
        is_resumable = isinstance(error, OSError) and command in ("run", "measure")
        note = "; what is finished is kept" if is_resumable else ""
        sys.stderr.write(f"llama-ablate: {in_one_line(_said(error))}{note}\n")
        return 2
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and type(error).__name__ != "OutOfMemoryError":
            raise  # OutOfMemoryError is torch's error for a GPU; its name is known without torch
        why = f" ({in_one_line(str(error))})" if str(error) else ""
        sys.stderr.write(f"llama-ablate: {command} needs more memory than there is{why}\n")
        return 2
    return answer.code


def _said(error: Exception) -> str:
    """Return the message of an error.

    For an error of the operating system, the message names the path, and if permission was refused
    also the allowed actions.
    """
    if not isinstance(error, OSError) or not error.filename:
        return str(error)
    place = Path(os.fsdecode(error.filename2 or error.filename))  # the target of a rename
    why = error.strerror
    names = [name.startswith(disk.PARTIAL) for name in place.parts]
    if any(names):  # a temporary file or folder, before its rename to the real name
        place = Path(*place.parts[: names.index(True)])
        why = "no file can be made there" if error.errno == errno.ENOENT else why
    refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    allowed = "; allowed: what you may read, in a folder that you may write to" if refused else ""
    return f"'{place}': {why}{allowed}"


def script() -> NoReturn:
    """Process entry point of `llama-ablate` and `python -m llama_ablate`.

    SIGTERM and SIGHUP interrupt like Ctrl-C. Closed streams, full disks and broken pipes do not
    change the exit code. After `main` has returned, a signal ends the process at once, with the
    exit code that `main` returned; while the interpreter ends, signals are ignored.
    """
    gc.set_threshold(_COLLECTED_AFTER)
    atexit.register(_prepare_end)  # the first to be registered is called last
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _interrupt)
    devnull = os.open(os.devnull, os.O_RDWR)
    # A stream that was closed before Python started is None.
    sys.stdout = sys.stdout or os.fdopen(devnull, "w", closefd=False)
    stderr = sys.stderr or os.fdopen(devnull, "w", closefd=False)
    sys.stderr = TextIOWrapper(
        _Unfailing(stderr.fileno(), "w", closefd=False),
        stderr.encoding,
        errors="backslashreplace",
        write_through=True,
    )
    code = 1
    try:
        code = main()
    except SystemExit as ended:  # of the argument parser
        code = int(ended.code or 0)
    finally:
        for number in _SIGNALS:
            signal.signal(number, lambda *_: os._exit(code))
        try:
            sys.stdout.flush()
        except OSError:  # the interpreter would try again at its end, and exit with 120
            os.dup2(devnull, sys.stdout.fileno())
    sys.exit(code)


def _prepare_end() -> None:
    """Ignore signals, and exempt all objects from further collections of garbage.

    As it ends, the interpreter restores the default actions of signals, so that a late signal would
    change the exit code. It also collects garbage several times: 0.7 s once torch is imported.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    gc.freeze()


class _Unfailing(FileIO):
    """Output stream that ignores write errors, for example on a closed terminal."""

    def write(self, text: "Buffer") -> int:
        try:
            return super().write(text)
        except OSError:
            return memoryview(text).nbytes


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; in the middle of an import, end the process at once instead.

    torch and others call Python while they are imported, from C++ code that aborts the process if
    an exception arrives. Whatever this process has started ends with it.
    """
    if number == signal.SIGHUP:  # when a terminal closes, both the system and the shell send it
        signal.signal(number, signal.SIG_IGN)
    while frame:
        if frame.f_code.co_filename == _IMPORT:
            sys.stderr.write(_INTERRUPTED)
            os._exit(_SIGNALLED + number)
        frame = frame.f_back
    raise KeyboardInterrupt(number)
