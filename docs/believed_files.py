"""The table of believed files in results/reference/reliability.md, from believed_files.yaml."""

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
    """Files of one kind, by their names below a results folder, a pack or the cache."""

    files: list[str]
    checksum: str
    then: str
    reaction: str
    unread: str = ""

    def holds(self, name: str) -> bool:
        """Return whether a name is one of these: `*` stands for a part of one level."""
        path = PurePosixPath(name)
        return any(
            len(path.parts) == pattern.count("/") + 1 and path.match(pattern)
            for pattern in self.files
        )


_STATED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
KINDS = {place: [Believed(**kind) for kind in kinds] for place, kinds in _STATED.items()}


def table() -> str:
    """Write the table, a line for each kind of file."""
    lines = ["| file | checksum | where it does not match |", "|---|---|---|"]
    for place, kinds in KINDS.items():
        lines.append(f"| **{HEADS[place]}** | | |")
        for kind in kinds:
            names = kind.files if place == "elsewhere" else map("`{}`".format, kind.files)
            where = f" ({kind.unread})" if kind.unread else ""
            lines.append(f"| {', '.join(names)}{where} | {kind.checksum} | {kind.then} |")
    return "\n".join(lines) + "\n"
