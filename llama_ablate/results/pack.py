"""Packed results: an experiment without its weights, as one archive beside its report.

<pack>/
results.tar.xz                            the files of the results folder that readers need
runs.csv                                  a row a run: variant, seed, outcome, metrics
experiment.yaml  report.md  effects*.png  copies for people

The archive is read in memory by the reader of folders: every file bears the seal, or the SHA-256 in
its run's manifest, that it has in a results folder.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from llama_ablate.files import disk
from llama_ablate.files.archive import Archive, archived
from llama_ablate.results.layout import PACK, Layout
from llama_ablate.results.store import StoredResults


class Pack(StoredResults):
    """The packed results in a folder. What is read is verified; damage raises ConfigError."""

    def __init__(self, root: Path) -> None:
        home = Layout(root)
        super().__init__(Layout(home.pack, files=Archive(home.pack)), home)

    @staticmethod
    def is_at(root: Path) -> bool:
        """Return whether a folder holds packed results."""
        return Layout(root).pack.exists()


def write_pack(
    target: Path, files: Iterable[tuple[str, bytes]], pages: Mapping[str, bytes]
) -> dict[str, int]:
    """Write the files of results as a pack, with some pages beside it; return the sizes by name.

    Each file is replaced in one step, the archive first, by which the folder is known as a pack.
    """
    contents = {PACK: archived(files), **pages}
    disk.make(target)
    disk.sweep(target)  # of a command that was killed
    with disk.locked(target):
        for name, content in contents.items():
            disk.replace(disk.below(target, name), content)
    return {name: len(content) for name, content in contents.items()}
