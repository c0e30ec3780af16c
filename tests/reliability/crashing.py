"""`llama-ablate`, one of whose processes crashes or fails at a call that changes the disk.

LLAMA_ABLATE_TEST_CRASH says which: a file to note in, `launcher` or `worker`, the number of the
call in its process, and the error's number, or 0 for SIGKILL. It happens once. The call 0 never
comes: then every call is noted, and who made it.
"""

import multiprocessing
import os
import signal
from contextlib import suppress

from .harness import Disk
from .installed import script_with

VARIABLE = "LLAMA_ABLATE_TEST_CRASH"


def install():
    """Put the disk in its place in this process."""
    noted, wanted, number, code = os.environ[VARIABLE].split("|")

    def at(n, name, arguments):
        who = "worker" if multiprocessing.parent_process() else "launcher"
        if number == "0":
            note(noted, os.O_APPEND, f"{who} {os.getpid()}\n")
        elif (who, n) == (wanted, int(number)):
            with suppress(FileExistsError):
                note(noted, os.O_EXCL, f"{name} {arguments}\n")
                if int(code):
                    raise OSError(int(code), os.strerror(int(code)))
                os.kill(os.getpid(), signal.SIGKILL)

    Disk(at).install()


def note(file, how, text):
    """Add a line to a file."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | how, 0o666)
    os.write(handle, text.encode())
    os.close(handle)


if __name__ == "__main__":
    script_with("tests.reliability.crashing")
