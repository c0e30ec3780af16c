"""A grid of seconds in one process, and a disk that fails, crashes or remembers."""

import errno
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from functools import partial

from llama_ablate.config import experiment
from llama_ablate.design.plan import make
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.launch.progress import Progress
from llama_ablate.launch.queue import Queue
from llama_ablate.results import Settings, Store, leases
from llama_ablate.training.compute import Compute
from tests import fsck
from tests.in_process import Inline
from tests.quiet import until

COMPUTE = Compute(precision="float32", kernel="math")
#: A run that writes a checkpoint before every step has the most places to crash in.
EVERY_STEP = Settings(checkpoint_s=1e-9)


def grid(file, results, settings=EVERY_STEP):
    """Do what the command `run` does with an experiment, but for its measures and its report."""
    source = experiment.load(file)
    plan = make(source)
    store = Store(results / plan.experiment.slug)
    store.prepare()
    compute = Compute.from_dict(store.measure_once("compute", "cpu", COMPUTE.to_dict))
    plan = plan.model_copy(update={"compute": compute, "settings": settings})
    store.create(plan, source.text)
    store.verify(list(plan.runs), lambda _done: None)
    store.sweep()
    with Progress("grid") as progress:
        Queue(store, plan, progress).work(Inline(store))
    store.sweep()
    return store


def in_child(work, *arguments, shown=(1,)):
    """Do something in a forked process; return its exit status as `subprocess` has it."""
    said = tempfile.TemporaryFile()  # noqa: SIM115  for both processes
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            work(*arguments)
            code = 0
        except (OSError, ConfigError):
            code = 2
            traceback.print_exc()
        except BaseException:  # noqa: BLE001  told by its exit code
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with said:
        said.seek(0)
        if code in shown:
            sys.stderr.write(said.read().decode())
    return code


class Disk:
    """Stands in for `os` in the code that writes results; what it does at a call is up to a test.

    `at(n, name, arguments)` is asked before the n-th call that changes the disk, `done(name,
    arguments)` after each that did not fail.
    """

    CHANGES = ("open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir")

    def __init__(self, at=lambda *_: None, done=lambda *_: None):
        self._at, self._done, self.calls = at, done, 0

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in self.CHANGES:
            return real

        def call(*arguments, **more):
            if name == "open" and not arguments[1] & os.O_CREAT:
                return real(*arguments, **more)  # of a folder, to flush it
            self.calls += 1
            self._at(self.calls, name, arguments)
            result = real(*arguments, **more)
            self._done(name, arguments)
            return result

        return call

    def install(self):
        """Put it in the place of `os`; in a child, for good."""
        disk.os = leases.os = self


def crash_at(number):
    """Return a disk that kills its process before call `number`, half way into a write."""

    def at(n, name, arguments):
        if n == number:
            if name == "write":
                os.write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    return Disk(at)


def fail_at(number, code):
    """Return a disk whose call `number` fails."""

    def at(n, _name, _arguments):
        if n == number:
            raise OSError(code, os.strerror(code))

    return Disk(at)


def count_calls(file, results):
    """Return how many calls a whole grid takes, from a child that does it."""
    counted = results.with_suffix(".calls")

    def work():
        counting = Disk()
        counting.install()
        grid(file, results)
        counted.write_text(str(counting.calls))

    assert in_child(work) == 0
    return int(counted.read_text())


def there(root, pattern):
    """Return what matches where others are at work: a folder may go while it is looked at."""
    with suppress(FileNotFoundError):
        return list(root.glob(pattern))
    return []


def content(root, *apart):
    """Return what the files below a folder hold by their names, but for some folders."""
    files = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {p.as_posix(): (root / p).read_bytes() for p in files if not {*apart} & {*p.parts}}


def begun(launcher, root, *patterns):
    """Wait until a command has got as far as files that match."""
    while not all(there(root, pattern) for pattern in patterns):
        assert launcher.poll() is None, launcher.communicate()
        time.sleep(0.02)


def nobody_left(root):
    """Wait until no process has a file of the results open."""
    until(lambda: not any("process" in what for _name, _path, what in breaches(root)))


def gone_on(file, results, reference, settings=Settings()):  # noqa: B008  it is frozen
    """Go on with a grid to its end in a process of its own; return where it differs from another.

    Nobody may be at work on it any more.
    """
    root = results / "tiny"
    if root.exists():
        nobody_left(root)
    assert in_child(grid, file, results, settings) == 0
    return breaches(root, reference)


#: Damages: of what a file holds, and of what stands in its place.
CONTENT = ["flip a bit", "truncate", "zero a block", "empty", "swap with another"]
PLACE = ["remove", "folder", "link", "pipe"]


def damage(kind, file, chance, other):
    """Change a file as disks, copies and people do; return whether it is changed."""
    raw = bytearray(file.read_bytes())
    at = chance.randrange(len(raw)) if raw else 0
    if kind in PLACE:
        file.unlink()
        make = {"folder": os.mkdir, "pipe": os.mkfifo, "link": partial(os.symlink, other)}
        make.get(kind, str)(file)
        return True
    if kind == "flip a bit" and raw:
        raw[at] ^= 1 << chance.randrange(8)
    elif kind == "truncate":
        raw = raw[: at // 64 * 64]
    elif kind == "zero a block":
        raw[at : at + 64] = bytes(len(raw[at : at + 64]))
    elif kind == "empty":
        raw = bytearray()
    else:
        raw = bytearray(other.read_bytes())
    changed = bytes(raw) != file.read_bytes()
    file.write_bytes(raw)
    return changed


#: What the independent checker finds in results, or where they differ from others.
breaches = fsck.check
FAULTS = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EDQUOT)
