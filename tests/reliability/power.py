"""What a disk holds after power was lost: a model of the calls that were recorded.

A file's bytes are safe up to its last fsync; what was written after that is there, or is not, or is
there up to a multiple of 512 bytes. A folder's names are safe up to its last fsync; of the changes
after that the first few happened, how many is chance, and no order holds between two folders or
between a name and the bytes behind it. A rename is one change.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path

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


class Recorder:
    """The calls of a program on everything below a root, in order; others are made all the same."""

    def __init__(self, root):
        self.root, self.calls, self.marks = Path(root), [], []
        self._handles = {}

    def mark(self, what):
        """Note that something had returned by now."""
        self.marks.append((len(self.calls), what))

    def open(self, path, *arguments):
        """Open a file or a folder."""
        handle = os.open(path, *arguments)
        self._handles[handle] = self._parts(path)
        if arguments and arguments[0] & os.O_CREAT:
            self._made("create", self._parts(path))
        return handle

    def write(self, handle, content):
        """Write to a file."""
        done = os.write(handle, content)
        self._made("write", self._handles[handle], bytes(content[:done]))
        return done

    def fsync(self, handle):
        """Make a file or a folder safe."""
        self._made("fsync", self._handles[handle])

    def rename(self, source, target):
        """Give a file or a folder another name."""
        os.rename(source, target)
        self._made("rename", self._parts(source), self._parts(target))
        # An open handle follows what it is of.
        source, target = self._parts(source), self._parts(target)
        for handle, parts in self._handles.items():
            if parts == source:
                self._handles[handle] = target

    replace = rename

    def __getattr__(self, name):
        real, call = getattr(os, name), {"rmdir": "unlink"}.get(name, name)
        if call not in ("mkdir", "unlink"):
            return real

        def made(path, *more):
            real(path, *more)
            self._made(call, self._parts(path))

        return made

    def _made(self, call, parts, *more):
        if parts is not None:
            self.calls.append((call, parts, *more))

    def _parts(self, path):
        """Return the names on the way from the root to a path; None for one that is elsewhere."""
        path = Path(path)
        return path.relative_to(self.root).parts if path.is_relative_to(self.root) else None


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
