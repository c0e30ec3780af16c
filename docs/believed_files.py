"""Table of files that are read back, with their checksums, for reliability.md.

It is made from believed_files.yaml, and is part of results/reference/reliability.md. A file is
"believed" if the package reads it in a later command.
"""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import yaml

HEADS = {
    "results": "A results folder",
    "pack": "A pack",
    "cache": "The cache (`LLAMA_ABLATE_CACHE`)",
    "elsewhere": "Other libraries' caches",
}


@dataclass(frozen=True)
class Believed:
    """Files of one kind: name patterns, checksum, and reaction to a mismatch.

    Names are relative to a results folder, a pack or the cache.
    """

    files: list[str]
    checksum: str
    then: str
    reaction: str
    unread: str = ""

    def holds(self, name: str) -> bool:
        """Return whether a name matches a pattern, in which `*` does not match slashes."""
        path = PurePosixPath(name)
        return any(
            len(path.parts) == pattern.count("/") + 1 and path.match(pattern)
            for pattern in self.files
        )


_STATED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
KINDS = {place: [Believed(**kind) for kind in kinds] for place, kinds in _STATED.items()}


def table() -> str:
    """Return the Markdown table, with a line per kind of file."""
    lines = ["| file | checksum | where it does not match |", "|---|---|---|"]
    for place, kinds in KINDS.items():
        lines.append(f"| **{HEADS[place]}** | | |")
        for kind in kinds:
            names = kind.files if place == "elsewhere" else map("`{}`".format, kind.files)
            where = f" ({kind.unread})" if kind.unread else ""
            lines.append(f"| {', '.join(names)}{where} | {kind.checksum} | {kind.then} |")
    return "\n".join(lines) + "\n"
