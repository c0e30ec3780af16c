"""An audit hook that says which files this process reads, and which it changes."""

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
#: For each body that is watched whether it is for reading, and its paths: hooks stay for good.
_seen: list[tuple[bool, list[Path]]] = []


def _hook(event, arguments):
    if not _seen:
        return
    reading, found = _seen[-1]
    if event == "open":
        path, mode, flags = arguments
        writes = any(c in mode for c in "wax+") if isinstance(mode, str) else flags & _WRITING
        paths = [path] if bool(writes) != reading else []
    else:
        paths = [arguments[at] for at in _CHANGES.get(event, ()) if not reading]
    for path in paths:
        if isinstance(path, str | bytes | os.PathLike):
            # What is opened is what a link leads to; what is removed or renamed is the link itself.
            place = Path(os.fsdecode(path)).absolute()
            real = place.resolve() if event == "open" else place.parent.resolve() / place.name
            if not reading or real.is_file():
                found.append(real)


sys.addaudithook(_hook)


@contextmanager
def changes(*, reading=False):
    """Yield the list of all paths that are changed in the body, or of all files that are read."""
    _seen.append((reading, []))
    try:
        yield _seen[-1][1]
    finally:
        _seen.pop()


def outside(paths, *roots):
    """Return the paths that are not below any of the roots."""
    roots = [os.path.realpath(root) for root in roots] + ["/dev", "/proc"]
    return sorted(
        {path for path in paths if not any(os.path.commonpath([path, r]) == r for r in roots)}
    )
