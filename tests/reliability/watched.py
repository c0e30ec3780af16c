"""An audit hook that says what this process writes, makes, renames or removes, and where."""

import os
import sys
from contextlib import contextmanager
from pathlib import Path

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: Events of the interpreter that change the disk, and which of their arguments are paths.
_CHANGES = {
    "os.mkdir": (0,),
    "os.rename": (0, 1),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "os.utime": (0,),
    "shutil.rmtree": (0,),
    "shutil.move": (0, 1),
    "shutil.copyfile": (1,),
}
_seen: list[list[Path]] = []  # a list for each `changes` that is at work: a hook cannot be removed


def _hook(event, arguments):
    if not _seen:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = any(c in mode for c in "wax+") if isinstance(mode, str) else flags & _WRITING
        paths = [path] if writes else []
    else:
        paths = [arguments[at] for at in _CHANGES.get(event, ())]
    for path in paths:
        if isinstance(path, str | bytes | os.PathLike):
            # What is opened is what a link leads to; what is removed or renamed is the link itself.
            place = Path(os.fsdecode(path)).absolute()
            real = place.resolve() if event == "open" else place.parent.resolve() / place.name
            _seen[-1].append(real)


sys.addaudithook(_hook)


@contextmanager
def changes():
    """Yield the list of all paths that are written, made, renamed or removed in the body."""
    _seen.append([])
    try:
        yield _seen[-1]
    finally:
        _seen.pop()


def outside(paths, *roots):
    """Return the paths that are not below any of the roots."""
    roots = [os.path.realpath(root) for root in roots] + ["/dev", "/proc"]
    return sorted(
        {path for path in paths if not any(os.path.commonpath([path, r]) == r for r in roots)}
    )
