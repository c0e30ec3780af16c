"""Setup of the fork server: suppress error messages after the launcher was killed."""

import sys
from types import TracebackType


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an unhandled exception, except EOFError, which means that the launcher was killed.

    A launcher that is killed while it requests a process leaves an incomplete request, for which
    multiprocessing raises EOFError in the server or in a just forked process. Server and process
    still have the launcher's terminal, where a traceback would be misleading.
    """
    if not issubclass(kind, EOFError):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show
