"""`llama-ablate`, one of whose processes crashes or fails at a call that changes the disk.

LLAMA_ABLATE_TEST_CRASH says which: a file to note in, `launcher` or `worker`, the number of the
call in its process, and the error's number, or 0 for SIGKILL. It happens once. The call 0 never
comes: then every call is noted, and who made it.
"""

import multiprocessing
import os
import signal
from contextlib import suppress
from importlib import import_module

from llama_ablate.commands.cli import script
from llama_ablate.launch import processes
from llama_ablate.launch.processes import _child as real

from .harness import Disk

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


def child(*arguments):
    """Do what a worker's process does, after putting the disk in its place."""
    install()
    real(*arguments)


if __name__ == "__main__":
    install()
    # Under the name by which a worker finds it.
    processes._child = import_module("tests.reliability.crashing").child
    script()
