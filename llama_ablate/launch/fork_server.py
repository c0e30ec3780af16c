"""Setup of the fork server: it stays silent about a killed launcher."""

import sys
from types import TracebackType


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an exception that nobody handled, unless it is that the launcher is gone.

    One that is killed while it asks for a process leaves a request cut short, which multiprocessing
    reads as EOFError, in the server or in the process that it has just forked. The launcher's
    terminal is still theirs then.
    """
    if not issubclass(kind, EOFError):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show
