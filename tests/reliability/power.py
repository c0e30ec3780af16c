"""What a disk holds after power was lost: a model of the calls that were recorded.

A file's bytes are safe up to its last fsync; what was written after that is there, or is not, or is
there up to a multiple of 512 bytes. A folder's names are safe up to its last fsync; of the changes
after that the first few happened, how many is chance, and no order holds between two folders or
between a name and the bytes behind it. A rename is one change.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

from .harness import Disk

SECTOR = 512


@dataclass(eq=False)
class File:
    """The bytes as written, and how many of them are safe."""

    content: bytearray = field(default_factory=bytearray)
    safe: int = 0


@dataclass(eq=False)
class Folder:
    """The names as last made safe, and the changes since: (name, what it stands for or None)."""

    safe: dict = field(default_factory=dict)
    changes: list = field(default_factory=list)

    def now(self, changes=None):
        """Return the names after all changes, or the first so many."""
        names = dict(self.safe)
        for change in self.changes[:changes]:
            for name, node in change:
                names.pop(name, None)
                if node is not None:
                    names[name] = node
        return names


def recorder(root):
    """Return a disk that notes what is done below a root, and the calls in their order."""
    calls = []

    def parts(of):
        """Return the names on the way from the root to a path or an open file, if there is one."""
        path = Path(os.readlink(f"/proc/self/fd/{of}") if isinstance(of, int) else of)
        return path.relative_to(root).parts if path.is_relative_to(root) else None

    def done(name, arguments):
        if (first := parts(arguments[0])) is None:
            return
        if name == "write":
            calls.append((name, first, bytes(arguments[1])))
        elif name in ("rename", "replace"):
            calls.append(("rename", parts(arguments[0]), parts(arguments[1])))
        else:
            calls.append(({"rmdir": "unlink", "open": "create"}.get(name, name), first))

    return Disk(done=done), calls


def disk_after(calls):  # noqa: C901  one branch a call
    """Return the root folder as the calls leave it, safe and unsafe."""
    root = Folder()

    def find(parts):
        node = root
        for name in parts:
            node = node.now()[name]
        return node

    for call, parts, *more in calls:
        folder = find(parts[:-1]) if call != "fsync" else None
        if call in ("create", "mkdir"):
            folder.changes.append([(parts[-1], File() if call == "create" else Folder())])
        elif call == "unlink":
            folder.changes.append([(parts[-1], None)])
        elif call == "write":
            find(parts).content += more[0]
        elif call == "rename":
            node, target = find(parts), find(more[0][:-1])
            if target is folder:
                folder.changes.append([(parts[-1], None), (more[0][-1], node)])
            else:
                target.changes.append([(more[0][-1], node)])
                folder.changes.append([(parts[-1], None)])
        elif call == "fsync":
            node = find(parts)
            if isinstance(node, File):
                node.safe = len(node.content)
            else:
                node.safe, node.changes = node.now(), []
    return root


def lose_power(folder, place, chance):
    """Write to a real folder what is left of a folder; `chance` decides what is not safe."""
    place.mkdir()
    for name, node in folder.now(chance.randint(0, len(folder.changes))).items():
        if isinstance(node, Folder):
            lose_power(node, place / name, chance)
        else:
            unsafe = len(node.content) - node.safe
            kept = chance.choice([0, unsafe, chance.randint(0, unsafe) // SECTOR * SECTOR])
            (place / name).write_bytes(node.content[: node.safe + kept])
