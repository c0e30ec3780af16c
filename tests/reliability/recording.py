"""`llama-ablate`, whose processes all record in one file, in order, the calls that change results.

LLAMA_ABLATE_TEST_RECORD names the file and the folder of the results.
"""

import fcntl
import os
import pickle
from pathlib import Path

from llama_ablate.files import disk
from llama_ablate.results import leases
from llama_ablate.results.store import Store

from .harness import Disk
from .installed import script_with
from .power import Recorder

VARIABLE = "LLAMA_ABLATE_TEST_RECORD"


class Shared:
    """A recorder that makes its calls under a lock, and adds them to a file that others add to."""

    def __init__(self, file, root):
        self._file, self._recorder = file, Recorder(root)

    def __getattr__(self, name):
        real = getattr(self._recorder, name)
        if name not in (*Disk.CHANGES, "mark"):
            return real

        def call(*arguments, **more):
            with Path(self._file).open("ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                try:
                    return real(*arguments, **more)
                finally:
                    for made in self._recorder.calls:
                        pickle.dump(made, file)
                    for _at, what in self._recorder.marks:
                        pickle.dump(("mark", what), file)
                    self._recorder.calls.clear()
                    self._recorder.marks.clear()

        return call


def install():
    """Put the recorder in its place in this process."""
    shared, commit = Shared(*os.environ[VARIABLE].split("|")), Store.commit

    def committed(store, record, *arguments):
        found = commit(store, record, *arguments)
        shared.mark(record.id)
        return found

    disk.os = leases.os = shared
    Store.commit = committed
    leases._boot = lambda: "before-the-power-was-lost"


def recorded(file, root):
    """Return a recorder of what all processes have recorded in a file, but for the report."""
    found = Recorder(root)
    with file.open("rb") as opened:
        while opened.peek(1):
            call, *more = pickle.load(opened)  # noqa: S301  our own
            if call == "mark":
                found.mark(*more)
            elif "report" not in more[0]:  # it is not vouched for
                found.calls.append((call, *more))
    return found


if __name__ == "__main__":
    script_with("tests.reliability.recording")
